"""What is asked of the mode by which a resource is shared: the resource has it with it (model.sharing.SharingFacts)."""

from __future__ import annotations

from typing import cast

from nodedevices_plugin.model import OfferedResource, PlanError
from nodedevices_plugin.sharing.base import AsksNode, HelperKind, Settings, SharingMode


def mode_of(resource: OfferedResource) -> SharingMode | None:
    """None: its devices are handed out whole."""
    return cast("SharingMode | None", resource.sharing.mode)


def refusal(resource: OfferedResource, settings: Settings) -> PlanError | None:
    """Why this node does not give containers what they are to get for shares of the resource."""
    mode = mode_of(resource)
    return mode.refusal(resource, settings) if isinstance(mode, AsksNode) else None


def helper_kind(resource: OfferedResource) -> HelperKind | None:
    """What the shares of this resource need beside the kubelet; None: nothing."""
    mode = _runs(resource)
    return mode.helper if mode is not None else None


def runs(resource: OfferedResource) -> str:
    """The name of the mode whose helper, where it has one, runs the processes that use this resource: what enforces
    its limits, or else the mode by which it is shared."""
    mode = _runs(resource)
    return mode.name if mode is not None else resource.sharing.name


def _runs(resource: OfferedResource) -> SharingMode | None:
    return cast("SharingMode | None", resource.sharing.enforced_by or resource.sharing.mode)
