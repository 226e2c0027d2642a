"""Whether a name may be registered, from literals: who is seen, what was seen before, and by which kubelet."""

from __future__ import annotations

from hypothesis import given, strategies as st
from nodedevices_plugin.kubelet.guard import GIVE_WAY_SECONDS, Waiting, judge
from nodedevices_plugin.kubelet.sockets import FileIdentity
from support.there import there

OLD, NEW = FileIdentity(1, 2, 3), FileIdentity(1, 9, 9)
THEIRS = "another device plugin serves nvidia.com/gpu"
UNKNOWN, NOBODY = None, ""
SERVED = Waiting(kubelet=OLD, who=THEIRS)


def test_whoever_serves_is_waited_for_until_the_kubelet_says_that_it_is_gone() -> None:
    assert judge(None, OLD, NOBODY, now=0.0) is None
    assert judge(None, OLD, THEIRS, now=0.0) == SERVED
    assert SERVED.why == THEIRS
    assert judge(None, OLD, UNKNOWN, now=0.0) is None
    assert judge(SERVED, OLD, UNKNOWN, now=9e9) == SERVED
    assert judge(SERVED, OLD, NOBODY, now=0.0) is None


def test_after_a_kubelet_restart_the_one_that_served_has_the_first_turn() -> None:
    for seen in (NOBODY, UNKNOWN):
        turn = there(judge(SERVED, NEW, seen, now=100.0))
        assert turn.until == 100.0 + GIVE_WAY_SECONDS
        assert turn.why.startswith(THEIRS)
        assert "has 30 s to register first" in turn.why
        assert judge(turn, NEW, seen, now=turn.until - 0.1) == turn
        assert judge(turn, NEW, seen, now=turn.until) is None


def test_the_turn_of_one_that_served_starts_over_with_every_kubelet_and_is_waited_for_as_before() -> None:
    turn = judge(SERVED, NEW, NOBODY, now=100.0)
    again = judge(turn, OLD, NOBODY, now=120.0)
    assert again == Waiting(kubelet=OLD, who=THEIRS, until=120.0 + GIVE_WAY_SECONDS)
    turn = judge(SERVED, NEW, NOBODY, now=100.0)
    served = judge(turn, NEW, THEIRS, now=101.0)
    assert served == Waiting(kubelet=NEW, who=THEIRS)
    assert judge(served, NEW, NOBODY, now=102.0) is None


@given(
    st.lists(st.tuples(st.sampled_from([UNKNOWN, NOBODY, THEIRS]), st.booleans(), st.floats(0.0, 20.0)), max_size=30)
)
def test_nothing_is_ever_registered_over_one_that_is_seen_and_nothing_waits_for_ever_without_one(
    looks: list[tuple[str | None, bool, float]],
) -> None:
    waiting, now, kubelet = None, 0.0, OLD
    for seen, restarted, seconds in looks:
        now += seconds
        kubelet = FileIdentity(1, kubelet.inode + 1, 0) if restarted else kubelet
        before, waiting = waiting, judge(waiting, kubelet, seen, now=now)
        if seen:
            assert waiting is not None
        if waiting is not None and before is None:
            assert seen
    assert judge(judge(waiting, kubelet, NOBODY, now=now), kubelet, NOBODY, now=now + GIVE_WAY_SECONDS) is None
