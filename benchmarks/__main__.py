"""`make bench`: every measurement, beside its floor and its target. Nothing here passes or fails.

What needs the test cluster needs root and says so when it cannot run. The operator's part takes a quarter of an hour
with 1,000 nodes; with `--nodes 200` five minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # support/: the stand-in kubelet and the rig

# What is measured starts from compiled packages, as it does in the images; `make` has Python write none.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix) / "bytecode")

from benchmarks import allocate, decisions, extender, fault, listing, operator, packing, start, table

PARTS: dict[str, tuple[str, Callable[..., list[table.Row]]]] = {
    "allocate": ("Allocation", allocate.measure),
    "listing": ("Lists of many ids", listing.measure),
    "packing": ("Pods by memory that are refused", packing.measure),
    "extender": ("The scheduler extender and a large fleet", extender.measure),
    "start": ("Start and memory", start.measure),
    "fault": ("From a fault to those who need to know", fault.measure),
    "decisions": ("The operator's decisions about a large fleet", decisions.measure),
    "operator": ("The operator and a large fleet", operator.measure),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument(
        "--nodes",
        type=int,
        help=f"of the fleet; default {operator.NODES_BY_DEFAULT} for the operator, {extender.NODES_BY_DEFAULT} for the "
        "extender and for decisions",
    )
    given = parser.parse_args()
    if given.nodes is not None and given.nodes < 1:
        parser.error(f"--nodes: {given.nodes} is not allowed; give 1 or more")
    chosen = given.parts or list(PARTS)
    if unknown := [each for each in chosen if each not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    load = os.getloadavg()[0]
    print(f"On {os.cpu_count()} cores, load average {load:.1f}. Ratios are measured / floor.\n", flush=True)
    for title, measure in (PARTS[each] for each in chosen):
        print(title, flush=True)
        try:
            of_nodes = given.nodes is not None and measure in (operator.measure, extender.measure, decisions.measure)
            rows = measure(given.nodes) if of_nodes else measure()
            print(table.show(rows), end="\n\n", flush=True)
        except table.NotHere as reason:
            print(f"not measured: {reason}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
