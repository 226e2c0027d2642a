"""What must hold at every moment of any test of the real cluster, judged between its steps.

A look takes a moment, and meanwhile a pod may end: what is wrong counts where two looks in a row show it.
"""

from __future__ import annotations

from chaos.cluster import look
from chaos.invariants import History, in_any_test, remember
from support.rig_cluster import RigCluster


def judge(rig: RigCluster, history: History | None = None) -> History:
    """Raise AssertionError where something is wrong; else return what was seen, for the next step of the test."""
    known = history or History()
    wrong: set[str] | None = None
    for _ in range(2):
        seen = look(rig)
        known = remember(known, seen)
        found = set(in_any_test(seen, known))
        wrong = found if wrong is None else wrong & found
        if not wrong:
            break
    assert not wrong, "\n".join(sorted(wrong or ()))
    return known
