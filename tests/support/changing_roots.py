"""Roots of a machine that changes while it is read, and a System that has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nodedevices_probe.node.roots import MAX_BYTES, Roots
from nodedevices_probe.node.sysfs import System


@dataclass(frozen=True, slots=True)
class VanishingRoots(Roots):
    """`unplug` is called before one of the reads: so many are `left`."""

    left: list[int] = field(default_factory=list)
    unplug: Callable[[], None] = print

    def read(self, path: str | Path, limit: int = MAX_BYTES) -> str:
        self.left[0] -= 1
        if self.left[0] == 0:
            self.unplug()
        return super(VanishingRoots, self).read(path, limit)


@dataclass(frozen=True, slots=True)
class SystemOf(System):
    """With roots of its own."""

    below: Roots = field(default_factory=Roots)

    @property
    def roots(self) -> Roots:
        return self.below
