"""S39: the previous version and this one on one cluster, back and forth, under pods that hold devices.

The way back comes first: this version is installed when the test begins. Between the two each part meets the other
version's: CRDs, agent, operator. `support.previous` says what the previous version is. A user does no more than apply
manifests; only where two versions are to stay together for a moment, one part of them is applied and not the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.rig import images
from cluster.rig.problem import Progress
from support import installing, previous
from support.cluster import GPU, NAMESPACE
from support.holding import SHARED, WHOLE, Holding
from support.installing import AGENT
from support.kubectl import Watch
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

THIS, PREVIOUS = images.references(), images.references(previous.IMAGES)


@pytest.fixture
def both(rig: RigCluster) -> Iterator[RigCluster]:
    """The images of both versions are on the nodes; this version is installed again in the end."""
    rig.rig.rig.load(images.built(Progress(), previous.IMAGES, previous.folder()))
    yield rig
    installing.install(rig.kubectl, THIS)


def agents_run(rig: RigCluster, version: dict[str, str]) -> bool:
    found = (each["image"] for node in (rig.a, rig.b) for each in rig.agent(node)["spec"]["containers"])
    return set(found) == {version["nodedevices-agent"]}


def operators_run(rig: RigCluster, version: dict[str, str]) -> bool:
    found = (each["image"] for pod in rig.operator_pods() for each in pod["spec"]["containers"])
    return set(found) == {version["nodedevices-operator"]}


def counts(node: dict[str, Any]) -> tuple[str, str, str]:
    return node["metadata"]["name"], *(node["status"][what].get(GPU, "none") for what in ("capacity", "allocatable"))


def test_s39_the_previous_version_and_this_one_take_over_from_each_other_under_running_pods(both: RigCluster) -> None:
    rig, kubectl, holding = both, both.kubectl, Holding(both)
    with Watch(kubectl, ("nodes",)) as nodes:
        # Back: first the CRDs alone, then the rest.
        kubectl.apply(*previous.crds().values())
        holding.fault()
        installing.install(kubectl, PREVIOUS, root=previous.folder())
        assert agents_run(rig, PREVIOUS)
        assert operators_run(rig, PREVIOUS)
        holding.cure()
        # Forward: the CRDs, under agents and an operator that do not know them; then the agents; then the operator.
        new = installing.rendered(kubectl, THIS)
        kubectl.apply(*(each for each in new if each["kind"] == "CustomResourceDefinition"))
        holding.fault()
        kubectl.apply(*(each for each in new if each["kind"] not in {"CustomResourceDefinition", "Deployment"}))
        installing.rolled_out(kubectl, AGENT)
        assert agents_run(rig, THIS)
        assert operators_run(rig, PREVIOUS)
        rig.marked(WHOLE, "False")
        holding.cure()
        installing.install(kubectl, THIS)
        assert operators_run(rig, THIS)
        holding.fault()
        holding.cure()
    shown = {counts(node) for _, node in nodes.seen}
    capacity = {(name, capacity) for name, capacity, _ in shown}
    assert capacity == {(rig.a, "8"), (rig.b, "8")}, "the kubelet keeps it while an agent is replaced"
    assert {WHOLE, SHARED} == {each["metadata"]["name"] for each in kubectl.items("pods", NAMESPACE)} & {WHOLE, SHARED}
