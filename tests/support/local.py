"""Settings of an agent that waits for no operator: most tests have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


def at_once(
    arguments: Sequence[str], environment: Mapping[str, str], vendors: Vendors = VENDORS, *, wait_seconds: float = 0.0
) -> Local:
    """As these flags and variables say. `wait_seconds`: for the operator after all."""
    return replace(parse(arguments, environment, vendors), operator_wait_seconds=wait_seconds)
