"""Who has which device, as a kubelet's PodResources shows it at one moment, and what must never be seen there.

A kubelet knows ids and no device behind them: `GPU-a`, `GPU-a::3` and the same under another resource's name are three
things to it. What is wrong is said in words; none is right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


def physical(id_: str) -> str:
    """The device, or partition, that an id is one of."""
    return id_.partition("::")[0]


@dataclass(frozen=True)
class Sample:
    """First what could be handed out, and just after it who held what: who ends in between is seen nowhere, and who
    starts holds what was offered."""

    offered: frozenset[tuple[str, str]]  # resource and id, healthy, held or not
    held: tuple[tuple[str, str, str], ...]  # container, resource, id

    @classmethod
    def of(cls, allocatable: Mapping[str, Collection[str]], holders: Iterable[Mapping[str, Any]]) -> Sample:
        """From the two answers, as the node client has them."""
        return cls(
            frozenset((resource, id_) for resource, ids in allocatable.items() for id_ in ids),
            tuple(
                (f"{one['namespace']}/{one['pod']}/{one['container']}", device["resource"], id_)
                for one in holders
                for device in one["devices"]
                for id_ in device["ids"]
            ),
        )


def doubled(sample: Sample) -> list[str]:
    """Devices that two have, or that a second one could get, other than as shares of one plan."""
    found: list[str] = []
    by_device: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for one in sample.held:
        by_device[physical(one[2])].append(one)
    for device, held in by_device.items():
        twice = [id_ for id_, count in Counter(id_ for _, _, id_ in held).items() if count > 1]
        forms = {(resource, "::" in id_) for _, resource, id_ in held}
        if twice or len(forms) > 1:
            found.append(f"{device} has {held}")
        gone = [one for one in held if one[1:] not in sample.offered]
        others = sorted(each for each in sample.offered if physical(each[1]) == device)
        if gone and others:
            found.append(f"{gone} hold what is offered no more, and {others} of the same device are offered")
    return found
