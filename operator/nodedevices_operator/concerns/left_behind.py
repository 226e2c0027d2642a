"""What an earlier NodeDevices of a node has left on its pods: it took the record of that with it, when it was deleted
by hand or with its CRD, perhaps while no operator ran.

It is looked for once: in the first reconciliation of a NodeDevices, before it has our conditions. What is found is
recorded by the same write that puts these there, so that a kill in between finds nothing half done.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_operator.concerns.port import View
from nodedevices_operator.kube.port import JsonObject, Kube
from nodedevices_operator.records.names import PODS


async def pods_at_first(view: View, kube: Kube) -> Sequence[JsonObject]:
    """Return the node's pods in the first reconciliation, listed once for all concerns; later none. May raise
    KubeError."""
    if not view.first:
        return ()
    if view.pods_at_first is None:
        pages = kube.pages(PODS, fieldSelector=f"spec.nodeName={view.record.name}")
        view.pods_at_first = [pod async for page in pages for pod in page]
    return view.pods_at_first
