"""`kubectl_complete-nodedevices`, which kubectl (1.26 or later) runs for `kubectl nodedevices` and TAB: one
proposal a line, with a tab before its help, and after them what the shell shall do (`:4`: propose no files)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from click.shell_completion import ShellComplete
from nodedevices_common.text import printable

from nodedevices_kubectl.main import arranged, cli
from nodedevices_kubectl.session import PROGRAM, Machine

NO_FILES = ":4"


def proposals(args: Sequence[str], machine: Machine) -> list[str]:
    """`args`: the words so far, the last of which is not whole."""
    *words, last = args or [""]
    first = arranged(words) if words and words[0].startswith("-") else list(words)
    shell = ShellComplete(cli, {"obj": machine}, PROGRAM, "")
    found = [completion for completion in shell.get_completions(first, last) if completion.type == "plain"]
    return [
        printable(completion.value) + (f"\t{printable(completion.help)}" if completion.help else "")
        for completion in found
    ]


def main() -> None:
    for line in (*proposals(sys.argv[1:], Machine()), NO_FILES):
        sys.stdout.write(f"{line}\n")
