"""Time-slicing: the ids of a device are multiplied, and nothing else. The driver's scheduler switches between the
processes; nothing keeps their memory or their faults apart."""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.model import ContainerEdits, Grant
from nodedevices_plugin.sharing.base import NodeTraits, Settings, Split, SplitRequest, by_replicas

NAME = "timeSlicing"


class TimeSlicing(Struct, frozen=True):
    name = NAME
    helper = None

    def check(self, node: NodeTraits) -> None:
        """Always possible."""

    def split(self, request: SplitRequest) -> Split:
        return by_replicas(self, request)

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        return ContainerEdits()
