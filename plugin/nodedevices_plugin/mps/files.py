"""Files and folders below the MPS root, opened by a program with privileges next to others that write there.

The agent writes into the root, and client containers into the pipe folders below it: so no link is followed, nothing
that could block (a FIFO) is waited for, and no file is read beyond a bound. Everything raises OSError. Files are
written by nodedevices_common.files, which keeps to the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

ASIDE = ".aside-"  # a folder that was in the way, and is not empty


def read(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit)


@contextlib.contextmanager
def folder(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of the folder `root/names[0]/...`, made where it is missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    root.mkdir(parents=True, exist_ok=True, mode=0o755)
    descriptor = os.open(root, flags)
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=descriptor)
            outer, descriptor = descriptor, os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)


def clear(descriptor: int) -> None:
    """Leaves nothing in a folder under its name. Another folder in it is removed where it is empty, and else put aside:
    what is in it may be any number of folders deep."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=descriptor)
            except (IsADirectoryError, PermissionError):  # the latter: another system's answer for a folder
                _put_aside(descriptor, name)


def _put_aside(descriptor: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=descriptor)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        if not name.startswith(ASIDE):
            os.rename(name, ASIDE + secrets.token_hex(8), src_dir_fd=descriptor, dst_dir_fd=descriptor)
