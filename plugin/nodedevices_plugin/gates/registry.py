"""The gates, in the order in which they are asked: of several that block an id, the first says why."""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_plugin.gates.awaited import daemon_in_use, daemon_not_ready, daemon_taken, libraries, pods_unknown
from nodedevices_plugin.gates.base import Gate
from nodedevices_plugin.gates.devices import cordon, health, place, removed_probe
from nodedevices_plugin.gates.held import full, held_otherwise, waiting_change

GATES: Sequence[Gate] = (
    health,
    cordon,
    removed_probe,
    place,
    held_otherwise,
    waiting_change,
    daemon_in_use,
    daemon_taken,
    daemon_not_ready,
    libraries,
    pods_unknown,
    full,
)
