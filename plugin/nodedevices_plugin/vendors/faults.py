"""The port of a vendor, as far as it is about faults: an optional interface of a vendor.

It answers three questions: what does one event mean (`event`), what do events come to whose meaning depends on what
came beside them (`decide`), and what do a device's readings say (`read`). The machine in health/ does the rest, the
same for all: it remembers, waits, follows a policy's rules, holds down and recovers on evidence, and knows no vendor's
numbers.

Devices of a vendor without it, or that is not registered, have PLAIN: what the probe says of every device (lost, not
listed, does not answer, requires an action) holds for them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from nodedevices_probe.node.drm import NODE_MISSING
from nodedevices_probe.protocol import DeviceFact, Readings

from nodedevices_plugin.model import HealthState


class Effect(StrEnum):
    """What an event does to the state of its device."""

    NOTICE = "Notice"  # the workload's own error, or one contained in it: said, and the state stays
    COUNTED = "Counted"  # neither: only counted
    DEGRADED = "Degraded"  # shown, still offered
    UNDECIDED = "Undecided"  # its meaning depends on what comes beside it: decided after some seconds
    UNHEALTHY = "Unhealthy"  # not offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What one event means by itself."""

    reason: str  # the health reason, which a policy's rules name: Xid79, LinkFlap
    effect: Effect
    message: str  # what happened, for people; without what to do
    action: str = "None"  # SCHEMA recoveryAction that it requires, unless the driver itself says otherwise
    repair: str = "Inspect"  # the same where only a policy calls it Unhealthy, and `action` is None
    domain: str = "Device"  # Application | Device | Node
    code: int | None = None  # the vendor's number of it
    contained: bool = False  # an event that names a partition concerns that partition alone
    must_leave: bool = False  # the device is gone: that it answers proves nothing until it has left and come back
    may_be_unhealthy: bool = True  # of one that is undecided: no new pod gets the device meanwhile
    decides_others: bool = False  # it bears on undecided ones beside it: a flood of others must not hide it


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the readings of one line say of one thing: it lasts, it is over, or (None) cannot be read at present.
    `unused`: its state of a device that is in no resource, where that is another: a port without a cable."""

    reason: str
    state: HealthState
    message: str
    evident: bool | None
    action: str = "None"
    ends_by_itself: bool = False  # its end is itself the proof that it was repaired
    unused: HealthState | None = None


@runtime_checkable
class FaultSource(Protocol):
    """What is wrong with one maker's devices. Frozen, without state."""

    @property
    def name(self) -> str:
        """As the probe's line has it, `devices[].vendor`; of what every maker builds (vendors.base.EveryMaker) the
        vendor's."""
        ...

    @property
    def reasons(self) -> Sequence[str]:
        """Every reason that `event` and `read` can give: what a policy's rules may name."""
        ...

    def event(self, kind: str, code: int | None) -> Meaning | None:
        """What an event of that kind and number means; None: nothing that concerns health. What has a code (kind CODED)
        is looked up again by it, also after a restart of the agent: it must always have a meaning."""
        ...

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        """What an undecided event comes to. `together`: the codes of all that came within the window.
        `driver_action`: the recovery action that the driver reports, None where it reports none. Returns None for
        nothing."""
        ...

    def read(self, readings: Readings) -> tuple[Condition, ...]:
        """Every condition of a device that answers, evident or not."""
        ...


EVERY = "*"
CODED = "xid"  # the kind of an event that has a number of the vendor's
FaultSources = Mapping[str, FaultSource]  # by `maker/type`, `*/type` or maker: see source_of


class NoCodes:
    """Events of a maker of whose codes nothing is known: for its class to inherit."""

    def event(self, kind: str, code: int | None) -> Meaning | None:
        """A coded one has a meaning for everybody: it is shown, and the device stays in service."""
        if kind != CODED or code is None:
            return None
        return Meaning(reason=f"Code{code}", effect=Effect.DEGRADED, message=f"event {code}", code=code)

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        return None


class Plain(NoCodes):
    """A maker of which nothing is known beyond what every probe says."""

    name = ""
    reasons: Sequence[str] = ()

    def read(self, readings: Readings) -> tuple[Condition, ...]:
        return ()


PLAIN = Plain()


def source_of(sources: FaultSources, fact: DeviceFact) -> FaultSource:
    """For a device: of its maker's for that type, of every maker's for that type, of its maker's; else PLAIN."""
    keys = (f"{fact.vendor}/{fact.type}", f"{EVERY}/{fact.type}", fact.vendor)
    return next((sources[key] for key in keys if key in sources), PLAIN)


# --- what several vendors' devices say in the same words -----------------------------------------------------------
def node_missing(readings: Readings) -> Condition:
    """A probe that looks for device nodes says so in `conditions`."""
    return Condition(
        reason="DeviceNodeMissing",
        state=HealthState.UNHEALTHY,
        message="a device node that containers need is not there, or not visible to the agent (component host-dev)",
        evident=NODE_MISSING in readings.conditions,
        action="Inspect",
        ends_by_itself=True,
    )


def hot(readings: Readings) -> Condition:
    return Condition(
        reason="ThermalSlowdown",
        state=HealthState.DEGRADED,
        message="a sensor of the device is at its critical temperature",
        evident=readings.thermal_slowdown,
        ends_by_itself=True,
    )
