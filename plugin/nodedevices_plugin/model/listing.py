"""Formats lists for people."""

from __future__ import annotations

from collections.abc import Iterable

from nodedevices_common.text import some

NAMED = 8  # devices, pods or ids named in one message


def listing(items: Iterable[str]) -> str:
    """A few names and how many more."""
    return some(items, NAMED)
