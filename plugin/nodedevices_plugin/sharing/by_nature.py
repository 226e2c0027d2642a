"""Shared by nature: devices that several containers use at once without a sharing mode, such as RDMA HCAs, FUSE, or a
pool outside the node. Their vendor decides how often each is offered (Vendor.shares); no policy chooses it."""

from __future__ import annotations

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.sharing.base import NodeTraits, SharingMode

NAME = "shared"


class ByNature(SharingMode, frozen=True):
    name = NAME

    def check(self, node: NodeTraits) -> None:
        raise PlanError("sharing.strategy", NAME, "devices have it by themselves; give none, timeSlicing or mps")
