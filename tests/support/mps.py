"""MPS without NVIDIA's binaries: a stand-in for those two alone, and the real nodedevices-mps on them as a process.

The stand-ins are shell scripts, so that they run in any container. A daemon is its file `control` in the pipe folder,
and a process that ends with it; to remove it is its death. Commands are recorded in the log folder, but for the
question whether it is up.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from support.patience import PATIENCE_SECONDS
from support.preloaded import Running, fork

CONTROL = """\
#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY log=$CUDA_MPS_LOG_DIRECTORY
case $1 in
  -d)
    [ -e "$pipe/control" ] && { echo "An instance of this daemon is already running"; exit 1; }
    echo "-d" >>"$log/commands"
    echo 100.0 >"$pipe/percentage"
    : >"$pipe/control"
    "$0" --serve "$pipe/control" </dev/null >/dev/null 2>&1 &
    exit 0 ;;
  --serve)
    while [ -e "$2" ]; do sleep 0.3; done
    exit 0 ;;
esac
[ -e "$pipe/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
while read -r line; do
  case $line in
    get_default_active_thread_percentage) cat "$pipe/percentage"; continue ;;
    set_default_active_thread_percentage*) echo "${line##* }.0" >"$pipe/percentage" ;;
    quit) rm "$pipe/control" ;;
  esac
  echo "$line" >>"$log/commands"
done
"""
SMI = """\
#!/bin/sh
echo "$*" >>"$(dirname "$0")/nvidia-smi.log"
"""


def programs(folder: Path, *, smi: str = SMI) -> Path:
    """The stand-ins as programs in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", smi)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def with_path(folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    known = os.environ if environment is None else environment
    return {**known, "PATH": f"{folder}:{known.get('PATH', os.defpath)}"}


class MpsRunner:
    """The real nodedevices-mps. `root` is the MPS root; `log` of all its lives."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "mps"
        self.root.mkdir()
        self.programs = programs(folder / "bin")
        self.log = folder / "mps.log"
        self.process: Running | None = None

    def start(self) -> None:
        arguments = ("--root", str(self.root), "--log-format=json")
        self.process = fork("nodedevices_plugin.mps.main", arguments, with_path(self.programs), self.log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
        for control in self.root.glob("*/*/pipe/control"):
            control.unlink()
        print(self.log.read_text())  # pytest shows it when the test fails

    def lines(self, message: str) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [each for each in entries if each.get("event") == message]

    def commands(self, resource: str) -> list[str]:
        """What its daemon was sent, oldest first; `-d` is a start."""
        file = self.root / resource / "log" / "commands"
        return file.read_text().splitlines() if file.exists() else []

    def die(self, resource: str) -> None:
        """The daemon's death."""
        (self.root / resource / "pipe" / "control").unlink()

    def alive(self, resource: str) -> bool:
        return (self.root / resource / "pipe" / "control").exists()

    def modes(self) -> dict[str, str]:
        """GPU id -> the compute mode that was set last."""
        file = self.programs / "nvidia-smi.log"
        words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return {each[1]: each[3] for each in words}
