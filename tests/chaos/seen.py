"""What a run sees of its cluster at one moment: frozen values, from which invariants are judged.

Three witnesses of who has which device: the kubelet's PodResources, its checkpoint (with init containers, too), and the
variables of the containers' own processes. Of claims there are PodResources, the claims' allocations, the driver's
records and the device nodes in the containers. NodeDevices and the Nodes are what our parts and the kubelets say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Ids = frozenset[tuple[str, str]]  # resource, id


@dataclass(frozen=True)
class Process:
    """The first process of a container, as the machine has it."""

    pid: int
    pod: str  # uid
    container: str  # id
    visible: frozenset[str] | None = None  # NVIDIA_VISIBLE_DEVICES; None: there is no such variable
    nodes: frozenset[str] = frozenset()  # /dev/nvidia0, ... in its root, by their names


@dataclass(frozen=True)
class Holder:
    pod: str  # name, or uid in the checkpoint
    container: str
    ids: Ids
    claims: frozenset[tuple[str, str]] = frozenset()  # claim, device of our driver
    cdi: frozenset[str] = frozenset()  # what the container runtime was given of them, by its name


@dataclass(frozen=True)
class Record:
    """What the driver has written down of a claim."""

    claim: str
    uid: str
    devices: Mapping[str, Sequence[str]]  # name in the slices -> its id, or those of shares


@dataclass(frozen=True)
class Published:
    """A device in a ResourceSlice."""

    name: str
    resource: str
    uuid: str
    tainted: bool = False
    shares: int = 1  # how many claims can have it


@dataclass(frozen=True)
class NodeSeen:
    name: str
    answers: bool = True  # the kubelet
    offered: Ids = frozenset()  # what it may hand out, held or not
    holders: tuple[Holder, ...] = ()
    checkpoint: tuple[Holder, ...] = ()
    processes: tuple[Process, ...] = ()
    records: tuple[Record, ...] = ()
    published: tuple[Published, ...] = ()
    cdi: frozenset[str] = frozenset()  # names in files for the container runtime
    node: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)  # its NodeDevices


@dataclass(frozen=True)
class PodSeen:
    uid: str
    name: str
    node: str
    phase: str
    reason: str = ""
    deleting: bool = False
    containers: Mapping[str, str] = field(default_factory=dict)  # container id -> name
    init: frozenset[str] = frozenset()  # names of containers that end before the others start
    healthy: str = ""  # the status of the condition DeviceHealthy; empty: it has none
    claims: Mapping[str, frozenset[tuple[str, str]]] = field(
        default_factory=dict
    )  # container -> claim, request ("": all)
    unscheduled: str = ""  # why no scheduler has placed it
    refused: str = ""  # why the kubelet could not prepare its claims, as its last Event says


@dataclass(frozen=True)
class ClaimSeen:
    """A ResourceClaim, as it is allocated."""

    name: str
    uid: str
    devices: frozenset[tuple[str, str]] = frozenset()  # request, device of our driver
    node: str = ""  # whose pool they are of
    owner: str = ""  # the pod that it was made for, by a scheduler


@dataclass(frozen=True)
class Seen:
    nodes: Mapping[str, NodeSeen]
    pods: Mapping[str, PodSeen] | None = None  # by name; None: the API server is away
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: Mapping[str, bool] = field(default_factory=dict)  # pods of ours -> Ready
    claims: Mapping[str, ClaimSeen] = field(default_factory=dict)
    classes: frozenset[str] = frozenset()  # of the operator
