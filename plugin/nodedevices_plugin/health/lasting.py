"""Conditions that are a fault only once they have lasted (FaultCondition.for_seconds).

`follow` keeps since when each line has shown such a condition. The count starts again after a line that does not show
it or cannot say, after a probe's silence, and after a restart of the agent. A device that already has the fault keeps
it meanwhile: a condition that has not lasted long enough neither begins a fault nor ends one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace
from nodedevices_probe.protocol import DriverState

from nodedevices_plugin.health.levels import of_readings
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import Inventory
from nodedevices_plugin.vendors.faults import FaultCondition, FaultSources, source_of


class LastingCondition(NamedTuple):
    """A condition that a device shows now."""

    device_id: str
    reason: str
    threshold: int
    for_seconds: float


Lasting = Mapping[LastingCondition, float]  # since when, by time.monotonic()
NONE_LASTING: Lasting = MappingProxyType({})


def follow(
    before: Lasting, inventory: Inventory, rules: HealthRules, vendors: FaultSources, *, monotonic: float
) -> dict[LastingCondition, float]:
    """Return the conditions that have to last and that these devices show now, with the time since when."""
    driver, came = inventory.driver, inventory.line_monotonic
    if driver is None or driver.state is not DriverState.LOADED or came is None:
        return {}
    if monotonic - came >= rules.silence_seconds:
        return {}
    keys = (
        _key(device.fact.id, condition)
        for device in inventory.devices
        for condition in of_readings(device, source_of(vendors, device.fact), rules)
        if condition.evident and condition.for_seconds
    )
    return {key: before.get(key, came) for key in keys}


def settled(
    conditions: Iterable[FaultCondition], device_id: str, lasting: Lasting, *, monotonic: float
) -> tuple[FaultCondition, ...]:
    """Return one condition for each reason: of several, the first that is evident, else the first that is not over.
    One that has not lasted long enough is not readable yet."""
    found: dict[str, FaultCondition] = {}
    for given in conditions:
        condition = given
        if given.evident and given.for_seconds:
            since = lasting.get(_key(device_id, given))
            if since is None or monotonic - since < given.for_seconds:
                condition = replace(given, evident=None)
        known = found.get(given.reason)
        if known is None or _certainty(condition) > _certainty(known):
            found[given.reason] = condition
    return tuple(found.values())


def deadlines(lasting: Lasting) -> list[float]:
    """Return when (time.monotonic()) what is shown now will have lasted long enough."""
    return [since + key.for_seconds for key, since in lasting.items()]


def _key(device_id: str, condition: FaultCondition) -> LastingCondition:
    return LastingCondition(device_id, condition.reason, condition.threshold, condition.for_seconds)


def _certainty(condition: FaultCondition) -> int:
    return (False, None, True).index(condition.evident)
