"""Questions to the mode of a shared resource, which is part of the resource (model.sharing.SharingFacts)."""

from __future__ import annotations

from typing import cast

from nodedevices_plugin.model import OfferedResource, PlanError
from nodedevices_plugin.sharing.base import AsksNode, HelperKind, Settings, SharingMode


def mode_of(resource: OfferedResource) -> SharingMode | None:
    """None: its devices are handed out whole."""
    return cast("SharingMode | None", resource.sharing.mode)


def refusal(resource: OfferedResource, settings: Settings) -> PlanError | None:
    """Return why this node cannot give containers what they need for shares of the resource; None: it can."""
    mode = mode_of(resource)
    return mode.refusal(resource, settings) if isinstance(mode, AsksNode) else None


def helper_kind(resource: OfferedResource) -> HelperKind | None:
    """Return the kind of helper that the shares of this resource need; None: none."""
    mode = _runs(resource)
    return mode.helper if mode is not None else None


def runs(resource: OfferedResource) -> str:
    """Return the name of the mode that runs the processes which use this resource, by its helper if it has one: the
    mode that enforces the limits, or else the mode by which it is shared."""
    mode = _runs(resource)
    return mode.name if mode is not None else resource.sharing.name


def _runs(resource: OfferedResource) -> SharingMode | None:
    return cast("SharingMode | None", resource.sharing.enforced_by or resource.sharing.mode)
