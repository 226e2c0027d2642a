"""Reports of other programs on a Node that bear on its devices: monitors of its health, and the cloud that announces
maintenance. SIGNS is the whole list, each with its source. What is not in it is not read, and what says that all is
well leaves nothing in the record.

The text of a report is bounded and printable, whoever wrote the label. A condition's message is left out: it may change
with every check, and each change would be a write. `kubectl describe node` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from nodedevices_api import conditions as names
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.raw import Interned, Raw, text
from nodedevices_common.text import clip, printable
from nodedevices_common.times import rfc3339

TEXT_LIMIT: Final = 63  # characters of a label's value (Kubernetes' own limit) or of a condition's reason


class Place(Enum):
    """Where it is said; the value is what a report says of that."""

    CONDITION = ""
    LABEL = "label "
    TAINT = "taint "


class Says(Enum):
    PROBLEM = "a device, or something that devices depend on, does not work"
    SCHEDULED = "the machine will be taken away or stopped"
    ONGOING = "that has begun"


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing to look for on a Node. `value`: a condition's status, or a label's value; empty: any."""

    place: Place
    key: str
    says: Says
    by: str  # the monitor, as the reason of ProblemReported has it, or the cloud
    value: str = ""
    time: bool = False  # the label's value is seconds since 1970


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """A sign that is on the Node."""

    says: Says
    by: Interned
    text: Interned  # such as `GPUMissing=True (GPUMissing)`
    at: str = ""  # when it will be, as conditions write times; empty: it has no time, or none that can be read


def _conditions(by: str, *keys: str, says: Says = Says.PROBLEM, bad: str = "True") -> tuple[Sign, ...]:
    return tuple(Sign(Place.CONDITION, key, says, by, bad) for key in keys)


AWS, AZURE, GOOGLE = "AWS", "Azure", "Google Cloud"

SIGNS: Final[tuple[Sign, ...]] = (
    # NVSentinel, docs/INTEGRATIONS.md (9087c1f): True is a fatal fault. The label is there from quarantine to recovery.
    Sign(Place.LABEL, "dgxc.nvidia.com/nvsentinel-state", Says.PROBLEM, names.NVSENTINEL),
    *_conditions(
        names.NVSENTINEL,
        *("GpuMemWatch", "GpuThermalWatch", "GpuPcieWatch", "GpuPowerWatch", "GpuInforomWatch", "GpuSmWatch"),
        *("GpuNvlinkWatch", "GpuMcuWatch", "GpuPmuWatch", "GpuDriverWatch", "GpuCpusetWatch"),
        *("SysLogsXIDError", "SysLogsSXIDError", "SysLogsGPUFallenOff"),
        *("NVSwitchFatalError", "NVSwitchDown", "DCGMError"),
    ),
    # eks-node-monitoring-agent 51af549, pkg/conditions/conditions.go.
    *_conditions(names.EKS_NODE_MONITORING_AGENT, "AcceleratedHardwareReady", bad="False"),
    # learn.microsoft.com/azure/aks/node-problem-detector and /gpu-health-monitoring.
    *_conditions(
        names.AKS_NODE_PROBLEM_DETECTOR,
        *("GPUMissing", "NVLinkStatusInactive", "XIDErrors", "IBLinkFlapping", "GPUClockThrottling"),
        "UnhealthyNvidiaDevicePlugin",
    ),
    # docs.nebius.com/kubernetes/maintenance/health-checks.
    *_conditions(names.NEBIUS_HEALTH_CHECK, "NebiusGPUError"),
    # node-problem-detector, config/kernel-monitor.json: of its conditions those after which a driver may not answer.
    *_conditions(names.NODE_PROBLEM_DETECTOR, "KernelDeadlock", "CperHardwareErrorFatal"),
    # cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu.
    Sign(Place.LABEL, "cloud.google.com/active-node-maintenance", Says.ONGOING, GOOGLE, "ONGOING"),
    Sign(Place.TAINT, "cloud.google.com/impending-node-termination", Says.ONGOING, GOOGLE),
    Sign(Place.TAINT, "cloud.google.com/maintenance-window-started", Says.ONGOING, GOOGLE),
    Sign(Place.LABEL, "cloud.google.com/perform-maintenance", Says.SCHEDULED, GOOGLE, "true"),
    Sign(Place.LABEL, "cloud.google.com/scheduled-maintenance-time", Says.SCHEDULED, GOOGLE, time=True),
    # AKS: the first is node-problem-detector's, the others older releases of it and of add-ons write.
    *_conditions(
        AZURE,
        *("VMEventScheduled", "RebootScheduled", "RedeployScheduled", "FreezeScheduled"),
        *("PreemptScheduled", "TerminateScheduled"),
        says=Says.SCHEDULED,
    ),
    # aws-node-termination-handler, pkg/node/node.go, where its taintNode is on.
    *(
        Sign(Place.TAINT, f"aws-node-termination-handler/{what}", Says.SCHEDULED, AWS)
        for what in ("scheduled-maintenance", "spot-itn", "asg-lifecycle-termination")
    ),
    # NVSentinel's monitor of cloud providers.
    *_conditions(names.NVSENTINEL, "CSPMaintenance", says=Says.SCHEDULED),
)


def reports(conditions: Mapping[str, ConditionRecord], labels: Raw, taints: Sequence[Raw]) -> tuple[ReportRecord, ...]:
    """Return what is on the Node, in the order of SIGNS. As a rule it is nothing, and costs a few look-ups."""
    tainted = {text(taint.get("key")): text(taint.get("value")) for taint in taints}
    shown = {
        Place.CONDITION: {kind: it.status for kind, it in conditions.items()},
        Place.LABEL: labels,
        Place.TAINT: tainted,
    }
    found: list[ReportRecord] = []
    for sign in SIGNS:
        value = shown[sign.place].get(sign.key)
        if isinstance(value, str) and sign.value in {"", value}:
            at = _time(value) if sign.time else ""
            more = at or (_fit(conditions[sign.key].reason) if sign.place is Place.CONDITION else "")
            said = f"{sign.place.value}{sign.key}{f'={_fit(value)}' if value else ''}{f' ({more})' if more else ''}"
            found.append(ReportRecord(sign.says, sign.by, said, at))
    return tuple(found)


def _fit(value: str) -> str:
    return clip(printable(value[: TEXT_LIMIT + 1]), TEXT_LIMIT)


def _time(seconds: str) -> str:
    """The time; nothing where the value is no time of these centuries, and is shown as it is."""
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 10):
        return ""
    return rfc3339(datetime.fromtimestamp(int(seconds), UTC))
