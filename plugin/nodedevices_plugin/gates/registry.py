"""The gates, in the order in which they are asked: of several that block an id, the first says why."""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_plugin.gates.base import Gate
from nodedevices_plugin.gates.cordon import cordon
from nodedevices_plugin.gates.full import full
from nodedevices_plugin.gates.health import health
from nodedevices_plugin.gates.held_otherwise import held_otherwise
from nodedevices_plugin.gates.libraries import libraries
from nodedevices_plugin.gates.mps import daemon_in_use, daemon_not_ready, daemon_taken
from nodedevices_plugin.gates.place import place
from nodedevices_plugin.gates.pods import pods_unknown
from nodedevices_plugin.gates.removed_probe import removed_probe
from nodedevices_plugin.gates.waiting_change import waiting_change

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
