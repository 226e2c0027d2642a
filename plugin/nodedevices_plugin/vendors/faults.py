"""FaultSource: the part of the port of a vendor that tells which faults its devices have.

It answers three questions: what one event means (`event`), what an event means together with the ones around it
(`decide`), and which conditions a device's readings show (`read`). The machine in health/ does the rest, the same for
all vendors: it remembers, waits, follows a policy's rules, holds down and recovers on evidence, and knows no vendor's
numbers.

Devices of a vendor that is not registered have PLAIN. The conditions of every device (lost, not listed, does not
answer, requires an action) hold for them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from nodedevices_probe.kmsg import PCIE_FATAL, PCIE_NON_FATAL
from nodedevices_probe.node.sysfs import NODE_MISSING
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Readings

from nodedevices_plugin.model import HealthState


class Effect(StrEnum):
    """The effect of an event on its device's state."""

    NOTICE = "Notice"  # the workload's own error, or one contained in it: shown, the state stays
    COUNTED = "Counted"  # counted, and not shown
    DEGRADED = "Degraded"  # shown, still offered
    UNDECIDED = "Undecided"  # its meaning depends on the events around it: decided after some seconds
    UNHEALTHY = "Unhealthy"  # not offered
    REPAIRED = "Repaired"  # the driver has repaired the device: the evidence that Meaning.repairs need


class Meaning(Struct, frozen=True, kw_only=True):
    """The meaning of one event by itself."""

    reason: str  # the health reason, which a policy's rules name: Xid79, LinkFlap
    effect: Effect
    message: str  # what happened, for people; without what to do
    action: str = "None"  # recoveryAction that it requires, unless the driver itself reports another
    repair: str = "Inspect"  # required where only a policy makes it Unhealthy, and `action` is None
    domain: str = "Device"  # Application | Device | Node
    code: int | None = None  # the vendor's number
    contained: bool = False  # an event that names a partition concerns that partition alone
    must_leave: bool = False  # the device is gone: an answer proves nothing until it has left and come back
    may_be_unhealthy: bool = True  # while undecided: no new pod gets the device
    repairs: frozenset[str] = frozenset()  # reasons of faults that came before it
    driver_decides: bool = False  # while undecided: the driver's answer after it is enough, and a repeat is decided
    decides_others: bool = False  # it decides undecided events around it: a flood of others must not hide it


class FaultCondition(Struct, frozen=True, kw_only=True):
    """One condition that the readings of a line show. `evident`: it lasts, it is over, or (None) it cannot be read.
    `unused`: the state of a device that is in no resource, where it differs: a port without a cable. `for_seconds`: it
    is a fault once each line has shown it for so long (health.levels). `threshold`: tells conditions of one reason
    apart. `opt_in`: no fault unless a rule of `health.rules` names the reason, not by a glob: it is normal on machines
    in good order."""

    reason: str
    state: HealthState
    message: str
    evident: bool | None
    action: str = "None"
    ends_by_itself: bool = False  # its end proves that it was repaired
    unused: HealthState | None = None
    for_seconds: float = 0
    threshold: int = 0
    opt_in: bool = False


class CounterLimit(Struct, frozen=True, kw_only=True):
    """A condition that holds while a counter of `readings.counters` has risen by more than `limit` within the window,
    and has done so for `for_seconds`. Rows with the same reason are one condition, which any of them makes evident."""

    counter: str
    limit: int
    window_seconds: float
    for_seconds: float = 0.0
    most: int | None = None  # where the counter stops: from there on it cannot be read
    reason: str
    state: HealthState = HealthState.DEGRADED
    unused: HealthState | None = None
    message: str
    action: str = "None"


EVERY = "*"
CODED = "xid"  # the kind of an event that has a number of the vendor's


class FaultSource:
    """Tells which faults one maker's devices have; by default only the conditions of every device. Without state."""

    reasons: Sequence[str] = ()  # those that `event` can give beside `meanings`: of numbers
    meanings: Mapping[str, Meaning] = {}  # of events by their kind
    counter_limits: Sequence[CounterLimit] = ()  # how fast counters may rise (health.levels)

    def kind_of(self, event: ProbeEvent) -> str:
        """Return the kind as which `event` is to be asked about it, where details tell events of one kind apart."""
        return event.kind

    def event(self, kind: str, code: int | None) -> Meaning | None:
        """Return the meaning of an event of that kind and number; None: it does not concern health. An event with a
        code (kind CODED) is looked up again by it, also after a restart of the agent: it must always have a meaning. By
        default it is shown, and the device stays in service."""
        if kind != CODED or code is None:
            return self.meanings.get(kind)
        return Meaning(reason=f"Code{code}", effect=Effect.DEGRADED, message=f"event {code}", code=code)

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        """Return the state that an undecided event causes; None: none. `together`: the codes of all events within the
        window. `driver_action`: the recovery action that the driver reports, None where it reports none."""
        return None

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        """Return every condition of a device that answers, evident or not."""
        return ()

    def every_reason(self) -> tuple[str, ...]:
        """Return every reason that a device can have, which rules may name."""
        by_kind = (meaning.reason for meaning in self.meanings.values() if meaning.effect is not Effect.REPAIRED)
        read = (condition.reason for condition in self.read(Readings()))
        counted = (limit.reason for limit in self.counter_limits)
        return tuple(dict.fromkeys((*self.reasons, *read, *counted, *by_kind)))


PLAIN = FaultSource()
FaultSources = Mapping[str, FaultSource]  # by `maker/type`, `*/type` or maker: see source_of


def source_of(sources: FaultSources, fact: DeviceFact) -> FaultSource:
    """Return the source for a device: its maker's for the type, every maker's for the type, its maker's; else PLAIN."""
    keys = (f"{fact.vendor}/{fact.type}", f"{EVERY}/{fact.type}", fact.vendor)
    return next((sources[key] for key in keys if key in sources), PLAIN)


def meaning_of(vendor: FaultSource, event: ProbeEvent) -> Meaning | None:
    """Return the meaning of an event of one of the vendor's devices."""
    return vendor.event(vendor.kind_of(event), event.xid)


# --- conditions that several vendors have --------------------------------------------------------------------------
def node_missing(readings: Readings) -> FaultCondition:
    """Return the condition of a missing device node, which a probe reports in `conditions`."""
    return FaultCondition(
        reason="DeviceNodeMissing",
        state=HealthState.UNHEALTHY,
        message="a device node that containers need is not there, or not visible to the agent (component all-hardware)",
        evident=NODE_MISSING in readings.conditions,
        action="Inspect",
        ends_by_itself=True,
    )


def hot(readings: Readings) -> FaultCondition:
    return FaultCondition(
        reason="ThermalSlowdown",
        state=HealthState.DEGRADED,
        message="a sensor of the device is at its critical temperature",
        evident=readings.thermal_slowdown,
        ends_by_itself=True,
    )


# Uncorrectable PCIe errors (AER). The kernel resets the link after a fatal one; a device that does not come back is
# lost, or does not answer, which its own probe sees.
PCIE_MEANINGS: Mapping[str, Meaning] = {
    PCIE_NON_FATAL: Meaning(
        reason="PcieError", effect=Effect.NOTICE, message="an uncorrectable PCIe error of one transaction (AER)"
    ),
    PCIE_FATAL: Meaning(
        reason="PcieFatal",
        effect=Effect.DEGRADED,
        message="a fatal PCIe error, after which the kernel resets the link (AER)",
        repair="ResetDevice",
    ),
}
