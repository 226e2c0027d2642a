"""Formats lists for people."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 8  # devices, pods or ids named in one message


def listing(items: Iterable[str]) -> str:
    """A few names and how many more."""
    every = list(items)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more
