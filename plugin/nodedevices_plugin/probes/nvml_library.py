"""Where the driver's library is: below the mounted driver root, as NVIDIA's plugin looks for it, else where the
system's loader finds it.

pynvml opens the library by its soname. One that was loaded by its path before has that soname, so the loader gives
pynvml the same. It may come at any time, with a driver container; what is loaded stays for the life of the process.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from pathlib import Path

NAME = "libnvidia-ml.so.1"
FOLDERS = (  # in the order of NVIDIA's plugin v0.20.0
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
MAX_LINKS = 40  # as the kernel


@dataclass(slots=True)
class Library:
    """`root`: where the driver's root is mounted; with "" or "/" only the loader looks. `trouble`: what was found there
    and could not be loaded."""

    root: str = ""
    trouble: str = ""
    _loaded: bool = False

    def load(self) -> None:
        """Before every attempt to initialise NVML."""
        if self._loaded or self.root in {"", "/"}:
            return
        path = find(Path(self.root))
        self.trouble = ""
        if path is not None:
            try:
                ctypes.CDLL(str(path))
                self._loaded = True
            except OSError as error:
                self.trouble = str(error)

    def missing(self) -> str:
        """Why there is none, where the loader found none either."""
        if self.trouble:
            return self.trouble
        where = "" if self.root in {"", "/"} else f"neither below {self.root} nor "
        return f"{NAME} is {where or 'not '}where the system looks for libraries"


def find(root: Path) -> Path | None:
    """The library below that root."""
    return next((path for each in FOLDERS if (path := inside(root, f"{each}/{NAME}")) is not None), None)


def inside(root: Path, path: str) -> Path | None:
    """The file that a path means to whoever has `root` as `/`; None: there is none.

    Debian's packages have absolute links, which here lead elsewhere.
    """
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
    return found if found.is_file() else None
