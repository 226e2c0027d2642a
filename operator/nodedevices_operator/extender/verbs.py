"""filter and prioritize, as kube-scheduler calls them (k8s.io/kube-scheduler/extender/v1), and inspect. No HTTP here.

The types have no JSON tags, so keys are capitalised; Go reads them in any case, and so does this. With nodeCacheCapable
the scheduler sends NodeNames, else whole Nodes; what is sent is what is answered.

inspect says shares by GPU and pod in the JSON of Aliyun's GPU share, so that programs that read that can read this:

    {"nodes": [{"name", "totalGPU", "usedGPU", "devs": [{"id", "totalGPU", "usedGPU", "pods": [{"name", "namespace",
    "usedGPU"}]}]}], "error": ""}

Amounts are shares. `id` is the GPU's index. All other fields are ours; a field of Aliyun's means here what it means
there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field
from nodedevices_common.errors import InputError
from nodedevices_common.raw import Raw, mapping

from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.shares import NodeShares, PodRequest, requests_of

SETTLE_SECONDS = 0.1  # a bound pod is seen within some milliseconds
MAX_NODES = 20_000  # in a call; the scheduler itself stops at some thousands that would do
AT_ONCE = 100  # nodes of an inspection, then others have their turn
LAG_SECONDS = 0.02  # by which the watches here may be behind the scheduler's


class Arguments(Struct, frozen=True):
    """ExtenderArgs."""

    pod: Raw
    names: tuple[str, ...]
    nodes: Mapping[str, Any] | None = None  # the NodeList, where whole Nodes were sent
    by_name: bool = True

    @property
    def uid(self) -> str:
        return str(mapping(self.pod.get("metadata")).get("uid", ""))


class Filtered(Struct):
    """Nodes by what becomes of them."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    never: dict[str, str] = field(default_factory=dict)  # where ending other pods would not help
    unknown: int = 0  # of those that passed

    def answer(self, arguments: Arguments) -> bytes:
        """Return the ExtenderFilterResult. Raises InputError where Nodes are nested more deeply than can be sent."""
        nodes = None
        if arguments.nodes is not None:
            passed = set(self.passed)
            kept = [node for node in arguments.nodes["items"] if name_of(node) in passed]
            nodes = {**arguments.nodes, "items": kept}
        result = {
            "Nodes": nodes,
            "NodeNames": self.passed if arguments.by_name else None,
            "FailedNodes": self.failed,
            "FailedAndUnresolvableNodes": self.never,
            "Error": "",
        }
        try:
            return orjson.dumps(result)
        except orjson.JSONEncodeError as error:  # more can be read than written
            raise InputError(f"Nodes: they cannot be sent back ({error}); send NodeNames") from error


