"""`make bench`: every measurement, beside its floor and its target. Nothing here passes or fails.

What needs the test cluster needs root and says so when it cannot run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # support/: the stand-in kubelet and the rig

from benchmarks import allocate, fault, listing, start, table

PARTS = {
    "allocate": ("Allocation", allocate.measure),
    "listing": ("Lists of many ids", listing.measure),
    "start": ("Start and memory", start.measure),
    "fault": ("From a fault to those who need to know", fault.measure),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := [each for each in chosen if each not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    print(f"On {os.cpu_count()} cores. Ratios are measured / floor.\n", flush=True)
    for title, measure in (PARTS[each] for each in chosen):
        print(title, flush=True)
        try:
            print(table.show(measure()), end="\n\n", flush=True)
        except fault.NotHere as reason:
            print(f"not measured: {reason}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
