"""What the kubelet is answered, from the plan in force: no I/O, no lock, nothing awaited."""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_plugin.metrics import Metrics
from nodedevices_plugin.model import AllocationError, ContainerEdits, Inventory, OfferedResource, Plan
from nodedevices_plugin.resources.injection import InjectionContext, allocate
from nodedevices_plugin.resources.preferred import prefer
from nodedevices_plugin.resources.topology import Topology, build


class Answers:
    """The Allocator of the kubelet's servers. `use` replaces everything at once."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._resources: dict[str, OfferedResource] = {}
        self._context = InjectionContext()
        self._topology = Topology()
        self._packed = False

    def use(self, plan: Plan, inventory: Inventory, context: InjectionContext, *, packed: bool = False) -> None:
        self._packed = packed
        self._resources = {each.name: each for each in plan.resources}
        self._context = context
        self._topology = build(inventory)

    def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        try:
            answer = allocate(self._offered(resource), ids, self._context)
        except AllocationError:
            self._metrics.allocated(resource, granted=False)
            raise
        self._metrics.allocated(resource, granted=True)
        return answer

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        return prefer(self._offered(resource), available, must_include, size, self._topology, packed=self._packed)

    def _offered(self, resource: str) -> OfferedResource:
        offered = self._resources.get(resource)
        if offered is None:
            raise AllocationError(
                f"{resource}: this node no longer offers it; delete the pod, so that it is scheduled anew"
            )
        return offered
