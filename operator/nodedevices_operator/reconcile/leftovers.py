"""Leftovers on a Node, and on its pods, once its NodeDevices is gone for good: all of it is taken back.

An agent makes an object that was deleted by hand again within seconds, and what is on the Node stays for it. Where no
object has come back after five minutes (the agent no longer runs there, the CRD was removed), it cannot be said any
more what is so. What is ours is found on the Node itself, from managedFields and by our taint's key, and on its pods,
which are listed once by each operator that starts: a Node need not show that they are marked. The pods come first and
the Node's condition last: killed in between, what is left still shows that there is more to do.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog
from nodedevices_common.conditions import same

from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.desired import idle, pods
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import PODS
from nodedevices_operator.records.objects import NodeRecord

RETURN_SECONDS = 300.0  # for the object to come back: a crash-looping agent is started again within five minutes

log = structlog.get_logger()


class Leftovers:
    """All nodes; one node at a time by the key queue. What it remembers only delays: lost, the time counts anew."""

    def __init__(
        self, cache: Cache, writer: Writer, dirty: Callable[[Dirty], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._dirty = dirty
        self._clock = clock
        self._done: set[str] = set()  # nodes without a NodeDevices that this process has looked through
        self._gone: dict[str, float] = {}  # node -> since when it has none

    def there(self, name: str) -> None:
        """Note that the node has its NodeDevices."""
        self._done.discard(name)
        self._gone.pop(name, None)

    async def reconcile(self, name: str) -> float | None:
        """Take back what is left on a node without NodeDevices. Returns the seconds after which to look again; may
        raise KubeError."""
        node = self._cache.nodes.get(name)
        if node is None:
            self.there(name)
            return None
        if name in self._done and not node.marked:
            return None
        now = self._clock()
        wait = self._gone.setdefault(name, now) + RETURN_SECONDS - now
        if wait > 0:
            return wait
        found = await self._release_pods(name)
        await self._release_node(node)
        self._done.add(name)
        self._gone.pop(name, None)
        if found or node.marked:
            log.info("the NodeDevices is gone, what it led to was removed", node=name)
        return None

    async def _release_pods(self, name: str) -> bool:
        """Returns whether any was marked."""
        found = False
        async for page in self._writer.kube.pages(PODS, fieldSelector=f"spec.nodeName={name}"):
            for pod in page:
                if pods.finished(pod) or pods.leaving(pod):
                    continue  # of a pod that ends or has ended it is evidence
                shown, wanted = pods.own_condition(pod), pods.released_condition(pod, self._writer.now())
                if shown is not None and not same(shown, wanted):
                    found = True
                    await self._released(pod, self._writer.pod_condition(pods.entry(pod, shown), wanted))
                if idle.own_condition(pod) is not None:
                    found = True
                    await self._released(pod, self._writer.pod_idle(idle.identity(pod), None))
        return found

    @staticmethod
    async def _released(pod: JsonObject, write: Awaitable[JsonObject]) -> None:
        try:
            await write
        except KubeError as error:
            if not (error.gone or error.forbidden):
                raise
            log.warning("failed to remove the pod's condition", pod=idle.identity(pod).name, error=str(error))

    async def _release_node(self, node: NodeRecord) -> None:
        if node.owned:
            self._observe(await self._writer.capacity(node, {}))
        if node.labels_owned:
            self._observe(await self._writer.labels(node, {}))
        if node.taints:
            self._observe(await self._writer.taint(node, None))
        if node.xid_condition_owned:
            self._observe(await self._writer.xid_condition(node, None))
        if node.conditions_owned:
            self._observe(await self._writer.node_conditions(node, ()))

    def _observe(self, raw: JsonObject) -> None:
        self._dirty(self._cache.observe(Kind.NODE, read(Kind.NODE, raw)))