def read_arguments(body: bytes) -> Arguments:
    """Raises InputError with what would be right."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error}; send extender/v1 ExtenderArgs") from error
    if not isinstance(document, dict):
        raise InputError("the body is not a JSON object; send extender/v1 ExtenderArgs: Pod, and NodeNames or Nodes")
    given = {key.lower(): value for key, value in document.items()}
    pod, names, nodes = (given.get(key) for key in ("pod", "nodenames", "nodes"))
    if not isinstance(pod, dict):
        raise InputError("Pod: absent or not an object; send the pod to schedule")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError("NodeNames: not a list of names")
    items: Any = []
    if nodes is not None:
        items = mapping(nodes).get("items")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise InputError("Nodes: not a NodeList; send items")
    if len(names or items) > MAX_NODES:
        raise InputError(f"NodeNames, Nodes: {len(names or items)} of them; send at most {MAX_NODES}")
    if names is None and nodes is None:
        raise InputError("NodeNames and Nodes are both absent; send one of them")
    if names is not None:
        return Arguments(pod, tuple(names), nodes)
    return Arguments(pod, tuple(name_of(item) for item in items), nodes, by_name=False)


class Verbs:
    """Answers from the cache.

    Two moments in which it is behind are waited for, because they come with every burst of pods. The scheduler goes on
    to the next pod while the last is being bound: it is judged once that one is seen bound, or after 0.1 s. And where
    no node has room it may be that the scheduler knows of a pod's end a moment earlier; it would ask again only after
    another event, so after 0.02 s that is judged once more.
    """

    def __init__(
        self, cache: SharesCache, *, problem: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self.problem = problem  # why what is remembered is not complete, or old; empty: it is not
        self._clock = clock
        self._unbound: dict[str, asyncio.Event] = {}  # pods that passed, by uid; set: it is bound
        cache.bound = lambda uid: self._unbound.pop(uid, asyncio.Event()).set()

    async def filter(self, arguments: Arguments) -> Filtered:
        requests = self._requests(arguments)
        if not requests:
            return Filtered(passed=list(arguments.names), unknown=len(arguments.names))
        await self._settle(arguments.uid)
        version = self._cache.version
        found = self._filter(arguments.names, requests)
        if arguments.names and not found.passed:
            await asyncio.sleep(LAG_SECONDS)
            if self._cache.version != version:
                found = self._filter(arguments.names, requests)
        if found.passed and arguments.uid:
            self._unbound[arguments.uid] = asyncio.Event()
        return found

    def prioritize(self, arguments: Arguments) -> bytes:
        """HostPriorityList: 0 to 10 for each; what is not known has 0."""
        wanted, now, table = list(self._requests(arguments).items()), self._clock(), self._cache.table
        found = []
        for name in arguments.names:
            total = count = 0
            for resource, request in wanted:  # for thousands of nodes in a call: no lists of each
                if (known := table(name, resource, now)) is not None:
                    total += known.score(request)
                    count += 1
            found.append({"Host": name, "Score": total // count if count else 0})
        return orjson.dumps(found)

    async def inspect(self, name: str) -> dict[str, Any]:
        """Return who has what on this node (empty name: on all). `nodes` is empty where nothing is known."""
        found = []
        for at, node in enumerate([name] if name else self._cache.nodes()):
            if (shares := self._cache.shares(node)) is not None:
                found.append(_inspected(self._cache, shares, self._clock()))
            if at % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        unknown = f"node {name}: no NodeDevices of it with shares of memory is known" if name and not found else ""
        return {"nodes": found, "error": unknown or self.problem()}

    def _requests(self, arguments: Arguments) -> Mapping[str, PodRequest]:
        return requests_of(arguments.pod, self._cache.resources) if not self.problem() else {}

    def _filter(self, names: Iterable[str], requests: Mapping[str, PodRequest]) -> Filtered:
        found, now, table = Filtered(), self._clock(), self._cache.table
        wanted = list(requests.items())
        for name in names:
            unknown, refused = True, []
            for resource, request in wanted:
                if (known := table(name, resource, now)) is not None:
                    unknown = False
                    if not known.fits(request):
                        refused.append(known.outcome(request))
            if not refused:
                found.passed.append(name)
                found.unknown += unknown
            else:
                where = found.never if any(outcome.never for outcome in refused) else found.failed
                where[name] = "; ".join(outcome.refusal for outcome in refused)
        return found

    # --- pods that are being bound -----------------------------------------------------------------------------------
    async def _settle(self, uid: str) -> None:
        """Until all other pods that passed are bound. One that is not in time is waited for once, and never again."""
        self._unbound.pop(uid, None)
        waiting = list(self._unbound.items())
        if not waiting:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                for _, event in waiting:
                    await event.wait()
        except TimeoutError:
            for other, _ in waiting:
                self._unbound.pop(other, None)


def name_of(node: Raw) -> str:
    return str(mapping(node.get("metadata")).get("name", ""))


# --- inspect ---------------------------------------------------------------------------------------------------------
def _inspected(cache: SharesCache, shares: NodeShares, now: float) -> dict[str, Any]:
    devices: list[dict[str, Any]] = []
    coming: list[dict[str, Any]] = []
    for name, resource in shares.resources.items():
        table = cache.table(shares.name, name, now)
        devices += [
            {
                "id": device.index,
                # Of one that is gone, what pods still have.
                "totalGPU": device.held if device.missing else device.total,
                "usedGPU": device.held,
                "pods": [
                    _pod(holder.pod) | {"usedGPU": holder.shares, "container": holder.container}
                    for holder in device.holders
                ],
                "device": device.id,
                "offered": device.offered,
                "freeGPU": table.free[device.id] if table is not None else device.free,
                "resource": name,
                "unit": resource.unit,
                "packing": "spread" if resource.spread else "binpack",
            }
            for device in resource.devices
        ]
        if table is not None:
            coming += [_pod(pod) | {"resource": name, "device": device} for pod, device in table.coming.items()]
    devices.sort(key=lambda it: it["id"])
    return {
        "name": shares.name,
        "totalGPU": sum(device["totalGPU"] for device in devices),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
        "stale": shares.stale,
        "bound": coming,  # to the node, and not among the holders yet
    }


def _pod(key: str) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    return {"name": name, "namespace": namespace}
