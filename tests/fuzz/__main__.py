"""`make fuzz`: every property test with examples drawn at random, round after round, until SECONDS have passed.

    make fuzz                                # ten minutes
    make fuzz SECONDS=3600 SEED=7            # the rounds of that seed again
    make fuzz TESTS=tests/unit/fuzz          # of some tests alone

A round has ten times the examples that a test says, an order and a seed of its own, and the seed is printed. What fails
is shown with a shrunken example and how to run it again; a cure keeps the example, as a test that names the promise,
or as a file of tests/corpus. Exit 1 when anything failed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMES = 10  # as many examples as a test says
NOTHING_COLLECTED = 5


def main() -> int:
    seconds = float(os.environ.get("SECONDS") or 600)
    seed = int(os.environ.get("SEED") or random.randrange(10**9))
    jobs = os.environ.get("JOBS") or str(os.cpu_count() or 1)
    tests = os.environ.get("TESTS", "").split() or property_tests()
    print(f"SEED={seed} SECONDS={seconds:.0f}: {len(tests)} files or folders with property tests", flush=True)
    rounds, failed, end = random.Random(seed), 0, time.monotonic() + seconds
    number = 0
    while (left := end - time.monotonic()) > 0:
        number += 1
        own = rounds.randrange(10**9)
        options = ["--hypothesis-profile=fuzz", f"--hypothesis-seed={own}", "--timeout=0", "-p", "no:cacheprovider"]
        again = f"FUZZ_TIMES={TIMES} .venv/bin/python -m pytest {' '.join(options[:3])}"
        print(f"round {number}, {left:.0f} s left; a test again: {again} TEST", flush=True)
        order = rounds.sample(tests, len(tests))  # a round that is cut off leaves out other tests than the last one
        options += ["-n", jobs, "--no-loadscope-reorder"]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", *options, *order]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "FUZZ_TIMES": str(TIMES)})
        try:
            failed += process.wait(timeout=left) not in (0, NOTHING_COLLECTED)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            print(f"round {number} was cut off by SECONDS", flush=True)
    print(f"SEED={seed}: {number} rounds, {failed} with failures")
    return int(failed > 0)


def property_tests() -> list[str]:
    files = sorted((ROOT / "tests").glob("**/test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if "from hypothesis" in path.read_text()]


if __name__ == "__main__":
    sys.exit(main())
