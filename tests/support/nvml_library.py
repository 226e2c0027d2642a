"""Compiles tests/nvml/nvml.c, the stand-in for libnvidia-ml.so.1."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "nvml" / "nvml.c"
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror")


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")


def compiled(folder: Path, by: str, *flags: str) -> Path:
    """Return the library in this new folder."""
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    built = [by, "-shared", "-fPIC", *STRICT, *flags, f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*built, str(SOURCE), "-lpthread"], check=True)
    return library
