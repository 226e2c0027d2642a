"""What `check` reads of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from nodedevices_api.dra import DRA_DRIVER
from nodedevices_common.raw import Raw
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import claims, facts
from nodedevices_kubectl.views.check import Seen
from nodedevices_kubectl.views.claims import SeenClaims

T = TypeVar("T")


def read(session: Session, names: Sequence[str], selector: str, system_namespace: str) -> Seen:
    """Without names and selector all of the cluster."""
    api = session.api
    if names:
        items = [session.node(name) for name in dict.fromkeys(names)]
        return Seen(items, allowed(lambda: _named_nodes(session, names)), claims=claims_of(session, items))
    items, _ = api.list_all(objects.NODE_DEVICES, selector=selector)
    if not items:
        pods = objects.pods(system_namespace)
        agents = None if selector else allowed(lambda: api.list_all(pods, selector=facts.AGENTS)[0])
        return Seen(items, agents=agents or ())
    nodes = allowed(lambda: by_name(api.list_all(objects.NODES)[0]))
    if selector:
        return Seen(items, nodes, claims=claims_of(session, items))
    policies, _ = api.list_all(objects.POLICIES)
    lease, seen = lease_of(session, system_namespace), claims_of(session, items)
    return Seen(items, nodes, whole=True, policies=policies, lease=lease, claims=seen)


def claims_of(session: Session, items: Sequence[Raw]) -> SeenClaims | None:
    """Read what there is of DRA, where a node serves by it. Claims and Events only where a pod waits with a claim."""
    if not any(map(claims.by_dra, items)):
        return None
    node = f",spec.nodeName={facts.name_of(items[0])}" if len(items) == 1 else ""

    def listed(collection: str, fields: str = "") -> list[Raw] | None:
        return allowed(lambda: session.api.list_all(collection, fields=fields)[0])

    try:
        slices = listed(objects.SLICES, f"spec.driver={DRA_DRIVER}{node}")
    except ApiError as error:
        if error.status != 404:
            raise
        return SeenClaims(api=False)
    pending = listed(objects.PODS, "status.phase=Pending")
    waiting = None if pending is None else [pod for pod in pending if claims.has_claims(pod)]
    found = listed(objects.CLAIMS) if waiting else []
    return SeenClaims(
        slices=slices,
        classes=listed(objects.CLASSES),
        pods=waiting,
        claims=None if found is None else {facts.namespaced(claim): claim for claim in found},
        events=listed(objects.EVERY_EVENT, f"reason={claims.NOT_PREPARED}") if waiting else [],
    )


def read_installation(session: Session, system_namespace: str) -> Seen:
    """Read all agents' pods and their Nodes, and what these report. Without the right to, an error."""
    items, _ = session.api.list_all(objects.NODE_DEVICES)
    nodes, _ = session.api.list_all(objects.NODES)
    agents, _ = session.api.list_all(objects.PODS, selector=facts.AGENTS)
    return Seen(items, by_name(nodes), agents=agents, lease=lease_of(session, system_namespace))


def by_name(items: Sequence[Raw]) -> dict[str, Raw]:
    return {facts.name_of(item): item for item in items}


def _named_nodes(session: Session, names: Sequence[str]) -> dict[str, Raw]:
    found = (session.api.find(objects.at(objects.NODES, name)) for name in dict.fromkeys(names))
    return by_name([node for node in found if node is not None])


def lease_of(session: Session, namespace: str) -> Raw | None:
    """The operator's; empty: there is none; None: this person may not read it."""
    return allowed(lambda: session.api.find(objects.operator_lease(namespace)) or {})


def allowed(read_it: Callable[[], T]) -> T | None:
    """Return what is read; None: this person may not read it."""
    try:
        return read_it()
    except ApiError as error:
        if error.status != 403:
            raise
    return None
