"""A concern that only the tests have: how many devices a node has, as an annotation of the Node.

Everything that one needs is in this file; its registration is the class itself, in the manager's tuple of concerns.
"""

from __future__ import annotations

from nodedevices_api.defaults import Resolved
from nodedevices_operator.concerns.port import Info, OnNode, Outcome, View
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import identified, named
from nodedevices_operator.records.objects import NodeRecord

ANNOTATION = "example.com/devices"


class KeptAnnotation(OnNode[None]):
    """How many devices the node has, as an annotation of the Node; none where the policy has no labels section."""

    info = Info("annotation", section="labels", condition="AnnotationSynced")

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        path = named(names.NODES, node.name)
        metadata = (await self._writer.kube.get(path))["metadata"]
        value = str(len(view.record.devices)) if sections.labels.feature_discovery else None
        verdict = ("True", "InSync", value or "none")
        if metadata.get("annotations", {}).get(ANNOTATION) == value:
            return Outcome(verdict)
        body = identified("Node", node.name, metadata["uid"])
        if value is not None:
            body["metadata"]["annotations"] = {ANNOTATION: value}
        view.wrote(Kind.NODE, await self._writer.apply("nodedevices-operator-annotation", path, body))
        return Outcome(verdict)
