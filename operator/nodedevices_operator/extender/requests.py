"""Requests of a pod for resources that are shared by memory, in the order in which the kubelet allocates; and of the
computing power of the same devices, where that is shared too (nodedevices_common.pod_requests, as the agent reads it).

A pod comes from the scheduler or a watch, as raw JSON: what is missing or odd reads as no request, so that the pod
passes and the kubelet judges it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec import Struct
from nodedevices_common.pod_requests import ALL, Demand, Want, amounts, pod_containers, raw_containers, wants
from nodedevices_common.raw import Raw, mapping

ContainerRequest = tuple[int, int]  # the kind of one container, and how many shares it requests
Steps = tuple[ContainerRequest, ...]


class PodRequest(Struct, frozen=True):
    """Requests of one pod's containers for one resource; those that request none are left out."""

    steps: Steps
    names: tuple[str, ...]  # of the containers, for messages and holders
    demands: tuple[Demand, ...] = ()  # of computing power; empty: as much as its shares are of all, for each
    problem: str = ""  # why no node has computing power for it, where that is shared

    @property
    def single(self) -> int:
        """Number of shares, where one container alone requests any; else 0."""
        return self.steps[0][1] if len(self.steps) == 1 else 0


def requests_of(pod: Raw, resources: Set[str]) -> dict[str, PodRequest]:
    """Return the pod's requests by resource."""
    if all(resources.isdisjoint(amounts(container)) for _, container in raw_containers(mapping(pod.get("spec")))):
        return {}  # nearly all pods of a cluster: no more of them is read
    containers, strays = pod_containers(pod)
    wanted = dict.fromkeys(name for container in containers for name in container.requests if name in resources)
    return {name: _request(wants(containers, name, strays)) for name in wanted}


def _request(found: Sequence[Want]) -> PodRequest:
    steps = tuple((want.kind, want.size) for want in found)
    demands = tuple(ALL if want.problem else want.demand for want in found)
    own = tuple(Demand(units=want.size) for want in found)
    problem = next((want.problem for want in found if want.problem), "")
    return PodRequest(steps, tuple(want.container for want in found), () if demands == own else demands, problem)
