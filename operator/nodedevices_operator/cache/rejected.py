"""The pods that kubelets rejected, by node: one watch of Failed pods.

The API server filters (`status.phase=Failed`), so a running pod is never sent, whatever the cluster's size; of what
comes only rejected pods are kept, a few hundred bytes each. Each watch begins with all that there are and ends after
half an hour, so that the next one corrects what this one missed: no LIST, no resourceVersion that could be too old. A
cluster keeps up to 12,500 Failed pods, so this is not done more often. Between two watches a pod may be unknown for a
moment, which only delays what is done about it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog
from nodedevices_common.backoff import Backoff

from nodedevices_operator.kube.port import JsonObject, KubeError, Watching, watch_event
from nodedevices_operator.records.kinds import FAILED, rejected_pod
from nodedevices_operator.records.names import PODS
from nodedevices_operator.records.objects import RejectedPod

WATCH_SECONDS = (1500, 1800)  # after which the API server ends one; a bookmark every minute shows that it lives
MAX_PODS = 10_000  # remembered at one time; the next watch shows the others
AGAIN_SECONDS = 1.0  # between two watches
BACKOFF = Backoff(initial_seconds=1.0, max_seconds=60.0, jitter=0.2)

log = structlog.get_logger()


class RejectedPods:
    """Made and used in the operator's loop. `changed` is called with the node of each pod that was found."""

    def __init__(
        self,
        kube: Watching,
        changed: Callable[[str], None] = lambda _node: None,
        *,
        most: int = MAX_PODS,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._kube = kube
        self._changed = changed
        self._most = most
        self._backoff = backoff
        self._nodes: dict[str, dict[str, RejectedPod]] = {}  # node -> uid -> pod
        self._count = 0

    def on_node(self, node: str) -> tuple[RejectedPod, ...]:
        """Return the rejected pods of this node, the oldest first."""
        return tuple(sorted(self._nodes.get(node, {}).values(), key=lambda pod: (pod.since, pod.uid)))

    async def run(self) -> None:
        """Watch until cancelled."""
        await again_and_again(self.once, "failed to watch rejected pods, retrying", self._backoff)

    async def once(self) -> None:
        """One watch, until it ends. KubeError: it ended otherwise than it should; what it has shown stays."""
        self._nodes, self._count = {}, 0
        # resourceVersion 0: first come all there are, from the API server's memory.
        query = {
            "fieldSelector": f"status.phase={FAILED}",
            "resourceVersion": "0",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),
            "allowWatchBookmarks": "true",
        }
        async for line in self._kube.watch(PODS, query):
            self._take(*watch_event(PODS, line))

    def _take(self, kind: str, raw: JsonObject) -> None:
        metadata, node = raw.get("metadata") or {}, str((raw.get("spec") or {}).get("nodeName", ""))
        pods = self._nodes.get(node, {})
        if pods.pop(str(metadata.get("uid", "")), None) is not None:
            self._count -= 1
            if not pods:
                del self._nodes[node]
        pod = rejected_pod(raw) if kind in {"ADDED", "MODIFIED"} else None
        if pod is not None and pod.node and self._count < self._most:
            self._nodes.setdefault(node, {})[pod.uid] = pod
            self._count += 1
            self._changed(node)


async def again_and_again(once: Callable[[], Awaitable[None]], failed: str, backoff: Backoff = BACKOFF) -> None:
    """One watch after the other, until cancelled. `failed` is logged for the first of several failures."""
    failures = 0
    while True:
        try:
            await once()
            failures, wait = 0, AGAIN_SECONDS
        except KubeError as error:
            failures += 1
            wait = backoff.after(failures, at_least=error.retry_after)
            if failures == 1:
                hint = "; apply the RBAC again" if error.forbidden else ""
                log.warning(failed + hint, error=str(error))
        await asyncio.sleep(wait)
