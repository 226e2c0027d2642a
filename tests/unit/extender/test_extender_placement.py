"""Where a pod's containers will be: one rule of the kubelet and the agent at a time."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_common.pod_requests import INIT, MAIN, SIDECAR, Demand
from nodedevices_operator.extender.table import Cores, Placement, place
from support.cases import cases

Step = tuple[int, int]


def placed(
    free: Mapping[str, int],
    *steps: Step,
    spread: bool = False,
    cores: Cores | None = None,
    demands: tuple[Demand, ...] = (),
) -> tuple[Placement, dict[str, int]]:
    """Where they are, and what is free then."""
    left = dict(free)
    return place(left, steps, spread=spread, cores=cores, demands=demands), left


def half(device: str = "a") -> Cores:
    """Computing power of two devices of 10 shares; of one only half is left."""
    totals = {"a": 10, "b": 10}
    return Cores({each: 500 if each == device else 1000 for each in totals}, totals)


def test_containers_take_their_shares_one_after_another_and_what_is_missing_from_the_init_containers_device() -> None:
    assert placed({"a": 5, "b": 10}, (MAIN, 4), (MAIN, 4)) == (Placement(("a", "b")), {"a": 1, "b": 6})
    found, left = placed({"a": 5, "b": 4}, (MAIN, 5), (MAIN, 5), (MAIN, 1))
    assert (found, left) == (Placement(("a",)), {"a": 0, "b": 4})
    assert not found.complete(((MAIN, 5), (MAIN, 5), (MAIN, 1)))
    assert placed({"a": 5, "b": 10}, (MAIN, 4), spread=True)[0] == Placement(("b",))
    steps = ((INIT, 2), (MAIN, 4))
    found, _ = placed({"a": 3, "b": 9}, *steps)
    assert (found.devices, found.complete(steps)) == (("a",), False)
    assert (found.unused, found.unused_of) == (2, "a")
    after = ((INIT, 2), (MAIN, 2), (MAIN, 4))
    assert placed({"a": 3, "b": 9}, *after)[0] == Placement(("a", "a", "b")), "nothing is reused any more"


@cases(
    ("steps", "left", "unused"),
    (((INIT, 6), (MAIN, 6)), 4, 0),
    (((INIT, 6), (MAIN, 2)), 4, 4),
    (((INIT, 6), (MAIN, 8)), 2, 0),
    (((INIT, 2), (INIT, 6), (MAIN, 6)), 4, 0),
    (((INIT, 6), (INIT, 2), (MAIN, 6)), 4, 0),
    (((INIT, 6), (SIDECAR, 2), (MAIN, 4)), 4, 0),
    (((INIT, 6), (SIDECAR, 2), (MAIN, 5)), 3, 0),
    (((SIDECAR, 2), (INIT, 3), (MAIN, 3)), 5, 0),
    (((INIT, 6), (MAIN, 4), (MAIN, 1)), 4, 1),
)
def test_what_an_init_container_had_the_next_ones_get_first(steps: tuple[Step, ...], left: int, unused: int) -> None:
    found, free = placed({"a": 10}, *steps)
    assert (found.complete(steps), free["a"]) == (True, left)
    assert (found.unused, found.unused_of) == (unused, "a" if unused else "")


def test_a_device_has_room_only_with_the_computing_power_that_is_needed() -> None:
    free = {"a": 5, "b": 9}
    half_of_it = (Demand(percent=50),)
    assert placed(free, (MAIN, 4), cores=half(), demands=half_of_it)[0].devices == ("a",)
    more = (Demand(percent=51),)
    assert placed(free, (MAIN, 4), cores=half(), demands=more)[0].devices == ("b",)
    assert placed(free, (MAIN, 4), cores=half(), demands=(Demand(units=6),))[0].devices == ("b",)
    assert placed({"a": 6, "b": 9}, (MAIN, 6), cores=half())[0].devices == ("b",), "as large a part as of its memory"
    assert placed({"a": 6, "b": 9}, (MAIN, 5), cores=half())[0].devices == ("a",)
    unshared = Cores({"b": 0}, {"a": 10, "b": 10})
    assert placed(free, (MAIN, 9), (MAIN, 5), cores=unshared, demands=more * 2)[0].devices == ()
    assert placed(free, (MAIN, 5), cores=unshared, demands=more)[0].devices == ("a",), "its own is not shared"


def test_an_init_container_takes_no_computing_power_and_who_reuses_its_shares_needs_it_there() -> None:
    cores = half()
    steps = ((INIT, 2), (MAIN, 2))
    found, _ = placed({"a": 5}, *steps, cores=cores, demands=(Demand(percent=30), Demand(percent=30)))
    assert (found.complete(steps), cores.left["a"]) == (True, 200)
    cores = half()
    tight, _ = placed({"a": 5}, *steps, cores=cores, demands=(Demand(percent=10), Demand(percent=60)))
    assert (tight.devices, cores.left["a"]) == (("a",), 500)
    steps = ((INIT, 2), (MAIN, 4))
    demands = (Demand(percent=10), Demand(percent=60))
    assert placed({"a": 5, "b": 9}, *steps, cores=half(), demands=demands)[0].devices == ("a",)
    assert placed({"a": 5, "b": 9}, *steps, cores=half("b"), demands=demands)[0].devices == ("a", "a")


def test_the_percentage_that_is_left_is_rounded_down_and_never_below_nothing() -> None:
    cores = Cores({"a": 299, "b": -50, "c": 7, "d": 0, "e": 9}, {"a": 10, "b": 10, "c": 0, "d": 1, "e": 1})
    assert [cores.percent_left(each) for each in ("a", "b", "c", "d", "e", "unshared")] == [29, 0, 7, 0, 9, 100]
    other = cores.copy()
    other.take("a", Demand(percent=10))
    other.take("unshared", Demand(percent=10))
    assert (other.left["a"], cores.left["a"]) == (199, 299)
