"""The extender's memory: shares by node, and the pods that request them; tables are made when they are needed.

Small on purpose: of a NodeDevices only what its shares are, of pods only those that request a resource that some
NodeDevices shares by memory, and of these only what they request and where they are. Which resources these are is seen
in NodeDevices alone. When there is one more, pods have to be listed again (`pods_wanted`), and until then nodes pass
for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache, partial
from sys import intern

from msgspec import Struct, field
from nodedevices_common.raw import Raw, mapping, mappings

from nodedevices_operator.desired.conditions import OVERDUE_AFTER_SECONDS
from nodedevices_operator.extender.shares import NodeShares, PodRequest, pod_key, read, requests_of
from nodedevices_operator.extender.table import BoundPod, EndedPod, Table, tabulate

MAX_ENDED = 256  # pods of one node that are remembered after their end
MAX_REQUESTS = 4096  # different ones of pods, each kept once
SECONDS_DIGITS = 14  # of a time; metav1.Time has no fractions
_WITHOUT_SIGNS = str.maketrans("", "", "-T:Z")
FINISHED = ("Succeeded", "Failed")


class _Node(Struct):
    """Facts of one node."""

    shares: NodeShares
    heard: float  # clock; when its heartbeat changed
    tables: dict[str, Table] = field(default_factory=dict)  # by resource; forgotten when anything of it changes


class SharesCache:
    """Synchronous, for one event loop. Times are by the caller's clock."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._pods: dict[str, dict[str, BoundPod]] = {}  # by node, by uid
        self._ended: dict[str, dict[str, EndedPod]] = {}  # by node, by uid: while it matters when they ended
        self._offering: Counter[str] = Counter()  # resource -> nodes
        self._covered: frozenset[str] = frozenset()  # resources whose pods are known
        self._arrivals = 0
        self.version = 0  # grows with each change that an answer could depend on
        self.bound: Callable[[str], None] = lambda _uid: None  # called with the uid of each pod seen bound to a node
        self.pods_wanted: Callable[[], None] = lambda: None  # called when pods have to be listed again

    # --- NodeDevices -------------------------------------------------------------------------------------------------
    def observe_node(self, raw: Raw, now: float, *, gone: bool = False) -> None:
        shares = read(raw)
        if gone:
            self._remove(shares.name)
        else:
            self._observe(shares, now)

    def _observe(self, shares: NodeShares, now: float) -> None:
        known = self._nodes.get(shares.name)
        if known is not None and known.shares == shares:
            return
        self.version += 1
        self._offering.update(shares.resources.keys())
        if known is None:
            self._nodes[shares.name] = _Node(shares, now)
        else:
            self._offering.subtract(known.shares.resources.keys())
            if known.shares.heartbeat != shares.heartbeat:
                known.heard = now
            if known.shares.resources != shares.resources:
                known.tables = {}
            known.shares = shares
            self._forget_ended(shares)
        if not self._covered.issuperset(shares.resources):
            self.pods_wanted()

    def _remove(self, name: str) -> None:
        known = self._nodes.pop(name, None)
        if known is not None:
            self.version += 1
            self._offering.subtract(known.shares.resources.keys())
            self._ended.pop(name, None)

    def replace_nodes(self, found: Sequence[NodeShares], now: float) -> None:
        """Replace all nodes by these, which a complete list has."""
        for shares in found:
            self._observe(shares, now)
        for name in self._nodes.keys() - {shares.name for shares in found}:
            self._remove(name)

    @property
    def resources(self) -> frozenset[str]:
        """Resources that some node shares by memory."""
        return frozenset(name for name, nodes in self._offering.items() if nodes > 0)

    # --- pods --------------------------------------------------------------------------------------------------------
    def read_pod(self, raw: Raw, resources: Set[str], *, arrival: int) -> BoundPod | None:
        """Return the pod as it matters here; None: nothing of it does."""
        metadata, spec, status = (mapping(raw.get(name)) for name in ("metadata", "spec", "status"))
        node = spec.get("nodeName")
        if not node or status.get("phase") in FINISHED or not resources:
            return None
        requests = requests_of(raw, resources)
        if not requests:
            return None
        scheduled = (
            it.get("lastTransitionTime")
            for it in mappings(status.get("conditions"))
            if it.get("type") == "PodScheduled"
        )
        return BoundPod(
            order=(_moment(next(scheduled, "")), arrival, _moment(metadata.get("creationTimestamp")), _uid(raw)),
            key=pod_key(str(metadata.get("namespace", "")), str(metadata.get("name", ""))),
            node=intern(str(node)),
            requests=_one_of_equals(tuple(requests.items())),
        )

    def observe_pod(self, raw: Raw, *, gone: bool = False) -> None:
        """One that is new, changed, no longer bound and running, or `gone`."""
        self._arrivals += 1
        pod = None if gone else self.read_pod(raw, self._covered, arrival=self._arrivals)
        if pod is None:
            self._end(raw)
            return
        of_node = self._pods.setdefault(pod.node, {})
        known = of_node.get(pod.uid)
        if known is None or known.requests != pod.requests:
            of_node[pod.uid] = pod
            self._forget(pod.node, pod.requests)
        self.bound(pod.uid)

    def _end(self, raw: Raw) -> None:
        uid, node = _uid(raw), str(mapping(raw.get("spec")).get("nodeName", ""))
        of_node = self._pods.get(node, {})
        pod = of_node.pop(uid, None)
        if pod is None:
            return
        if not of_node:
            del self._pods[node]
        self._forget(node, pod.requests)
        if node in self._nodes:
            ended = self._ended.setdefault(pod.node, {})
            ended[uid] = EndedPod(pod, self._arrivals)
            if len(ended) > MAX_ENDED:
                del ended[next(iter(ended))]

    def listing_pods(self) -> tuple[Callable[[Raw], BoundPod | None], Callable[[list[BoundPod]], None]]:
        """Return what reads the pods of a list that begins now, and what takes them in."""
        resources = self.resources
        return partial(self.read_pod, resources=resources, arrival=0), partial(self.replace_pods, resources=resources)

    def replace_pods(self, pods: Iterable[BoundPod], resources: frozenset[str]) -> None:
        """Replace all pods by these, which are all that request one of these resources."""
        before, self._pods = self._pods, {}
        for pod in pods:
            known = before.get(pod.node, {}).get(pod.uid)
            kept = known if known is not None and known.requests == pod.requests else pod
            self._pods.setdefault(pod.node, {})[pod.uid] = kept
            self.bound(pod.uid)
        self._covered, self._ended = resources, {}
        for name in self._nodes:
            self._forget(name, resources)
        if not resources.issuperset(self.resources):
            self.pods_wanted()

    def _forget(self, node: str, resources: Iterable[str]) -> None:
        """Forget these tables, which are to be made anew."""
        self.version += 1
        known = self._nodes.get(node)
        if known is not None:
            for resource in resources:
                known.tables.pop(resource, None)

    # --- answers -----------------------------------------------------------------------------------------------------
    def table(self, node: str, resource: str, now: float) -> Table | None:
        """Return what is free there; None: that is not known, and the node passes."""
        known = self._nodes.get(node)
        if known is None or known.shares.stale or now - known.heard >= OVERDUE_AFTER_SECONDS:
            return None
        table = known.tables.get(resource)
        if table is None and resource in known.shares.resources and resource in self._covered:
            pods = [pod for pod in self._pods.get(node, {}).values() if resource in pod.requests]
            ended = [end for end in self._ended.get(node, {}).values() if resource in end.pod.requests]
            table = known.tables[resource] = tabulate(known.shares.resources[resource], pods, ended)
        return table

    def _forget_ended(self, shares: NodeShares) -> None:
        """Forget ended pods whose end no longer matters: it does while they seem to hold shares, and while pods that
        were bound before it are not among the holders yet."""
        ended = self._ended.get(shares.name)
        if not ended:
            return
        devices = [device for resource in shares.resources.values() for device in resource.devices]
        holding = {held.pod for device in devices for held in device.holders}
        coming = [pod.order[1] for pod in self._pods.get(shares.name, {}).values() if pod.key not in holding]
        self._ended[shares.name] = {
            uid: end
            for uid, end in ended.items()
            if end.pod.key in holding or any(arrival < end.at for arrival in coming)
        }

    def nodes(self) -> list[str]:
        return sorted(self._nodes)

    def shares(self, node: str) -> NodeShares | None:
        """Return the node's shares of memory; None: it is not known that it has any."""
        known = self._nodes.get(node)
        return known.shares if known is not None and known.shares.resources else None

    def sizes(self) -> tuple[int, int]:
        """Return the numbers of NodeDevices and pods that are remembered."""
        return len(self._nodes), sum(map(len, self._pods.values()))

    def cold(self) -> list[tuple[str, str]]:
        """Return nodes and resources whose table is to be made: better before a request waits for it."""
        return [
            (name, resource)
            for name, known in self._nodes.items()
            if not known.shares.stale and len(known.tables) < len(known.shares.resources)
            for resource in known.shares.resources
            if resource not in known.tables and resource in self._covered
        ]


@lru_cache(MAX_REQUESTS)
def _one_of_equals(requests: tuple[tuple[str, PodRequest], ...]) -> Mapping[str, PodRequest]:
    """The same value for all pods that request the same."""
    return dict(requests)


def _uid(pod: Raw) -> str:
    return str(mapping(pod.get("metadata")).get("uid", ""))


def _moment(time: object) -> int:
    """A time as Kubernetes writes it, as a number that sorts as it does and is small; 0: it is none."""
    digits = time.translate(_WITHOUT_SIGNS)[:SECONDS_DIGITS] if isinstance(time, str) else ""
    return int(digits) if digits.isdecimal() else 0
