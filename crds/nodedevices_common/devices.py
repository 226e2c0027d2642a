"""The entries of a NodeDevices' `status.devices`: physical devices, and partitions of them, which name their `parent`.

Counts of devices are about physical ones: whoever counts goes through `grouped`.
"""

from __future__ import annotations

from nodedevices_common.raw import Raw, mappings, text


def grouped(devices: object) -> list[list[Raw]]:
    """Return each physical device, followed by its partitions. A partition whose device is not listed is left out."""
    entries = mappings(devices)
    whole = [[entry] for entry in entries if not text(entry.get("parent"))]
    if len(whole) < len(entries):
        by_name = {text(found[0].get("name")): found for found in reversed(whole)}
        for entry in entries:
            if parent := text(entry.get("parent")):
                by_name.get(parent, []).append(entry)
    return whole
