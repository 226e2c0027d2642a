"""The registrations of the plan's resources with the kubelet."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class RegistrationState(StrEnum):
    PENDING = "Pending"
    REGISTERED = "Registered"  # the kubelet has an open ListAndWatch stream
    KUBELET_UNREACHABLE = "KubeletUnreachable"
    REJECTED = "RegistrationRejected"
    SERVED_BY_ANOTHER = "ServedByAnother"  # another device plugin has the name; we register when it is gone


class Registration(Struct, frozen=True, kw_only=True):
    """The state of one resource's registration."""

    resource: str
    state: RegistrationState
    message: str = ""


# --- what the agent has to say about its configuration ---------------------------------------------------------------


def served_by_others(registrations: Iterable[Registration]) -> frozenset[str]:
    """Names of the plan that another device plugin serves to the kubelet: nothing of them is reported as ours."""
    return frozenset(each.resource for each in registrations if each.state is RegistrationState.SERVED_BY_ANOTHER)
