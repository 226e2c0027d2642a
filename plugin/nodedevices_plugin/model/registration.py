"""The registrations of the plan's resources with the kubelet; and for metrics, the calls between the kubelet and the
agent, and counts of one probe's lines. And notes on a configuration, as NodeDevices has them in fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from msgspec import Struct
from nodedevices_common.text import place_of


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
    return frozenset(
        registration.resource
        for registration in registrations
        if registration.state is RegistrationState.SERVED_BY_ANOTHER
    )


class Method(StrEnum):
    """The method's name in the device plugin API, or in DRA's. Register is the agent's call, the others are the
    kubelet's."""

    REGISTER = "Register"
    ALLOCATE = "Allocate"
    PREFERRED = "GetPreferredAllocation"
    PREPARE = "NodePrepareResources"
    UNPREPARE = "NodeUnprepareResources"


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


class ProbeCounters(Struct):
    """Since the agent started; for metrics. A start is one of its process, or a connection to its socket."""

    lines: int = 0  # good ones
    bad_lines: int = 0
    starts: int = 0
    kills: int = 0  # for silence


class Refused(Struct, frozen=True, kw_only=True):
    """A configuration that is not applied, and why. `section`: of a policy; empty: none. `field`: its place, where
    known."""

    section: str = ""
    field: str = ""
    message: str


class Unmatched(Struct, frozen=True, kw_only=True):
    """An entry without effect on this node. `entry`: its place within the section, and what stands there."""

    section: str
    entry: str
    message: str

    @property
    def text(self) -> str:
        """The note for people."""
        return f"{place_of(self.section, self.entry)}: {self.message}"
