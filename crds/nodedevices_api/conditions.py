"""Condition types and reasons of both kinds, of Nodes and pods, and reasons of Events. Loads nothing, so that the
command line may use it.
"""

from typing import Final, Literal

Status = Literal["True", "False", "Unknown"]

# --- NodeDevices, by the agent ---------------------------------------------------------------------------------------
READY: Final = "Ready"
AGENT_RUNNING: Final = "AgentRunning"
PROBE_UNAVAILABLE: Final = "ProbeUnavailable"
DRIVER_NOT_LOADED: Final = "DriverNotLoaded"
DEVICES_LOST: Final = "DevicesLost"
KUBELET_UNREACHABLE: Final = "KubeletUnreachable"
REGISTRATION_REJECTED: Final = "RegistrationRejected"
SERVED_BY_ANOTHER: Final = "ServedByAnother"
AGENT_STOPPED: Final = "AgentStopped"
STARTING: Final = "Starting"

DEVICES_HEALTHY: Final = "DevicesHealthy"
ALL_HEALTHY: Final = "AllHealthy"
DEVICE_FAULT: Final = "DeviceFault"
PROBE_SILENT: Final = "ProbeSilent"

MISSING: Final = "Missing"  # health reason of a device that its driver no longer lists

CONFIG_APPLIED: Final = "ConfigApplied"
APPLIED: Final = "Applied"  # a reason here, and a condition type on DevicePolicy
CONFIG_INVALID: Final = "ConfigInvalid"
WAITING_FOR_HOLDERS: Final = "WaitingForHolders"
WAITING_FOR_DAEMON: Final = "WaitingForDaemon"
STATE_NOT_SAVED: Final = "StateNotSaved"
WAITING_FOR_KUBELET: Final = "WaitingForKubelet"
NO_CONFIG: Final = "NoConfig"

HOLDERS_KNOWN: Final = "HoldersKnown"
SYNCED: Final = "Synced"
POD_RESOURCES_UNAVAILABLE: Final = "PodResourcesUnavailable"
POD_RESOURCES_INCOMPLETE: Final = "PodResourcesIncomplete"
RATE_LIMITED: Final = "RateLimited"

ALLOCATED_ONCE: Final = "AllocatedOnce"
NO_DOUBLE_ALLOCATION: Final = "NoDoubleAllocation"
DOUBLE_ALLOCATION: Final = "DoubleAllocation"  # also an Event's reason

EXPECTED_DEVICES: Final = "ExpectedDevices"  # only where a policy expects devices
ALL_FOUND: Final = "AllFound"
TOO_FEW: Final = "Expected{expected}Found{found}"  # a template; the numbers are of the entry that lacks the most

SLICES_PUBLISHED: Final = "SlicesPublished"  # only where DRA serves devices
PUBLISHED: Final = "Published"
NOT_PUBLISHED: Final = "NotPublished"

# --- NodeDevices, by the operator ------------------------------------------------------------------------------------
POLICY_RESOLVED: Final = "PolicyResolved"
RESOLVED: Final = "Resolved"
NO_POLICY: Final = "NoPolicy"
CONFLICT: Final = "Conflict"  # also a reason of an action
POLICY_INVALID: Final = "PolicyInvalid"

ACTIONS_SYNCED: Final = "ActionsSynced"  # sums up status.actions; only where there is one
IN_SYNC: Final = "InSync"  # also an action's reason; by each of the next ones an action is not in sync
PENDING: Final = "Pending"
NOT_WRITTEN: Final = "NotWritten"  # a write or a read failed; it is tried again
FORBIDDEN: Final = "Forbidden"
REFUSED: Final = "Refused"  # by the policy's budget
STOPPED: Final = "Stopped"  # by the circuit breaker; also a reason of RolledOut
BLOCKED: Final = "Blocked"  # by a PodDisruptionBudget

# Names in status.actions, each only where a policy asks for the action.
ACTION_CAPACITY: Final = "capacity"
ACTION_EVICTIONS: Final = "evictions"
ACTION_TAINT: Final = "taint"
ACTION_LABELS: Final = "labels"
ACTION_IDLE_PODS: Final = "idlePods"

ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    ACTION_CAPACITY: (PENDING, NOT_WRITTEN, FORBIDDEN, CONFLICT),
    ACTION_EVICTIONS: (PENDING, NOT_WRITTEN, FORBIDDEN, REFUSED, STOPPED, BLOCKED),
    ACTION_TAINT: (PENDING, NOT_WRITTEN, FORBIDDEN, CONFLICT, REFUSED, STOPPED),
    ACTION_LABELS: (PENDING, NOT_WRITTEN, FORBIDDEN, CONFLICT),
    ACTION_IDLE_PODS: (PENDING, NOT_WRITTEN, FORBIDDEN),
}
"""Why an action can be out of sync; of several such actions the first one is in the reason of ActionsSynced."""


