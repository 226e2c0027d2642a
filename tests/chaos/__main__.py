"""`make chaos`: a seeded random sequence of everything that can go wrong, on a real cluster of two nodes.

    make chaos                            # five minutes with a seed of its own, which it prints
    make chaos SECONDS=1800 SEED=7
    make chaos SEED=7 STEPS=43            # the same steps again, and no more than these

Exit 0 when everything held; otherwise 1, with what did not, the step, and the folder that has the steps and the logs.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from pathlib import Path

from chaos import cluster
from chaos.driver import Journal, Run, Violated
from support.kubectl import KubectlError, NotReached

SECONDS = 300.0
PROBLEM = (KubectlError, NotReached, OSError)


def main() -> int:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1_000_000))
    seconds = float(os.environ.get("SECONDS") or SECONDS)
    steps = int(os.environ["STEPS"]) if os.environ.get("STEPS") else None
    name, keep = os.environ.get("NAME") or "chaos", bool(os.environ.get("KEEP"))
    journal = Journal(Path("build", "chaos", f"{seed}"))
    journal.say(f"seed {seed}: make chaos SEED={seed} runs the same steps again; the log: {journal.folder}/steps.log")
    run: Run | None = None
    try:
        with cluster.running(name, keep=keep) as made:
            run = Run(made, seed, journal)
            try:
                run.go(seconds=seconds, steps=steps)
            except Violated as error:
                for each in error.wrong:
                    journal.say(f"WRONG: {each}")
                run.keep_what_is_there()
                journal.say(f"after step {run.number}: make chaos SEED={seed} STEPS={run.number}")
                return 1
    except PROBLEM as error:
        journal.say(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return 1
    finally:
        journal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
