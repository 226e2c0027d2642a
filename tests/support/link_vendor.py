"""A vendor of the tests: NICs whose link flaps (an event) or is down (a reading). All that it is stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import CODED, Effect, FaultCondition, FaultSource, Meaning
from nodedevices_probe.protocol import Readings

FLAP = Meaning(reason="LinkFlap", effect=Effect.DEGRADED, message="the link went down and came back", repair="Replace")
CODES: Mapping[int, Meaning] = {
    7: Meaning(reason="Nic7", effect=Effect.UNDECIDED, message="the firmware halted (7)", action="ResetBus", code=7),
    8: Meaning(reason="Nic8", effect=Effect.NOTICE, message="a queue pair of a program broke (8)", code=8),
}
UNKNOWN = Meaning(reason="NicUnknown", effect=Effect.COUNTED, message="", code=0)


class LinkVendor(FaultSource):
    name = "example"
    reasons: Sequence[str] = ("LinkFlap", "LinkDown", "Nic7", "Nic8")

    def event(self, kind: str, code: int | None) -> Meaning | None:
        if kind == CODED and code is not None:
            return CODES.get(code, UNKNOWN)
        return FLAP if kind == "LinkFlap" else None

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        """With a broken queue pair it was the program's doing."""
        return None if 8 in together else HealthState.UNHEALTHY

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        down = "linkDown" in readings.conditions
        return (
            FaultCondition(
                reason="LinkDown",
                state=HealthState.UNHEALTHY,
                message="the link is down; is the cable plugged in?",
                evident=down,
                action="Inspect",
                ends_by_itself=True,
            ),
        )
