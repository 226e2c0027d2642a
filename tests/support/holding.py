"""Two pods that hold devices, whole ones on node `a` and a share on node `b`, and what of them no step may change.

For tests that replace our parts under running pods: by another version, by helm.
"""

from __future__ import annotations

from chaos.always import judge
from chaos.invariants import History
from support import simulated
from support.cluster import GPU
from support.rig_cluster import RigCluster

WHOLE, SHARED = "whole", "shared"
SLICES = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}]}}


class Holding:
    """Made once; then `unchanged` after each step."""

    def __init__(self, rig: RigCluster) -> None:
        self.rig = rig
        rig.policy("slices", SLICES, selector={"kubernetes.io/hostname": rig.b})
        rig.until("shares are offered", lambda: len(rig.ids(rig.b)) == 8)
        rig.until("the Node has them", lambda: rig.node_count(rig.b, GPU, "capacity") == 8)
        self.pods = rig.pod(WHOLE, rig.a, {GPU: 2}), rig.pod(SHARED, rig.b, {GPU: 1})
        self.held = self._held()
        self.ids = {node: rig.ids(node) for node in (rig.a, rig.b)}
        self.bad, _ = sorted(self.held[WHOLE])
        self.history = History()

    def unchanged(self) -> None:
        """Pods, ids, holders, and a configuration that is in effect."""
        rig = self.rig
        for node, pod in ((rig.a, WHOLE), (rig.b, SHARED)):
            rig.until(f"the kubelet of {node} has its ids", lambda n=node: rig.ids(n) == self.ids[n])  # type: ignore[misc]
            for kind in ("Ready", "ConfigApplied"):
                rig.until(f"{node} is {kind}", lambda n=node, k=kind: self._true(n, k))  # type: ignore[misc]
            rig.agreed(node, pod)
        self.pods_hold()
        self.history = judge(rig, self.history)

    def pods_hold(self) -> None:
        """The very same pods run, with the devices that they have had; true without any part of ours."""
        for each in self.pods:
            self.rig.alive(each)
        assert self._held() == self.held

    def fault(self, *, off_the_bus: bool = False) -> None:
        """One of the devices that the first pod holds fails, and the pod is marked; off the bus, until it restarts."""
        index = self.rig.devices(self.rig.a)[self.bad]["index"]
        self.rig.hardware(self.rig.a, simulated.h100s(xid79=index) if off_the_bus else simulated.h100s(ecc=index))
        self.rig.marked(WHOLE, "False")
        self.withdrawn()

    def withdrawn(self) -> None:
        """The failed one, and no other."""
        self.rig.until("it is withdrawn", lambda: self.rig.ids(self.rig.a) == self.ids[self.rig.a] - {self.bad})

    def cure(self, *, off_the_bus: bool = False) -> None:
        self.rig.hardware(self.rig.a, simulated.h100s())
        if off_the_bus:
            self.rig.lost_it(WHOLE)
        else:
            self.rig.marked(WHOLE, "True")
        self.unchanged()

    def _held(self) -> dict[str, set[str]]:
        return {WHOLE: self.rig.held(self.rig.a, WHOLE), SHARED: self.rig.held(self.rig.b, SHARED)}

    def _true(self, node: str, kind: str) -> bool:
        return bool(self.rig.condition("nodedevices", node, kind).get("status") == "True")
