"""A call between the kubelet and the agent that has ended; for metrics."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class Method(StrEnum):
    """The method's name in the device plugin API. Register is the agent's call, the others are the kubelet's."""

    REGISTER = "Register"
    ALLOCATE = "Allocate"
    PREFERRED = "GetPreferredAllocation"


class Result(StrEnum):
    GRANTED = "granted"
    REFUSED = "refused"  # with a reason that the other side shows
    FAILED = "failed"  # Allocate, GetPreferredAllocation: by a bug; Register: the kubelet did not answer


class KubeletCall(Struct, frozen=True):
    """`seconds`: its duration, on the agent's side."""

    method: Method
    resource: str
    result: Result
    seconds: float


CallObserver = Callable[[KubeletCall], None]
"""Gets each call as it ends, in any thread and before the kubelet has its answer: it neither blocks nor raises."""


def unobserved(call: KubeletCall) -> None:
    """A CallObserver that does nothing."""