def action_reason(action: str, reason: str) -> str:
    """The reason of ActionsSynced where this action is not in sync for this reason, such as IdlePodsNotWritten."""
    return action[:1].upper() + action[1:] + reason


STALE: Final = "Stale"
NODE_NOT_READY: Final = "NodeNotReady"
AGENT_LOST: Final = "AgentLost"
HEARTBEAT_OVERDUE: Final = "HeartbeatOverdue"
FRESH: Final = "Fresh"

PROBLEM_REPORTED: Final = "ProblemReported"  # only while another monitor reports a device problem on the Node
NVSENTINEL: Final = "NVSentinel"  # reasons: the monitor that reports it
EKS_NODE_MONITORING_AGENT: Final = "EKSNodeMonitoringAgent"
AKS_NODE_PROBLEM_DETECTOR: Final = "AKSNodeProblemDetector"
NEBIUS_HEALTH_CHECK: Final = "NebiusHealthCheck"
NODE_PROBLEM_DETECTOR: Final = "NodeProblemDetector"

MAINTENANCE_SCHEDULED: Final = "MaintenanceScheduled"  # only while the cloud announces maintenance on the Node
SCHEDULED: Final = "Scheduled"
DUE: Final = "Due"  # its time has come
ONGOING: Final = "Ongoing"

# --- DevicePolicy, by the operator -----------------------------------------------------------------------------------
ACCEPTED: Final = "Accepted"  # type and reason
INVALID: Final = "Invalid"
CONFLICTED: Final = "Conflicted"
NO_CONFLICT: Final = "NoConflict"
SAME_PRIORITY: Final = "SamePriority"
NOT_ACCEPTED: Final = "NotAccepted"
NO_NODES: Final = "NoNodes"
PROGRESSING: Final = "Progressing"
DRY_RUN: Final = "DryRun"
ROLLED_OUT: Final = "RolledOut"
DONE: Final = "Done"
PAUSED: Final = "Paused"
FAILED: Final = "Failed"
ACTIONS_STOPPED: Final = "ActionsStopped"  # only where a policy taints Nodes or evicts pods; also an Event's reason
MASS_FAULT: Final = "MassFault"
RECORD_UNREADABLE: Final = "RecordUnreadable"
RECORD_MISSING: Final = "RecordMissing"
RECORD_NOT_WRITTEN: Final = "RecordNotWritten"  # nor read; it is tried again, and the breaker may be closed
NOT_STOPPED: Final = "NotStopped"

# --- elsewhere in the cluster ----------------------------------------------------------------------------------------
POD_DEVICE_HEALTHY: Final = "nodedevices.io/DeviceHealthy"  # on pods
NODE_READY: Final = "nodedevices.io/Ready"  # on Nodes
POD_DEVICE_IDLE: Final = "nodedevices.io/DeviceIdle"  # on pods, where a policy has idle.afterSeconds
IN_USE: Final = "InUse"  # its reason when it is False
NODE_DEVICES_HEALTHY: Final = "nodedevices.io/DevicesHealthy"  # on Nodes
XID_CRITICAL_ERROR: Final = "XidCriticalError"  # on Nodes, where a policy asks for it; Google's device plugin's
NOT_MONITORED: Final = "NotMonitored"  # a reason on pods with a readinessGate, when the condition is no longer written
EVENT_FAULT: Final = "DeviceFault"  # the object holds, or has, a device that is no longer well
EVENT_RECOVERED: Final = "DeviceRecovered"  # that is over
EVENT_OUT_OF_SERVICE: Final = "DeviceOutOfService"  # people took a device out of service
EVENT_IN_SERVICE: Final = "DeviceInService"  # and brought it back
EVENT_NOTICED: Final = "DeviceNotice"  # something came to a device that it holds, and changed no state
EVENT_IDLE: Final = "DeviceIdle"  # it holds a device and does not use it
EVENTS_SUPPRESSED: Final = "EventsSuppressed"  # so many were not written
EVENT_EVICTION: Final = "DeviceFaultEviction"  # the pod is about to be evicted, because of what it holds
EVENT_BLOCKED: Final = "EvictionBlocked"  # a PodDisruptionBudget does not allow it now
EVENT_REFUSED: Final = "ActionRefused"  # the budget does not allow what a policy would do about the node's fault
EVENT_UNAVAILABLE: Final = "DevicesUnavailable"  # the pod, which its node has rejected, found no devices there
EVENT_RESUMED: Final = "ActionsResumed"  # the breaker is closed
EVENT_RESUME_REFUSED: Final = "ResumeRefused"  # a person's annotation does not close it
EVENT_ROLLOUT: Final = "RolloutStopped"  # a change of configuration has cost a node devices

