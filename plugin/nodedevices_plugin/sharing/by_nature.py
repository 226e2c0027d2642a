"""Shared by nature: devices that several containers use at once without a sharing mode, such as RDMA HCAs, FUSE, or a
pool outside the node. Their vendor decides how often each is offered (Vendor.shares); no policy chooses it."""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.model import ContainerEdits, Grant, PlanError, SharingFacts
from nodedevices_plugin.sharing.base import NodeTraits, Settings, Split, SplitRequest

NAME = "shared"


class ByNature(Struct, frozen=True):
    name = NAME
    helper = None

    def check(self, node: NodeTraits) -> None:
        raise PlanError("sharing.strategy", NAME, "devices have it by themselves; give none, timeSlicing or mps")

    def split(self, request: SplitRequest) -> Split:
        return Split(counts=(1,) * len(request.units), sharing=SharingFacts(mode=self))

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        return ContainerEdits()
