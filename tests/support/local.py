"""Settings of an agent that waits for no operator: most tests have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodedevices_plugin.settings.effective import Effective, understood
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.sharing.registry import MODES, SharingModes
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


def at_once(
    arguments: Sequence[str], environment: Mapping[str, str], vendors: Vendors = VENDORS, *, wait_seconds: float = 0.0
) -> Local:
    """As these flags and variables say. `wait_seconds`: for the operator after all."""
    return replace(parse(arguments, environment, vendors), operator_wait_seconds=wait_seconds)


def restored(saved: Mapping[str, Any] | None, modes: SharingModes = MODES, vendors: Vendors = VENDORS) -> Effective:
    """Return a saved configuration as the next start reads it; what of the node's settings is not understood aside."""
    found, why = understood(saved, modes, vendors)
    assert found is not None, why
    return found
