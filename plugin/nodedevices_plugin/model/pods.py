"""The pods of this node, as far as it matters which containers request a share and how much computing power they need.

`requests` and `cores` of a container are as they were when its pod was first seen: so what was reserved for it stays
enough, also after its annotations are edited.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct
from nodedevices_common.pod_requests import Container


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer(Container):
    """`started`: the kubelet has started it, so that its devices were allocated before."""

    started: bool = False


class NodePod(Struct, frozen=True, kw_only=True):
    """`containers`: in the order in which the kubelet allocates. `acknowledged`: the kubelet has admitted it.
    `seen`: time.monotonic() when it was first seen. `strays`: names in its annotations that none of its containers
    has, as they were then."""

    uid: str
    namespace: str
    name: str
    containers: tuple[PodContainer, ...] = ()
    finished: bool = False
    acknowledged: bool = False
    strays: tuple[str, ...] = ()
    seen: float = 0.0


class NodePods(Struct, frozen=True, kw_only=True):
    """`pods` None: not known, for the reason in `problem`. Afterwards the last ones that are known stay, and a problem
    says that they may be old. `forbidden`: the API server refuses to tell."""

    pods: tuple[NodePod, ...] | None = None
    problem: str = ""
    forbidden: bool = False
