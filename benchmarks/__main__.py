"""`make bench`: every measurement, beside its floor and its target.

Exit 1 where a ratio is above its limit in thresholds.yaml, twice; a target decides nothing. What needs the test cluster
needs root and says so when it cannot run. The operator's part takes a quarter of an hour with 1,000 nodes; with
`--nodes 200` five minutes. Replay takes eight minutes of CPU on each of two cores; with `--nodes 128` half a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # support/: the stand-in kubelet and the rig

from benchmarks import (
    allocate,
    claims,
    decisions,
    extender,
    fault,
    kernel_log,
    kubectl,
    limits,
    listing,
    node,
    operator,
    packing,
    replay,
    slices,
    start,
    table,
    use,
)

PARTS: dict[str, tuple[str, Callable[..., list[table.Row]]]] = {
    "allocate": ("Allocation", allocate.measure),
    "claims": ("Claims (DRA)", claims.measure),
    "slices": ("ResourceSlices (DRA)", slices.measure),
    "listing": ("Lists of many ids", listing.measure),
    "packing": ("Pods by memory that are refused", packing.measure),
    "extender": ("The scheduler extender and a large fleet", extender.measure),
    "kubectl": ("kubectl nodedevices and a large fleet", kubectl.measure),
    "start": ("Start and memory", start.measure),
    "node": ("A node at rest, in a flood of XIDs, and while it changes", node.measure),
    "use": ("Knowing who uses a node's devices", use.measure),
    "kmsg": ("The kernel's log in a flood", kernel_log.measure),
    "fault": ("From a fault to those who need to know", fault.measure),
    "decisions": ("The operator's decisions about a large fleet", decisions.measure),
    "operator": ("The operator and a large fleet", operator.measure),
    "replay": ("A year of failures of a large fleet", replay.measure),
}
OF_NODES = ("extender", "kubectl", "decisions", "operator", "replay")  # take --nodes


def main() -> int:
    # What is measured starts from compiled packages, as it does in the images; `make` has Python write none.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix) / "bytecode")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument(
        "--nodes",
        type=int,
        help=f"of the fleet; default {operator.NODES_BY_DEFAULT} for the operator, {extender.NODES_BY_DEFAULT} for the "
        f"extender, for decisions and for kubectl, {replay.NODES_BY_DEFAULT} for replay",
    )
    given = parser.parse_args()
    if given.nodes is not None and given.nodes < 1:
        parser.error(f"--nodes: {given.nodes} is not allowed; give 1 or more")
    chosen = given.parts or list(PARTS)
    if unknown := [each for each in chosen if each not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    allowed = {} if given.nodes else limits.read(PARTS)
    regressions: list[str] = []
    load = os.getloadavg()[0]
    print(f"On {os.cpu_count()} cores, load average {load:.1f}. Ratios are measured / floor.\n", flush=True)
    for part in chosen:
        title, measure = PARTS[part]
        print(title, flush=True)
        try:
            rows = measure(given.nodes) if given.nodes is not None and part in OF_NODES else measure()
            print(table.show(rows), end="\n\n", flush=True)
            if limits.over(rows, allowed.get(part, {})):
                print(f"{title}, once more: above a limit of {limits.FILE.name}", flush=True)
                again = measure()
                print(table.show(again), end="\n\n", flush=True)
                first = limits.over(rows, allowed[part])
                wrong = {what: said for what, said in limits.over(again, allowed[part]).items() if what in first}
                regressions += [f"{part}: {what}: {said}" for what, said in wrong.items()]
        except table.NotHere as reason:
            print(f"not measured: {reason}\n", flush=True)
    print(*regressions, sep="\n", file=sys.stderr, end="\n" if regressions else "")
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())
