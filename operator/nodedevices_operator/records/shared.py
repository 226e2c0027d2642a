"""Equal values kept once: what thousands of nodes have in common, such as an empty set of 216 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

REMEMBERED = 4096  # different sets; a fleet has far fewer


def shared(items: Iterable[str]) -> frozenset[str]:
    """Return the set of these; equal ones are the same object."""
    return _one(frozenset(items))


@lru_cache(REMEMBERED)
def _one(value: frozenset[str]) -> frozenset[str]:
    return value
