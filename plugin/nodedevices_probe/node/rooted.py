"""Paths of a root that is mounted elsewhere, as those see them who have it as `/`.

Absolute links are common there (Debian's alternatives, packages of the driver), and followed from here they would lead
into this container.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

MAX_LINKS = 40  # as the kernel


def inside(root: Path, path: str) -> Path | None:
    """Return what a path means to a process that has `root` as `/`, without links; None: there is nothing. Raises
    OSError."""
    todo, done, links = deque(path.split("/")), list[str](), 0
    while todo:
        part = todo.popleft()
        if part in {"", ".", ".."}:
            done = done[:-1] if part == ".." else done
            continue
        try:
            target = str(root.joinpath(*done, part).readlink())
        except OSError:  # no link, or nothing at all
            done.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        done = [] if target.startswith("/") else done
        todo.extendleft(reversed(target.split("/")))
    found = root.joinpath(*done)
    return found if found.exists() else None
