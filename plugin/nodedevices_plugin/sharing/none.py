"""No sharing: every device goes to one container. There are no rules to carry out, since `none` has none."""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.model import NOT_SHARED, ContainerEdits, Grant
from nodedevices_plugin.sharing.base import NodeTraits, Settings, Split, SplitRequest

NAME = NOT_SHARED.name


class NoSharing(Struct, frozen=True):
    name = NAME
    helper = None

    def check(self, node: NodeTraits) -> None:
        """Always possible."""

    def split(self, request: SplitRequest) -> Split:
        return Split(counts=(1,) * len(request.units), sharing=NOT_SHARED)

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        return ContainerEdits()
