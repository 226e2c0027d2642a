"""What our parts have written since the last time, from the files that containerd keeps on the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from chaos.explained import Line

NAMESPACE = "nodedevices-system"
PROBE = "probe"  # the container beside the agent's, which is a part of its own
NAME = re.compile(rf"{NAMESPACE}_nodedevices-(agent|operator|extender|mps)-[^_]*_")


class Logs:
    """Each container's file, and how far it was read. A file that goes meanwhile was read until the last call."""

    def __init__(self, folders: dict[str, Path], others: dict[str, Path]) -> None:
        self._folders = folders  # node -> its /var/log
        self._others = others  # part -> a log file without CRI's columns
        self._read: dict[Path, int] = {}
        self._halves: dict[Path, str] = {}

    def new(self, at: float) -> list[Line]:
        found: list[Line] = []
        for node, folder in self._folders.items():
            for pod in sorted((folder / "pods").glob(f"{NAMESPACE}_nodedevices-*")):
                named = NAME.match(pod.name)
                if named is not None:
                    for file in sorted(pod.glob("*/*.log")):
                        part = PROBE if file.parent.name == PROBE else named[1]
                        found += [Line(part, node, text, at) for text in self._cri(file)]
        for part, file in self._others.items():
            found += [Line(part, "", text, at) for text in self._lines(file)]
        return found

    def _lines(self, file: Path) -> Iterator[str]:
        try:
            with file.open("rb") as log:
                log.seek(self._read.get(file, 0))
                text = log.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read[file] = self._read.get(file, 0) + len(whole)
        yield from whole.decode(errors="replace").splitlines()

    def _cri(self, file: Path) -> Iterator[str]:
        for line in self._lines(file):
            _, _, rest = line.partition(" ")
            _, _, rest = rest.partition(" ")
            tag, _, text = rest.partition(" ")
            if tag == "P":
                self._halves[file] = self._halves.get(file, "") + text
            else:
                yield self._halves.pop(file, "") + text
