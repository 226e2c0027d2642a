"""`make bench`: every measurement, beside its floor and its target. Nothing here passes or fails.

What needs the test cluster needs root and says so when it cannot run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # support/: the stand-in kubelet and the rig

from benchmarks import allocate, fault, listing, start, table


def main() -> int:
    print(f"On {os.cpu_count()} cores. Ratios are measured / floor.\n", flush=True)
    for title, measure in (
        ("Allocation", allocate.measure),
        ("Lists of many ids", listing.measure),
        ("Start and memory", start.measure),
        ("From a fault to those who need to know", fault.measure),
    ):
        print(title, flush=True)
        try:
            print(table.show(measure()), end="\n\n", flush=True)
        except fault.NotHere as reason:
            print(f"not measured: {reason}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
