"""Archives that are the same for the same content: names sorted, one owner, one time."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

EXECUTABLE, PLAIN = 0o755, 0o644
LEVEL = 6  # of gzip


def packed(files: Mapping[str, Path], epoch: int) -> bytes:
    """A .tar.gz of these, by the names that they have in it."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), epoch
            entry.mode = EXECUTABLE if path.stat().st_mode & 0o100 else PLAIN
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), LEVEL, mtime=0)


def chart(folder: Path, epoch: int) -> bytes:
    """What `helm package` makes, which puts the time of packing into it. Of .helmignore only plain names."""
    ignored = {line for line in (folder / ".helmignore").read_text().split() if not line.startswith("#")}
    inside = [path for path in folder.rglob("*") if path.is_file() and path.name not in ignored]
    return packed({f"nodedevices/{path.relative_to(folder).as_posix()}": path for path in inside}, epoch)


def sources(tree: Path, version: str, epoch: int) -> bytes:
    """All of the tree, which holds what a commit has and nothing else."""
    inside = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return packed({f"nodedevices-{version}/{path.relative_to(tree).as_posix()}": path for path in inside}, epoch)
