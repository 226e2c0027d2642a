"""A concern that only the tests have: how many devices a node has, as an annotation of the Node.

Everything that one needs is in this file; its registration is the class itself, in the manager's tuple of concerns.
"""

from __future__ import annotations

from nodedevices_operator.concerns.port import Concern, Info, Outcome, View
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import identified, named

ANNOTATION = "example.com/devices"


class KeptAnnotation(Concern):
    """How many devices the node has, as an annotation of the Node; none where the policy has no labels section."""

    info = Info("annotation", section="labels", condition="AnnotationSynced")

    async def reconcile(self, view: View) -> Outcome:
        if view.target() is None:
            return Outcome()
        metadata = (await self._writer.kube.get(named(names.NODES, view.record.name)))["metadata"]
        enabled = view.sections is not None and view.sections.labels.feature_discovery
        value = str(len(view.record.devices)) if enabled else None
        verdict = ("True", "InSync", value or "none")
        if metadata.get("annotations", {}).get(ANNOTATION) == value:
            return Outcome(verdict)
        body = identified("Node", view.record.name, metadata["uid"])
        if value is not None:
            body["metadata"]["annotations"] = {ANNOTATION: value}
        path = named(names.NODES, view.record.name)
        view.wrote(Kind.NODE, await self._writer.apply("nodedevices-operator-annotation", path, body))
        return Outcome(verdict)
