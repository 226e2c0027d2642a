"""What the end-to-end tests call a doubled device."""

from __future__ import annotations

from support.bookings import Sample, doubled
from support.cases import cases

GPU, OTHER = "nvidia.com/gpu", "example.com/gpu"


def holds(pod: str, id_: str, resource: str = GPU) -> dict[str, object]:
    return {"namespace": "n", "pod": pod, "container": "c", "devices": [{"resource": resource, "ids": [id_]}]}


@cases(
    ("offered", "holders"),
    ({GPU: ["A", "B"]}, [holds("one", "A"), holds("two", "B")]),
    ({GPU: ["A::0", "A::1", "B"]}, [holds("one", "A::0"), holds("two", "A::1")]),
    ({GPU: ["B::0", "B::1"]}, [holds("one", "A")]),
    ({GPU: ["B::0"]}, [holds("one", "A::3"), holds("two", "A::0")]),
    ids=["whole", "shares", "withheld", "withheld shares"],
)
def test_devices_of_one_plan_and_withheld_ones_are_right(offered: dict[str, list[str]], holders: list[object]) -> None:
    assert doubled(Sample.of(offered, holders)) == []  # type: ignore[arg-type]


@cases(
    ("offered", "holders"),
    ({GPU: ["A"]}, [holds("one", "A"), holds("two", "A")]),
    ({GPU: ["A::0"]}, [holds("one", "A::0"), holds("two", "A")]),
    ({OTHER: ["A::1"], GPU: ["A::0"]}, [holds("one", "A::0"), holds("two", "A::1", OTHER)]),
    ({GPU: ["A::0", "A::1"]}, [holds("one", "A")]),
    ({GPU: ["A::0", "A::1"]}, [holds("one", "A::3")]),
    ({OTHER: ["A"]}, [holds("one", "A")]),
    ids=["one id twice", "whole and share", "two names", "offered in shares", "a share that is gone", "another name"],
)
def test_a_second_way_to_the_same_device_is_seen(offered: dict[str, list[str]], holders: list[object]) -> None:
    assert len(doubled(Sample.of(offered, holders))) >= 1  # type: ignore[arg-type]
