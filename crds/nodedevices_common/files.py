"""A file that is replaced is the new one, whole, or the old one: for a reader at any moment, and after a crash.

The new content goes into `.NAME.new` beside the file, which then takes its name. That file is always created and no
link is followed, so a user who may write into the folder cannot direct a write elsewhere. What a kill leaves of it, the
next write removes. A file has one writer.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MODE = 0o644
Identity = tuple[int, int, int, int]


def replace(path: Path, content: str | bytes, *, mode: int = MODE, durable: bool = False) -> None:
    """Raises OSError; the file is then as it was, and nothing is left beside it.

    durable: on the disk when this returns (fsync of the file and of its folder), at the price of waiting for it. Where
    the folder's fsync fails, the file is the new one and OSError is raised all the same.
    """
    new = unfinished(path)
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask is
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(descriptor)
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def update(path: Path, content: str | bytes, *, mode: int = MODE, durable: bool = False) -> bool:
    """Replace a file that says something else, is missing or is none. True when it was replaced. Raises OSError."""
    wanted = content.encode() if isinstance(content, str) else content
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError), os.fdopen(os.open(path, flags), "rb") as file:
        if file.read(len(wanted) + 1) == wanted:
            return False
    replace(path, wanted, mode=mode, durable=durable)
    return True


def head(path: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of a file, or of the one that its links lead to. Raises OSError."""
    with path.open("rb") as file:
        return file.read(limit)


def identity(path: str | Path) -> Identity | None:
    """Return what changes when the file is written, or another takes its place. None: it cannot be seen."""
    try:
        found = os.stat(path)  # noqa: PTH116  the name that a person gives may be any text
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def unfinished(path: Path) -> Path:
    """Return where the new content is until it is whole: no name that a reader of every *.json in the folder takes."""
    return path.with_name(f".{path.name}.new")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
