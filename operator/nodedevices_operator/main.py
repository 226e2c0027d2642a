"""`nodedevices-operator run | cleanup`: signals, and the parts put together.

Several replicas may run: each lists and watches, and the one that holds the Lease writes (kube/election.py). One that
loses it ends, and begins anew as a standby. `--leader-elect=false`: there is one only, and no Lease.

`nodedevices-operator extender` is another program in the same image: extender/main.py.

What it uses of the API (the whole of its RBAC; `cleanup` and the chart's `kubectl nodedevices check` use the same):

    nodedevices.io  nodedevices              get list watch patch   spec: config and what goes with it
    nodedevices.io  nodedevices/status       patch                  own conditions, actions, affectedPods
    nodedevices.io  devicepolicies           get list watch
    nodedevices.io  devicepolicies/status    patch
    core            nodes                    get list watch patch   labels, the taint nodedevices.io/device-fault
    core            nodes/status             patch                  own capacity and condition, retired zeros
    core            pods                     get list watch         holders by name; a node's before a capacity is set,
                                                                    and once for those that are marked;
                                                                    those that have Failed
    core            pods/status              patch                  conditions .../DeviceHealthy, .../DeviceIdle
    core            pods/eviction            create                 where a policy evicts
    core            events                   create                 on pods and NodeDevices
    core            configmaps               create get patch watch nodedevices-actions, in its own namespace
    about           clusterproperties        get list create patch  only with --cluster-properties
                                             delete
    coordination    leases                   create get patch       nodedevices-operator, in its own namespace

HTTP on :9736: /metrics, /healthz (this process works), /readyz (it sees: everything was listed and is watched, and it
is known which replica leads); the latter two on :9738 as well, for the kubelet's probes alone. Missing CRDs, missing
permissions and an absent API server are said once and waited for. SIGTERM ends it cleanly; kill -9 loses nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace

import structlog
from nodedevices_common import logs
from nodedevices_common.errors import InputError, OperationError

from nodedevices_operator import settings as flags
from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.extender import main as extender, settings as extender_settings
from nodedevices_operator.extender.settings import ExtenderSettings
from nodedevices_operator.kube.client import KubeClient
from nodedevices_operator.kube.election import Election
from nodedevices_operator.kube.watch import Watch
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.process import cancel, ended, freeze, serving, stop_requested, until_one_ends
from nodedevices_operator.settings import OperatorSettings

FAILED, MISUSED = 1, 2  # exit codes

log = structlog.get_logger()


def main(arguments: Sequence[str] | None = None, **fixed: float) -> int:
    """The console script. Returns the exit code. `fixed`: values for the operator's settings that no flag has, for
    tests."""
    given = sys.argv[1:] if arguments is None else arguments
    settings: OperatorSettings | ExtenderSettings
    try:
        if given[:1] == [extender_settings.COMMAND]:
            settings = extender_settings.read(given[1:], os.environ)
        else:
            settings = replace(flags.read(given, os.environ), **fixed)  # type: ignore[arg-type]  # of no flag: floats
    except InputError as error:
        print(f"nodedevices-operator: {error}", file=sys.stderr)  # noqa: T201  logging is not set up yet
        return MISUSED
    logs.configure(settings.log_level, settings.log_format, stdlib=True)
    try:
        if isinstance(settings, ExtenderSettings):
            asyncio.run(extender.run(settings))
        elif settings.command == "cleanup":
            return FAILED if asyncio.run(_clean_up(settings)) else 0
        else:
            asyncio.run(run(settings))
    except (OperationError, OSError) as error:
        log.error("operator ended", error=str(error))  # noqa: TRY400  the text says it all
        return FAILED
    return 0


async def _clean_up(settings: OperatorSettings) -> int:
    kube = await KubeClient.connect(settings.kubeconfig)
    try:
        return await clean_up(
            kube,
            dry_run=settings.dry_run,
            cluster_properties=settings.cluster_properties,
            agents_gone=settings.agents_gone,
        )
    finally:
        await kube.close()


async def run(settings: OperatorSettings) -> None:
    """Until SIGTERM or SIGINT. Raises when the credentials or the HTTP address cannot be used, and where this replica
    was the leader and is no longer."""
    stop = stop_requested()
    kube, own = [await KubeClient.connect(settings.kubeconfig) for _ in range(2)]
    replica = Replica(settings, kube, own)
    try:
        replica.start(settings)
        log.info("operator started", http=str(settings.http_address))
        await until_one_ends([stop, *replica.tasks])
        log.info("operator stopping")
    finally:
        await replica.stop()


class Replica:
    """The parts of one replica, put together. Without an election, it is the leader. Make it inside a running loop."""

    def __init__(self, settings: OperatorSettings, kube: KubeClient, own: KubeClient) -> None:
        """`kube`: the manager's client; `own`: the election's, so that the Lease never waits behind other calls."""
        self.tasks: list[asyncio.Task[None]] = []
        self._clients = kube, own
        self._metrics = metrics = OperatorMetrics()
        kube.requested = own.requested = metrics.requested
        self._election: Election | None = None
        if settings.leader_elect:
            identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            self._election = Election(own, namespace=settings.namespace, identity=identity)
            kube.may_write = self._election.may_write
        self._manager = Manager(
            kube,
            metrics,
            namespace=settings.namespace,
            relist_seconds=settings.relist_seconds,
            retired_seconds=settings.retired_seconds,
            cluster_properties=settings.cluster_properties,
            standby=settings.leader_elect,
        )
        relister = self._manager.relister
        records = self._manager.cache.records
        watch = self._watch = Watch(
            settings.kubeconfig,
            self._manager.arrived,
            self._ended,
            known=lambda kind, name: records(kind).get(name),
            listed=relister.listed,
        )
        relister.begin_watches = watch.start
        relister.stalled = lambda: watch.restart("watch missed changes that a list shows")
        relister.complete = freeze
        kube.trust_changed = lambda: watch.restart("the cluster's CA or the client certificate changed")

    def start(self, settings: OperatorSettings) -> None:
        """Start the tasks, of which none ends by itself but by an error."""
        self.tasks += serving(settings, scrape=self._scrape, healthy=self._healthy, ready=self._ready)
        self.tasks += self._manager.watching()
        for client in self._clients:
            self.tasks.append(asyncio.create_task(client.watch_credentials(), name="credentials"))
        self.tasks.append(asyncio.create_task(self._lead(), name="leader"))

    async def stop(self) -> None:
        """End everything, give the Lease back and close all connections."""
        await cancel(self.tasks)
        if self._election is not None:
            await self._election.release()  # nothing is written any more: another replica need not wait
        await self._watch.stop()
        for client in self._clients:
            await client.close()

    async def _lead(self) -> None:
        """Take part in the election; raises when it was won and is lost."""
        working: list[asyncio.Task[None]] = []
        if self._election is not None:
            await self._election.acquire()
            working.append(asyncio.create_task(self._election.keep(), name="election"))
        working += self._manager.lead()
        self.tasks.extend(working)
        await until_one_ends(working)

    def _ended(self, why: str) -> None:
        log.warning("watches ended, restarting them and relisting", why=why)
        self._metrics.watch_restarts.inc()
        self._manager.relister.ended()

    def _scrape(self) -> bytes:
        self._manager.gauge()
        self._metrics.ready.set(not self._ready())
        return self._metrics.render()

    def _healthy(self) -> str:
        return ended(self.tasks) or ("the watch thread has ended" if self._watch.dead else "")

    def _ready(self) -> str:
        relister = self._manager.relister
        if relister.problem or not self._manager.cache.synced:
            return relister.problem or "listing"
        if not self._watch.running:
            return "the watches are not running"
        return "" if self._election is None else self._election.problem
