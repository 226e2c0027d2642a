"""The entries of `status.devices` for tests: a device with `partitions`, as the agent lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def listed(devices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries: each of a device's `partitions` is one of its own behind it, and has the device's health
    where it is given none."""
    found = []
    for device in devices:
        whole = {key: value for key, value in device.items() if key != "partitions"}
        inherited: dict[str, Any] = {key: whole[key] for key in ("type", "health") if key in whole}
        found.append(whole)
        for index, part in enumerate(device.get("partitions", ())):
            found.append({"index": index, **inherited, "parent": whole["name"], **part})
    return found
