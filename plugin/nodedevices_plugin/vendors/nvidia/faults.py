"""NVIDIA's faults: XIDs by the catalogue (xids.py) and NVML's other events. What readings mean: conditions.

Some XIDs mean nothing certain alone (NVIDIA's catalogue calls them workflows): 45 follows a killed process or a worse
error, 48 may be contained in its application (94), 74 and 144-150 are NVLink's, of which the driver itself knows more
(field 230, read as recoveryAction). docs/catalogue.md has where others judge differently, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import CODED, Effect, Meaning, pcie_meanings
from nodedevices_plugin.vendors.nvidia import conditions, kernel_log
from nodedevices_plugin.vendors.nvidia.conditions import NO_ACTION, RESET
from nodedevices_plugin.vendors.nvidia.xids import MAX_XID, Xid, look_up

CLEANUP = 45  # a killed process was cleaned up: the one undecided XID that is never fatal by itself
DOUBLE_BIT = 48
NVLINK = 74
REMAPPED = 63
CONTAINED = 94
DECIDE_48 = frozenset({REMAPPED, CONTAINED})

# Events beside XIDs (nvml.h nvmlEventType*): the reading recoveryAction says what they require.
_EVENTS: Mapping[str, Meaning] = {
    "gpu-unavailable": Meaning(
        reason="GpuUnavailable",
        effect=Effect.UNHEALTHY,
        message="the driver reports the GPU as unavailable",
        action=RESET,
        repair=RESET,
    ),
    "poison": Meaning(
        reason="Poison", effect=Effect.DEGRADED, message="poisoned data was consumed", action=NO_ACTION, repair=RESET
    ),
    "ecc-storm": Meaning(
        reason="EccStorm",
        effect=Effect.DEGRADED,
        message="a storm of corrected ECC errors",
        action=NO_ACTION,
        repair=RESET,
    ),
    **pcie_meanings(),
}
REASONS = (
    *(f"Xid{number}" for number in range(1, MAX_XID + 1)),
    *(known.reason for known in _EVENTS.values()),
    "DeviceNodeMissing",
    *conditions.REASONS,
    *kernel_log.REASONS,
)


def event(kind: str, code: int | None) -> Meaning | None:
    if kind == CODED:
        return None if code is None else meaning(look_up(code))
    return _EVENTS.get(kind) or kernel_log.event(kind, code)


def decide(code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
    """Return the state that an XID causes when no worse one came beside it."""
    row = look_up(code)
    if code == CLEANUP:  # alone or after an application's error: a process was cleaned up
        return None
    if code == DOUBLE_BIT and CONTAINED in together:
        return HealthState.DEGRADED
    # A row that is marked (63) is remapped with the next reset: NVIDIA's workflow for 48 says to drain, then to reset.
    # A driver that requires nothing has said that the GPU can be used again.
    if code == DOUBLE_BIT and REMAPPED in together and driver_action == NO_ACTION:
        return HealthState.DEGRADED
    if row.action == "Inspect" or (code == NVLINK and driver_action == NO_ACTION):
        return HealthState.DEGRADED
    return HealthState.UNHEALTHY


def meaning(row: Xid) -> Meaning:
    """Return the meaning of a row of the catalogue."""
    return Meaning(
        reason=f"Xid{row.number}",
        effect=row.effect,
        message=f"{row.meaning} (XID {row.number})",
        action=row.action,
        repair=RESET,
        domain=row.domain,
        code=row.number,
        contained=row.contained,
        must_leave=row.off_bus,
        may_be_unhealthy=row.number != CLEANUP,
        driver_decides=row.effect is Effect.UNDECIDED and row.action == "Inspect",
        decides_others=row.number in DECIDE_48,
    )
