"""The driver's library: below the mounted driver root, as NVIDIA's plugin looks for it, else where the
system's loader finds it.

pynvml opens the library by its soname. One that was loaded by its path before has that soname, so the loader gives
pynvml the same. It may come at any time, with a driver container; what is loaded stays for the life of the process.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from nodedevices_probe.node.roots import inside

NAME = "libnvidia-ml.so.1"
FOLDERS = (  # in the order of NVIDIA's plugin v0.20.0
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)


@dataclass(slots=True)
class Library:
    """`root`: where the driver's root is mounted; with "" or "/" only the loader looks. `problem`: what was found there
    and could not be loaded."""

    root: str = ""
    problem: str = ""
    _loaded: bool = False

    def load(self) -> None:
        """Load the library; called before every attempt to initialise NVML."""
        if self._loaded or self.root in {"", "/"}:
            return
        path = find(Path(self.root))
        self.problem = ""
        if path is not None:
            try:
                ctypes.CDLL(str(path))
                self._loaded = True
            except OSError as error:
                self.problem = str(error)

    def missing(self) -> str:
        """Why there is none, where the loader found none either."""
        if self.problem:
            return self.problem
        where = "" if self.root in {"", "/"} else f"neither below {self.root} nor "
        return f"{NAME} is {where or 'not '}where the system searches for libraries"


def find(root: Path) -> Path | None:
    """Return the library below that root."""
    found = (inside(root, f"{folder}/{NAME}") for folder in FOLDERS)
    return next((path for path in found if path is not None and path.is_file()), None)
