"""`nodedevices-operator extender`: signals, and the parts put together. Any number of them, without leader election.

What it uses of the API (the whole of its RBAC; it writes nothing):

    nodedevices.io  nodedevices    list watch     which devices are shared by memory, what is free, who holds it
    core            pods           list watch     of all namespaces: bound to a node, not among its holders yet

HTTP for the scheduler on --address (127.0.0.1:9739): server.py. For Prometheus and the kubelet as the
operator has it: /metrics, /healthz and /readyz on :9736, the latter two on :9738 as well. Missing CRDs, missing
permissions and an absent API server are logged once and waited for, and every node passes meanwhile. SIGTERM ends it
cleanly, answers that are being made included; kill -9 loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.reflector import Reflector
from nodedevices_operator.extender.server import Server
from nodedevices_operator.extender.settings import ExtenderSettings
from nodedevices_operator.extender.shares import read
from nodedevices_operator.extender.verbs import Verbs
from nodedevices_operator.kube.client import KubeClient
from nodedevices_operator.kube.port import WatchingKube
from nodedevices_operator.metrics import ExtenderMetrics
from nodedevices_operator.process import cancel, ended, freeze, serving, stop_requested, until_one_ends
from nodedevices_operator.records.names import NODE_DEVICES, PODS

UNHEARD_SECONDS = 180.0  # nothing heard of the API server for so long: what is remembered is no ground for a refusal
WARM_SECONDS = 0.5
WARM_AT_ONCE = 20  # tables, then others have their turn
BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"  # field selector

log = structlog.get_logger()


class Extender:
    """The watches, the cache and the verbs, without HTTP and signals. Make it inside a running loop."""

    def __init__(self, kube: WatchingKube, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.cache = SharesCache()
        self.metrics = ExtenderMetrics()
        self.verbs = Verbs(self.cache, problem=self.problem, clock=clock)
        cache = self.cache
        self._nodes = Reflector(
            kube,
            NODE_DEVICES,
            lambda: (read, lambda found: cache.replace_nodes(found, clock())),
            lambda raw, gone: cache.observe_node(raw, clock(), gone=gone),
            clock=clock,
        )
        self._pods = Reflector(
            kube,
            PODS,
            cache.listing_pods,
            lambda raw, gone: cache.observe_pod(raw, gone=gone),
            query={"fieldSelector": BOUND},
            clock=clock,
        )
        self._wanted = asyncio.Event()  # a node shares memory: pods matter
        self.cache.pods_wanted = self._want_pods

    def _want_pods(self) -> None:
        self._wanted.set()
        self._pods.list_again()

    def tasks(self) -> list[asyncio.Task[None]]:
        return [
            asyncio.create_task(self._nodes.run(), name="nodedevices"),
            asyncio.create_task(self._watch_pods(), name="pods"),
            asyncio.create_task(self._warm(), name="tables"),
        ]

    async def _watch_pods(self) -> None:
        """Wait until a node shares memory: a cluster has many pods."""
        await self._wanted.wait()
        await self._pods.run()

    async def _warm(self) -> None:
        """Makes tables before they are needed, a few at a time. After a list it takes what is remembered out of the
        garbage collector's sight: it would go through all of it in the middle of an answer."""
        lists = 0
        while True:
            for at, (node, resource) in enumerate(self.cache.cold()):
                self.cache.table(node, resource, self._clock())
                if at % WARM_AT_ONCE == WARM_AT_ONCE - 1:
                    await asyncio.sleep(0)
            if not self.problem() and lists != (lists := self._nodes.lists + self._pods.lists):
                freeze()
            await asyncio.sleep(WARM_SECONDS)

    def problem(self) -> str:
        """Return why nothing can be refused now; empty: it can."""
        watched = {"nodedevices": self._nodes} | ({"pods": self._pods} if self._wanted.is_set() else {})
        for kind, reflector in watched.items():
            if not reflector.synced:
                return reflector.problem or f"listing {kind}"
            if reflector.age > UNHEARD_SECONDS:
                return f"{kind}: the API server was not heard of for {reflector.age:.0f} s; {reflector.problem}"
        return ""

    def scrape(self) -> bytes:
        metrics = self.metrics
        metrics.ready.set(not self.problem())
        sizes = dict(zip(("nodedevices", "pods"), self.cache.sizes(), strict=True))
        for kind, reflector in (("nodedevices", self._nodes), ("pods", self._pods)):
            metrics.objects.labels(kind).set(sizes[kind])
            metrics.lists.labels(kind).set(reflector.lists)
            if reflector.synced:
                metrics.age.labels(kind).set(reflector.age)
        return metrics.render()


async def run(settings: ExtenderSettings) -> None:
    """Until SIGTERM or SIGINT. Raises when credentials or an address cannot be used."""
    stop = stop_requested()
    kube = await KubeClient.connect(settings.kubeconfig)
    tasks: list[asyncio.Task[None]] = []
    try:
        extender = Extender(kube)
        kube.requested = extender.metrics.requested
        server = Server(
            settings.address,
            verbs=extender.verbs,
            metrics=extender.metrics,
            scrape=extender.scrape,
            limits=settings.limits,
        )
        tasks += serving(settings, scrape=extender.scrape, healthy=lambda: ended(tasks), ready=extender.problem)
        await server.start()
        tasks += [asyncio.create_task(server.run(), name="server"), *extender.tasks()]
        tasks.append(asyncio.create_task(kube.watch_credentials(), name="credentials"))
        log.info("extender started", address=str(settings.address), http=str(settings.http_address))
        await until_one_ends([stop, *tasks])
        log.info("extender stopping")
    finally:
        await cancel(tasks)
        await kube.close()
