"""Sources of probes, asked once, and files that are none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.loop import LineLoop, Source
from nodedevices_probe.protocol import Snapshot


def line_of(source: Source) -> Snapshot:
    """The line that the source's probe writes, as the agent reads it."""
    written: list[bytes] = []
    LineLoop(source=source, write=written.append, boot_id="b").once()
    return parse_line(written[0])


NO_FILES: Mapping[str, Callable[[Path], None]] = {  # what may stand in the place of a file, and how it comes there
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}
