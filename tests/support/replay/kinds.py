"""What failed in a published run of 16,384 GPUs, how often, and how each kind shows to a probe.

The counts are those of table 5 of The Llama 3 Herd of Models (arXiv 2407.21783): 419 unexpected interruptions of a job
on 16,384 H100 within 54 days, by root cause. The table says nothing about how a cause showed: the symptoms, their
weights and the repairs are ours, by NVIDIA's XID catalogue and its guides to GPU memory errors and field 230.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal

PUBLISHED_GPUS = 16_384
PUBLISHED_DAYS = 54
GPUS = 8  # of a node; as many NICs: the paper's servers have one 400 Gbit/s NIC for each GPU


class Severity(IntEnum):
    """What a fault makes of its device."""

    NONE = 0  # a workload's own error: a notice, and the device stays as it is
    DEGRADED = 1
    UNHEALTHY = 2


class Cure(Enum):
    """What ends a symptom."""

    HOLD_DOWN = "nothing is to be done"
    ITSELF = "it ends by itself"
    RESET = "the device is reset, beside the agent"
    RESET_AWAY = "the device is reset while the agent is away (docs/troubleshooting.md)"
    REBOOT = "the node is rebooted"
    REPLACE = "the device is replaced"


class Away(Enum):
    """What happens to the whole node beside its devices."""

    REBOOT = "the host is down, and comes back with another boot"
    UNLOADED = "the driver of the GPUs is unloaded and loaded again"
    SILENT = "the probe hangs until another process takes its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """How one cause shows on the devices that it hits. `readings` (Readings' names) last until the cure."""

    device: Literal["gpu", "nic"] = "gpu"
    many: int = 1  # of a node
    xids: tuple[int, ...] = ()
    later_xids: tuple[int, ...] = ()  # two seconds after the first
    readings: Mapping[str, Any] = field(default_factory=dict)
    absent: bool = False  # it is no longer listed
    flaps: int = 0  # so many times it is over, and comes again 20 s later
    severity: Severity = Severity.UNHEALTHY
    reasons: frozenset[str]  # that its verdict may have; of a workload's error the notices
    cures: tuple[Cure, ...] = (Cure.RESET, Cure.RESET_AWAY, Cure.REBOOT)

    @property
    def signs(self) -> tuple[int, ...]:
        """XIDs that say something of the device. 63 does not: a row is to be remapped, and a reading says so."""
        return tuple(each for each in (*self.xids, *self.later_xids) if each != 63)

    @property
    def undecided(self) -> bool:
        """True when XIDs that come around it decide what it is: seconds later (vendors/nvidia/xids.py)."""
        return not {45, 48, 74}.isdisjoint((*self.xids, *self.later_xids))

    @property
    def may_be_fatal(self) -> bool:
        """True when nothing may get the device until then."""
        return not {48, 74}.isdisjoint(self.xids)

    @property
    def hides_others(self) -> bool:
        """True when the device shows nothing else meanwhile."""
        return self.absent or "lost" in self.readings or "error" in self.readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """One way in which a kind shows. `weight`: how often, beside the kind's other ways."""

    weight: int = 1
    symptoms: tuple[Symptom, ...] = ()
    away: Away | None = None
    rack: bool = False  # both nodes of a rack: the paper's racks have two servers of eight GPUs and a switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A row of the table. `count`: in PUBLISHED_DAYS, of PUBLISHED_GPUS."""

    name: str
    count: int
    shows: tuple[Show, ...]

    def per_second(self, gpus: int, factor: float) -> float:
        return self.count * factor * gpus / PUBLISHED_GPUS / (PUBLISHED_DAYS * 86_400)


def _unhealthy(*reasons: str, **symptom: Any) -> Symptom:
    if "recovery_action" in symptom.get("readings", {}):
        reasons = (*reasons, "RecoveryAction")
    codes = [f"Xid{each}" for each in (*symptom.get("xids", ()), *symptom.get("later_xids", ()))]
    return Symptom(reasons=frozenset((*reasons, *codes)), **symptom)


def _degraded(*reasons: str, **symptom: Any) -> Symptom:
    return _unhealthy(*reasons, severity=Severity.DEGRADED, **symptom)


def _notice(*xids: int, **symptom: Any) -> Symptom:
    return _unhealthy(xids=xids, severity=Severity.NONE, cures=(Cure.HOLD_DOWN,), **symptom)


_RESET = {"recovery_action": "ResetDevice"}
_ECC = {"ecc_uncorrectable_volatile": 1}
_REPLACE = (Cure.REPLACE,)
_REBOOT = (Cure.REBOOT,)
_ITSELF = (Cure.ITSELF,)
_LOST = _unhealthy("FallenOffBus", xids=(79,), readings={"lost": True}, cures=(*_REBOOT, *_REBOOT, *_REPLACE))
_NO_LINK = _unhealthy("LinkDown", device="nic", readings={"conditions": ("linkDown",)}, cures=_ITSELF)
_HOST_DOWN = (Show(away=Away.REBOOT),)

KINDS = (
    Kind(
        name="GPU",  # "Faulty GPU", which has NVLink's errors in it
        count=148,
        shows=(
            Show(weight=4, symptoms=(_LOST,)),
            Show(symptoms=(_LOST,), away=Away.SILENT),
            Show(weight=2, symptoms=(_unhealthy(xids=(62,), readings=_RESET),)),
            Show(weight=2, symptoms=(_unhealthy(xids=(109,), readings=_RESET),)),
            Show(symptoms=(_unhealthy(xids=(46, 45), readings=_RESET),)),
            Show(weight=2, symptoms=(_unhealthy(xids=(74,), readings=_RESET),)),
            Show(symptoms=(_unhealthy(xids=(143,), readings={"recovery_action": "RebootNode"}, cures=_REBOOT),)),
            Show(weight=2, symptoms=(_degraded(xids=(74,), cures=(Cure.HOLD_DOWN,)),)),
            Show(symptoms=(_degraded(xids=(167,), cures=(Cure.HOLD_DOWN,)),)),
            Show(symptoms=(_unhealthy("Missing", absent=True, cures=(*_REBOOT, *_REPLACE)),)),
            Show(symptoms=(_unhealthy("ProbeError", readings={"error": "NVML: Unknown Error"}, cures=_ITSELF),)),
        ),
    ),
    Kind(
        name="GPU HBM3 memory",
        count=72,
        shows=(
            Show(
                weight=4,
                symptoms=(
                    _unhealthy(
                        "EccUncorrectable",
                        "RowRemapPending",
                        xids=(48,),
                        later_xids=(63, 94),
                        readings={**_ECC, "remap_pending": True, "recovery_action": "DrainAndReset"},
                    ),
                ),
            ),
            Show(
                weight=3,
                symptoms=(
                    _unhealthy("EccUncorrectable", xids=(48,), later_xids=(95, 45), readings={**_ECC, **_RESET}),
                ),
            ),
            Show(weight=2, symptoms=(_degraded("RowRemapPending", xids=(63,), readings={"remap_pending": True}),)),
            Show(
                symptoms=(_unhealthy("RowRemapFailure", xids=(64,), readings={"remap_failure": True}, cures=_REPLACE),)
            ),
        ),
    ),
    Kind(
        name="Software bug",
        count=54,
        shows=(
            Show(weight=3, symptoms=(_notice(31, 45),)),
            Show(weight=2, symptoms=(_notice(13, 43),)),
            Show(symptoms=(_notice(31, many=GPUS),)),
            Show(symptoms=(_notice(45, many=GPUS),)),
            Show(symptoms=(_notice(69),)),
        ),
    ),
    Kind(
        name="Network switch or cable",
        count=35,
        shows=(
            Show(weight=6, symptoms=(_NO_LINK,)),
            Show(
                weight=2,
                symptoms=(
                    _unhealthy(
                        "LinkDown", device="nic", readings={"conditions": ("linkDown",)}, cures=_ITSELF, flaps=4
                    ),
                ),
            ),
            Show(
                symptoms=(
                    _unhealthy(
                        "LinkDown", device="nic", many=GPUS, readings={"conditions": ("linkDown",)}, cures=_ITSELF
                    ),
                ),
                rack=True,
            ),
        ),
    ),
    Kind(name="Host maintenance", count=32, shows=(Show(weight=2, away=Away.REBOOT), Show(away=Away.UNLOADED))),
    Kind(
        name="GPU SRAM memory",
        count=19,
        shows=(
            Show(weight=3, symptoms=(_unhealthy("EccUncorrectable", xids=(48,), readings={**_ECC, **_RESET}),)),
            Show(
                symptoms=(
                    _unhealthy(
                        "SramThresholdExceeded",
                        "EccUncorrectable",
                        xids=(48,),
                        readings={**_ECC, **_RESET, "sram_threshold_exceeded": True},
                        cures=_REPLACE,
                    ),
                )
            ),
        ),
    ),
    Kind(
        name="GPU system processor",
        count=17,
        shows=(
            Show(weight=3, symptoms=(_unhealthy(xids=(119,), readings=_RESET),)),
            Show(symptoms=(_unhealthy(xids=(120,), readings=_RESET),)),
        ),
    ),
    Kind(
        name="NIC",
        count=7,
        shows=(
            Show(weight=2, symptoms=(_unhealthy("Missing", device="nic", absent=True, cures=(*_REBOOT, *_REPLACE)),)),
            Show(
                symptoms=(
                    _unhealthy(
                        "DriverUnbound", device="nic", readings={"conditions": ("driverUnbound",)}, cures=_ITSELF
                    ),
                )
            ),
        ),
    ),
    # Its cause is unknown: processes are ended on every GPU of the job, or no device shows anything.
    Kind(name="NCCL watchdog timeout", count=7, shows=(Show(symptoms=(_notice(45, many=GPUS),)), Show())),
    Kind(name="Silent data corruption", count=6, shows=(Show(),)),
    Kind(
        name="GPU thermal interface, sensor",
        count=6,
        shows=(Show(symptoms=(_degraded("ThermalSlowdown", readings={"thermal_slowdown": True}, cures=_ITSELF),)),),
    ),
    Kind(name="SSD", count=3, shows=_HOST_DOWN),
    Kind(name="Power supply", count=3, shows=_HOST_DOWN),
    Kind(name="Server chassis", count=2, shows=_HOST_DOWN),
    Kind(
        name="IO expansion board",  # half of the node's GPUs and NICs are behind it
        count=2,
        shows=(
            Show(
                symptoms=(
                    _unhealthy("FallenOffBus", xids=(79,), readings={"lost": True}, many=GPUS // 2, cures=_REBOOT),
                    _unhealthy("Missing", device="nic", absent=True, many=GPUS // 2, cures=_REBOOT),
                )
            ),
        ),
    ),
    Kind(name="Dependency", count=2, shows=(Show(),)),
    Kind(name="CPU", count=2, shows=_HOST_DOWN),
    Kind(name="System memory", count=2, shows=_HOST_DOWN),
)
