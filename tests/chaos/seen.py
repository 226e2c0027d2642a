"""What a run sees of its cluster at one moment: frozen values, from which invariants are judged.

Three witnesses of who has which device: the kubelet's PodResources, its checkpoint (with init containers, too), and the
variables of the containers' own processes. NodeDevices and the Nodes are what our parts and the kubelets say.
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Holder:
    pod: str  # name, or uid in the checkpoint
    container: str
    ids: Ids


@dataclass(frozen=True)
class NodeSeen:
    name: str
    answers: bool = True  # the kubelet
    offered: Ids = frozenset()  # what it may hand out, held or not
    holders: tuple[Holder, ...] = ()
    checkpoint: tuple[Holder, ...] = ()
    processes: tuple[Process, ...] = ()
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


@dataclass(frozen=True)
class Seen:
    nodes: Mapping[str, NodeSeen]
    pods: Mapping[str, PodSeen] | None = None  # by name; None: the API server is away
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: Mapping[str, bool] = field(default_factory=dict)  # pods of ours -> Ready