REASONS: Final[dict[str, dict[Status, tuple[str, ...]]]] = {
    READY: {
        "True": (AGENT_RUNNING,),
        "False": (
            PROBE_UNAVAILABLE,
            DRIVER_NOT_LOADED,
            DEVICES_LOST,
            KUBELET_UNREACHABLE,
            REGISTRATION_REJECTED,
            SERVED_BY_ANOTHER,
            AGENT_STOPPED,
        ),
        "Unknown": (STARTING,),
    },
    DEVICES_HEALTHY: {
        "True": (ALL_HEALTHY,),
        "False": (DEVICE_FAULT,),
        "Unknown": (PROBE_SILENT, DRIVER_NOT_LOADED, DEVICES_LOST, STARTING),
    },
    CONFIG_APPLIED: {
        "True": (APPLIED,),
        "False": (
            CONFIG_INVALID,
            REGISTRATION_REJECTED,
            WAITING_FOR_HOLDERS,
            WAITING_FOR_DAEMON,
            WAITING_FOR_KUBELET,
            STATE_NOT_SAVED,
        ),
        "Unknown": (NO_CONFIG,),
    },
    HOLDERS_KNOWN: {"True": (SYNCED,), "Unknown": (POD_RESOURCES_UNAVAILABLE, POD_RESOURCES_INCOMPLETE, RATE_LIMITED)},
    ALLOCATED_ONCE: {"True": (NO_DOUBLE_ALLOCATION,), "False": (DOUBLE_ALLOCATION,), "Unknown": (STARTING,)},
    EXPECTED_DEVICES: {"True": (ALL_FOUND,), "False": (TOO_FEW,), "Unknown": (STARTING,)},
    SLICES_PUBLISHED: {"True": (PUBLISHED,), "False": (NOT_PUBLISHED,)},
    POLICY_RESOLVED: {"True": (RESOLVED, NO_POLICY), "False": (CONFLICT, POLICY_INVALID)},
    ACTIONS_SYNCED: {
        "True": (IN_SYNC,),
        "False": tuple(action_reason(action, reason) for action, reasons in ACTIONS.items() for reason in reasons),
    },
    STALE: {"True": (NODE_NOT_READY, AGENT_LOST, HEARTBEAT_OVERDUE), "False": (FRESH,)},
    PROBLEM_REPORTED: {
        "True": (
            NVSENTINEL,
            EKS_NODE_MONITORING_AGENT,
            AKS_NODE_PROBLEM_DETECTOR,
            NEBIUS_HEALTH_CHECK,
            NODE_PROBLEM_DETECTOR,
        )
    },
    MAINTENANCE_SCHEDULED: {"True": (SCHEDULED, DUE, ONGOING)},
    ACCEPTED: {"True": (ACCEPTED,), "False": (INVALID,)},
    APPLIED: {"True": (APPLIED,), "False": (NOT_ACCEPTED, NO_NODES, PROGRESSING, FAILED, DRY_RUN)},
    CONFLICTED: {"True": (SAME_PRIORITY,), "False": (NO_CONFLICT,)},
    ACTIONS_STOPPED: {
        "True": (MASS_FAULT, RECORD_UNREADABLE, RECORD_MISSING, RECORD_NOT_WRITTEN),
        "False": (NOT_STOPPED,),
    },
    ROLLED_OUT: {"True": (DONE,), "False": (PROGRESSING, STOPPED, PAUSED, FAILED)},
}
"""Which reasons a condition of ours can have, by its status. The first twelve are a NodeDevices'; the last five a
DevicePolicy's."""
