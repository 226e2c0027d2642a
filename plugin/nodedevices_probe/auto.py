"""`nodedevices-probe auto`: one line of each probe whose hardware is in this machine, for people.

The agent does not use this command: for `--probe auto` it starts the probes itself, and knows each by its name.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from nodedevices_probe.kind import DEVICES_DIR, AgentOptions, Hardware, ProbeKind, never
from nodedevices_probe.loop import say
from nodedevices_probe.node.roots import Roots

NAME = "auto"
HELP = "a line of each of the others whose hardware this machine has"


def add_arguments(parser: ArgumentParser, kinds: Mapping[str, ProbeKind]) -> None:
    """The agent's options that these kinds get values of, by the same names."""
    users = defaultdict[str, list[str]](list)
    for kind in kinds.values():
        options = [DEVICES_DIR] if kind.files else []
        options += [option for option in kind.passed_on.values() if option not in kind.files]
        for option in options if kind.automatic else ():
            users[option].append(kind.name)
    for option, names in sorted(users.items()):
        shown = f"as the agent's --{option}, for {', '.join(names)}"
        parser.add_argument(f"--{option}", nargs="?", const=True, default="", metavar="VALUE", help=shown)


def run(options: Namespace, write: Callable[[bytes], None], kinds: Mapping[str, ProbeKind]) -> int:
    """Run them one after the other, each in a process of its own. Returns the worst of their exit statuses."""
    hardware = Hardware(Roots(options.root))
    found = [(kind, why) for kind in kinds.values() if (why := kind.wanted(hardware, _given(options, kind)))]
    if not found:
        by_hardware = [kind.name for kind in kinds.values() if kind.present is not never]
        by_file = [f"{kind.name} ({kind.files[0]})" for kind in kinds.values() if kind.files and kind.present is never]
        files = f"; {' and '.join(by_file)} run where their file is in --{DEVICES_DIR}" if by_file else ""
        say(f"no hardware of {', '.join(by_hardware)} is there{files}")
    worst = 0
    for kind, why in found:
        say(f"starting {kind.name}: {why}")
        arguments = kind.arguments(defaultdict(str, _given(options, kind)))
        command = [sys.executable, "-m", "nodedevices_probe.main", *arguments, f"--root={options.root}", "--once"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603  ours
        write(done.stdout)
        worst = max(worst, abs(done.returncode))
    return worst


def _given(options: Namespace, kind: ProbeKind) -> AgentOptions:
    given = {name.replace("_", "-"): value for name, value in vars(options).items()}
    folder = str(given.get(DEVICES_DIR) or "")
    paths = {name: f"{folder}/{name}" for name in kind.files}
    return given | {name: path if folder and Path(path).exists() else "" for name, path in paths.items()}
