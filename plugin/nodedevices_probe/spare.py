"""A probe's process that is started before it is known which probe it will be: `python -m nodedevices_probe.spare`.

It loads what every probe needs while the agent loads its own, then reads one line from its standard input: a JSON list,
the arguments of `nodedevices-probe`. From there on it is one. Where the input ends before, no probe was wanted.
"""

from __future__ import annotations

import json
import sys

from nodedevices_probe import main

MAX_BYTES = 1 << 20


def run() -> int:
    with open(
        0, "rb", buffering=0, closefd=False
    ) as standard_input:  # unbuffered: what follows is for the probe (loop.follow)
        line = standard_input.readline(MAX_BYTES)
    return main.main(json.loads(line)) if line.endswith(b"\n") else 0


if __name__ == "__main__":
    sys.exit(run())
