"""A concern that only the tests have: how many devices a node has, as an annotation of the Node.

Everything that one needs is in this file; its registration is the class itself, in the manager's tuple of concerns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import identified, named

ANNOTATION = "example.com/devices"


@dataclass(frozen=True, slots=True)
class Wanted:
    uid: str
    shown: str | None
    value: str | None


class KeptAnnotation:
    """How many devices the node has, as an annotation of the Node; none where the policy has no labels section."""

    info = Info("annotation", section="labels", condition="AnnotationSynced")

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer

    async def observe(self, view: View) -> dict[str, Any] | Outcome:
        if view.target() is None:
            return Outcome()
        return dict(await self._writer.kube.get(named(names.NODES, view.record.name)))

    def desired(self, view: View, observed: dict[str, Any]) -> Wanted:
        enabled = view.sections is not None and view.sections.labels.feature_discovery
        metadata = observed["metadata"]
        shown = metadata.get("annotations", {}).get(ANNOTATION)
        return Wanted(metadata["uid"], shown, str(len(view.record.devices)) if enabled else None)

    async def apply(self, view: View, desired: Wanted) -> Outcome:
        verdict = ("True", "InSync", desired.value or "none")
        if desired.shown == desired.value:
            return Outcome(verdict)
        body = identified("Node", view.record.name, desired.uid)
        if desired.value is not None:
            body["metadata"]["annotations"] = {ANNOTATION: desired.value}
        path = named(names.NODES, view.record.name)
        view.wrote(Kind.NODE, await self._writer.apply("nodedevices-operator-annotation", path, body))
        return Outcome(verdict)

    def forget(self, node: str) -> None:
        """Nothing is remembered."""
