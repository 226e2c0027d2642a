"""Conditions: agreed names, and times that move only with the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nodedevices_api import conditions
from nodedevices_api.conditions import REASONS
from nodedevices_api.meta import Condition, condition, find

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def ready(
    *, now: datetime, previous: Condition | None, status: conditions.Status = "True", message: str = ""
) -> Condition:
    return condition(
        conditions.READY, status, conditions.AGENT_RUNNING, message, previous=previous, now=now, generation=3
    )


def test_an_unchanged_status_keeps_its_time_and_another_begins_now() -> None:
    assert ready(now=NOW, previous=None).last_transition_time == NOW
    first = ready(now=NOW, previous=None)
    assert ready(now=LATER, previous=first, message="all is well").last_transition_time == NOW
    first = ready(now=NOW, previous=None)
    assert ready(now=LATER, previous=first) == first
    first = ready(now=NOW, previous=None)
    assert ready(now=LATER, previous=first, status="False").last_transition_time == LATER
    other = condition(conditions.STALE, "True", conditions.AGENT_LOST, previous=None, now=NOW)
    assert ready(now=LATER, previous=other).last_transition_time == LATER


def test_a_condition_is_found_by_its_type() -> None:
    one = ready(now=NOW, previous=None)
    assert find((one,), conditions.READY) is one
    assert find((one,), conditions.STALE) is None


AGREED = """
Ready: True AgentRunning; False ProbeUnavailable DriverNotLoaded DevicesLost KubeletUnreachable RegistrationRejected
  ServedByAnother AgentStopped; Unknown Starting
DevicesHealthy: True AllHealthy; False DeviceFault; Unknown ProbeSilent DriverNotLoaded DevicesLost Starting
ConfigApplied: True Applied; False ConfigInvalid RegistrationRejected WaitingForHolders WaitingForDaemon
  WaitingForKubelet StateNotSaved; Unknown NoConfig
HoldersKnown: True Synced; Unknown PodResourcesUnavailable PodResourcesIncomplete RateLimited
AllocatedOnce: True NoDoubleAllocation; False DoubleAllocation; Unknown Starting
ExpectedDevices: True AllFound; False Expected{expected}Found{found}; Unknown Starting
SlicesPublished: True Published; False NotPublished
PolicyResolved: True Resolved NoPolicy; False Conflict PolicyInvalid
ActionsSynced: True InSync; False CapacityPending CapacityNotWritten CapacityForbidden CapacityConflict
  EvictionsPending EvictionsNotWritten EvictionsForbidden EvictionsRefused EvictionsStopped EvictionsBlocked
  TaintPending TaintNotWritten TaintForbidden TaintConflict TaintRefused TaintStopped
  LabelsPending LabelsNotWritten LabelsForbidden LabelsConflict
  IdlePodsPending IdlePodsNotWritten IdlePodsForbidden
Stale: True NodeNotReady AgentLost HeartbeatOverdue; False Fresh
ProblemReported: True NVSentinel EKSNodeMonitoringAgent AKSNodeProblemDetector NebiusHealthCheck NodeProblemDetector
MaintenanceScheduled: True Scheduled Due Ongoing
Accepted: True Accepted; False Invalid
Applied: True Applied; False NotAccepted NoNodes Progressing Failed DryRun
Conflicted: True SamePriority; False NoConflict
ActionsStopped: True MassFault RecordUnreadable RecordMissing RecordNotWritten; False NotStopped
RolledOut: True Done; False Progressing Stopped Paused Failed
"""


def test_the_table_of_reasons_is_the_agreed_one_and_every_reason_makes_a_condition() -> None:
    shown = [
        f"{kind}: " + "; ".join(f"{status} {' '.join(each)}" for status, each in table.items())
        for kind, table in REASONS.items()
    ]
    assert " ".join(shown).split() == AGREED.split()
    for kind, table in REASONS.items():
        for status, reasons in table.items():
            for reason in (each.format(expected=8, found=7) for each in reasons):
                assert condition(kind, status, reason, previous=None, now=NOW).reason == reason
