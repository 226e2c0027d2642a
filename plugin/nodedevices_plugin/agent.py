"""nodedevices-agent: wires the stages together. The one module that knows all of them.

Each input (the probe's lines, the configuration file, the node's own object, PodResources, the kubelet's registrations)
sets its latest value and wakes the loop. The loop makes one pure step (`pipeline`) and carries it out in this order:
state file, kubelet, report. A fault reaches the kubelet in the same pass that saw it: on the way the loop waits for
nothing slow (API server, disk, PodResources), except for the state file, and for that only a moment. So a crash right
afterwards cannot offer a bad device again.

No error that can be corrected while the agent runs ends it. Wrong flags end it: they cannot be corrected.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace
from nodedevices_common import __version__, logs
from nodedevices_common.http import HttpServer, servers
from nodedevices_common.periodic import Periodic, within

from nodedevices_plugin.cores.book import CoreBook
from nodedevices_plugin.cores.ids import key
from nodedevices_plugin.dra import Dra, merged
from nodedevices_plugin.gates.reasons import counts_containers
from nodedevices_plugin.granting.answers import Answers
from nodedevices_plugin.host.cdi_keeper import CdiKeeper
from nodedevices_plugin.host.cores import AllocationFiles, CoreGate
from nodedevices_plugin.host.machine import FoundHardware, HostPathReader, Machine, ServedMachine
from nodedevices_plugin.host.mps_daemons import MpsDaemons
from nodedevices_plugin.host.node_files import NodeFiles
from nodedevices_plugin.host.state_keeper import StateKeeper
from nodedevices_plugin.inputs.cluster import PodWatch, older_conditions, seen_object
from nodedevices_plugin.inputs.config_file import ConfigFile, ConfigFolder, DeviceFolder
from nodedevices_plugin.inputs.probe_child import Spare
from nodedevices_plugin.inputs.probes import Probes
from nodedevices_plugin.kubelet import checkpoint
from nodedevices_plugin.kubelet.guard import Guard, Own
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.podresources import PodResourcesClient
from nodedevices_plugin.kubelet.registration import Registering
from nodedevices_plugin.model import Api, Holdings, Inventory, Plan, Registration, RegistrationState
from nodedevices_plugin.offering.occupancy import RECENT_SECONDS, none_held
from nodedevices_plugin.pipeline.assess import assess
from nodedevices_plugin.pipeline.configuration import SeenObject, driver_root
from nodedevices_plugin.pipeline.foreign import offered_text, other_plugins, unread_holders
from nodedevices_plugin.pipeline.step import decide
from nodedevices_plugin.pipeline.world import Inputs, begin
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.runtime.threads import Later, Worker
from nodedevices_plugin.settings.file import ConfigError, FileOutcome, NamedFiles
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.status.client import KubeStore, Object
from nodedevices_plugin.status.metrics import AgentMetrics, healthz, readyz
from nodedevices_plugin.status.publisher import Publisher
from nodedevices_plugin.status.reporter import Reporter
from nodedevices_plugin.status.step_log import StepLog, withdraws
from nodedevices_plugin.vendors.base import NOT_READ, DeviceFiles

log = structlog.get_logger(__name__)

EXIT_USAGE = 2
# One thread each, by what may block on it; /readyz and the metrics show these names.
WORKERS = (
    *("files", "cdi", "host-paths", "hardware", "config-file", "kubelet-checkpoint", "node-files", "allocations"),
    "mps",
)
ALLOCATED_SECONDS = 0.05  # from an Allocate to the step for it, unless another step comes first
SWITCH_SECONDS = (
    0.001  # after which the interpreter goes to another thread: to the kubelet's call while the loop decides
)
PUBLISH_AFTER_SECONDS = 3.0  # reports and the API client are loaded once we are registered, or after this


class Agent:
    """One agent. `run` runs it until it is cancelled; the kubelet keeps the list that it was sent last."""

    def __init__(
        self,
        local: Local,
        *,
        store: KubeStore | None,
        slices: KubeStore | None = None,
        claims: KubeStore | None = None,
        hardware: Callable[[], Mapping[str, str]] | None = None,
        spare: Spare | None = None,
    ) -> None:
        """`hardware`: as FoundHardware's `check`, which tests replace. `spare`: a process for the first probe."""
        self._local = local
        self._started = datetime.now(UTC)
        self._wake = asyncio.Event()
        self._step_soon = Later(self._wake.set, seconds=ALLOCATED_SECONDS)
        self._registered = asyncio.Event()  # set as well when the kubelet refused, or is not there
        self._file = FileOutcome()
        self._seen: SeenObject | None = None  # None: not listed yet
        self._plan_sent: Plan | None = None
        workers = {name: Worker(name) for name in WORKERS}
        self._mps = MpsDaemons(Path(local.mps_dir), worker=workers["mps"], on_change=self._wake.set)
        self._parts = Supervisor(workers=lambda: (self._state.worker, *workers.values()))
        folder = local.config_dir
        self._named = NamedFiles(folder=folder, error="not read yet") if folder is not None else None
        self._device_files: DeviceFiles = NOT_READ
        self._readers = self._file_readers(workers["config-file"])
        machine = self._machine()
        self._paths = HostPathReader(
            self._driver_root,
            self._file_contents,
            worker=workers["host-paths"],
            on_change=self._wake.set,
            vendors=local.vendors,
            machine=machine,
        )
        self._hardware = FoundHardware(
            worker=workers["hardware"], on_change=self._wake.set, check=hardware or machine.hardware
        )
        self._cdi = CdiKeeper(
            Path(local.cdi_dir),
            [Path(folder) for folder in local.cdi_spec_dirs],
            files=workers["files"],
            looks=workers["cdi"],
            on_change=self._wake.set,
            vendors=local.vendors,
            machine=machine,
        )
        self._node_files = NodeFiles(worker=workers["node-files"])
        self._step_log = StepLog()
        self._probes = Probes(
            local,
            driver_root=self._driver_root,
            files=lambda: self._world.known.requested.files,
            on_line=self._wake.set,
            keep=self._parts.keep,
            spare=spare,
        )
        self._metrics = self._metrics_of_parts()
        self._state = StateKeeper(Path(local.state_file), metrics=self._metrics, on_written=self._wake.set, local=local)
        self._cores = CoreBook()
        self._pods = PodWatch(store, local.node_name, on_change=self._on_pods)
        self._recent = RecentAllocations()
        self._answers = Answers(self._cores, recent=self._recent, allocations=local.allocations_dir)
        self._allocations = AllocationFiles(
            Path(local.allocations_dir), worker=workers["allocations"], held=self._held_keys
        )
        self._gate = CoreGate(self._cores, holdings=self._list_holders, write=self._allocations.write)
        self._dra = self._claims(slices, claims)
        self._plugins = self._device_plugins()
        self._holders = PodResourcesClient(
            Path(local.pod_resources_socket),
            recent=self._recent.entries,
            checkpoint_file=Path(local.device_plugin_dir) / checkpoint.FILE,
            files=workers["kubelet-checkpoint"],
            own_pod=local.own_pod,
            rewrite=self._plugins.show_again,
            on_change=self._wake.set,
        )
        self._publisher = (
            Publisher(store=store, name=local.node_name, on_object=self._on_object, metrics=self._metrics)
            if store is not None
            else None
        )
        self._reporter = Reporter(self._publisher, started=self._started)

    def _metrics_of_parts(self) -> AgentMetrics:
        return AgentMetrics(
            facts=lambda: self._reporter.facts,
            probes=lambda: {name: source.counters for name, source in self._probes.sources.items()},
            dra=lambda: self._dra.counters,
            parts=self._parts,
            telemetry=self._local.telemetry,
        )

    def _machine(self) -> Machine:
        if not self._local.probe_server:
            return Machine()
        return ServedMachine(
            self._local.probe_server, failed=lambda request: self._metrics.server_failures.labels(request).inc()
        )

    def _claims(self, slices: KubeStore | None, claims: KubeStore | None) -> Dra:
        return Dra(
            self._local,
            slices=slices,
            claims=claims,
            granting=self._recent.granting,
            holdings=lambda: self._holders.holdings,
            others=self._others_of_claims,
            unwritable=lambda: self._cdi.unwritable,
            observe=self._metrics.kubelet_called,
            on_change=self._wake.set,
        )

    def _file_readers(self, worker: Worker) -> Mapping[str, Periodic]:
        local, found = self._local, dict[str, Periodic]()
        if local.config_dir is not None:
            found["config-file"] = ConfigFolder(
                Path(local.config_dir), worker=worker, on_change=self._on_files, vendors=local.vendors
            )
        elif local.config_file is not None:
            found["config-file"] = ConfigFile(
                Path(local.config_file), worker=worker, on_change=self._on_file, vendors=local.vendors
            )
        if local.devices_dir is not None:
            found["device-files"] = DeviceFolder(
                Path(local.devices_dir),
                node=local.node_name,
                worker=worker,
                on_change=self._on_device_files,
                vendors=local.vendors,
            )
        return found

    def _device_plugins(self) -> DevicePlugins:
        folder = Path(self._local.device_plugin_dir)
        return DevicePlugins(
            Registering(
                folder=folder,
                offer=self._answers,
                recent=self._recent,
                on_allocated=self._on_allocated,
                observe=self._metrics.kubelet_called,
                gate=self._gate,
                kubelet_socket=Path(self._local.kubelet_socket),
                guard=Guard(folder, others=self._others, lists=self._lists),
                on_change=self._on_kubelet,
                prepare=self._prepare,
                keep=self._parts.keep,
            )
        )

    async def run(self) -> None:
        log.info("agent starting", version=__version__, node=self._local.node_name)
        # Files and hardware decide which probes run. What fails here fails again in the background, where it is shown.
        firsts = (self._hardware.first(), *(reader.first() for reader in self._readers.values()))
        await asyncio.gather(*firsts, return_exceptions=True)
        self._world = begin(
            self._state.load(),
            self._local,
            now=self._started,
            monotonic=time.monotonic(),
            file=self._file,
            files=self._named,
            device_files=self._device_files,
            hardware=self._hardware.found,
        )
        self._cores.remember(await self._allocations.read())
        await self._dra.first()
        self._holders.with_offers = self._world.active.needs_offers
        self._holders.saved = self._world.state.held_since
        if self._world.active.applied_once:
            self._state.saved = self._world.active.effective
        try:
            async with asyncio.TaskGroup() as tasks:
                self._probes.use(self._world.known.probe_set.texts)
                await asyncio.gather(self._paths.first(), self._cdi.first(), return_exceptions=True)
                for name, run in self._background():
                    tasks.create_task(self._parts.keep(name, run))
        finally:
            saved, reported = self._state.end(self._world.state), self._reporter.stop(datetime.now(UTC))
            await asyncio.gather(saved, self._probes.stop(), self._plugins.stop(), reported, return_exceptions=True)
            log.info("agent stopped")

    def _background(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield from ((name, reader.run) for name, reader in self._readers.items())
        yield from self._cdi.parts.items()
        yield from (("host-paths", self._paths.run), ("hardware", self._hardware.run), ("mps", self._mps.run))
        yield from (("holders", self._holders.run), ("pods", self._pods.run), *self._dra.parts.items())
        yield from (("http", server.run) for server in self._http_servers())
        if self._publisher is not None:
            yield "publisher", partial(self._publish, self._publisher)
        yield from (("allocations", self._allocations.run), ("loop", self._loop))

    def reload(self) -> None:
        """Read the configuration files now; they are checked every second anyway."""
        log.info("SIGHUP: reading the configuration file again")
        for reader in self._readers.values():
            reader.soon()

    # --- inputs: each keeps its latest value and wakes the loop ------------------------------------------------------
    def _on_file(self, outcome: FileOutcome) -> None:
        self._file = outcome
        if outcome.config is not None and outcome.config.empty:
            log.warning(
                "the configuration file is empty: flags, environment and defaults apply",
                file=self._local.config_file,
                expected="version: v1, and flags, resources, sharing or imex",
            )
        if outcome.config is not None and outcome.config.unused:
            log.info("unused keys in the configuration file", keys=outcome.config.unused)
        self._wake.set()

    def _on_files(self, named: NamedFiles) -> None:
        self._named = named
        self._wake.set()

    def _on_device_files(self, found: DeviceFiles) -> None:
        self._device_files = found
        self._wake.set()

    def _on_object(self, item: Object | None) -> None:
        if self._seen is None:
            self._reporter.conditions = older_conditions(item, self._reporter.conditions)
        self._seen = seen_object(item)
        self._wake.set()

    def _on_pods(self) -> None:
        self._cores.observe_pods(self._pods.pods)
        self._gate.pods_changed()
        self._wake.set()

    def _on_kubelet(self) -> None:
        if any(registration.state is not RegistrationState.PENDING for registration in self._plugins.registrations()):
            self._registered.set()
        self._wake.set()

    def _on_allocated(self) -> None:
        """Do not step at once: the next Allocate comes soon, and one step is enough for all of them."""
        self._holders.allocated()
        if self._world.plan is not None and counts_containers(self._world.plan):
            self._wake.set()
        else:
            self._step_soon.request()

    async def _publish(self, publisher: Publisher) -> None:
        if self._world.active.applied_once or not self._local.operator_wait_seconds:  # else wait for the operator
            await within(PUBLISH_AFTER_SECONDS, self._registered.wait())
        await asyncio.to_thread(self._reporter.load)
        self._wake.set()  # the steps before this one have reported nothing
        await publisher.run()

    # --- the loop ----------------------------------------------------------------------------------------------------
    async def _loop(self) -> None:
        deadline: float | None = None
        while True:
            await within(None if deadline is None else max(0.0, deadline - time.monotonic()), self._wake.wait())
            self._wake.clear()
            try:
                deadline = await self._pass()
            except Exception:
                self._wake.set()  # the kubelet keeps what it was sent; the next pass may succeed
                raise

    async def _pass(self) -> float | None:
        """Make one step and carry it out. Returns when the next one is due without news (time.monotonic())."""
        line = self._probes.take()
        if line is not None:
            self._metrics.probe_read(line.probe, line.snapshot)
            await self._paths.line_came()
        if self._probes.more:
            self._wake.set()  # each step takes one line
        began = time.monotonic()
        now = datetime.now(UTC)
        inputs = Inputs(
            snapshot=line.snapshot if line else None,
            source=line.probe if line else "",
            arrived=line.arrived if line else 0.0,
            file=self._file,
            files=self._named,
            device_files=self._device_files,
            seen=self._seen,
            holdings=self._holders.holdings,
            recent=self._recent.entries(),
            registrations=self._registrations(),
            dra=self._dra.facts,
            existing=self._paths.existing,
            pods=self._pods.pods,
            hardware=self._hardware.found,
            mps=self._mps.facts,
            cdi=self._cdi.environments,
            saved=self._state.saved,
            unsaved_because=self._state.problem or "",
        )
        assessment = assess(self._world, inputs, self._local, now=now, monotonic=began)
        if assessment.uses_cdi:
            await self._cdi.ready()
            requests = assessment.with_cdi(self._cdi.environments).program_requests()
            await self._cdi.request(requests, first=self._world.plan is None)
            assessment = assessment.with_cdi(self._cdi.environments)
        outcome = decide(assessment)
        while (plan := outcome.world.plan) is not None and not self._withdrawn(
            plan, outcome.world.known.inventory, assessment.inputs
        ):
            inputs = replace(assessment.inputs, recent=self._recent.entries(), dra=self._dra.facts)
            assessment = assess(self._world, inputs, self._local, now=now, monotonic=began)
            outcome = decide(assessment)
        before, self._world = self._world, outcome.world
        self._metrics.step.observe(time.monotonic() - began)
        self._step_log.record(before, outcome, self._metrics)
        self._probes.use(self._world.known.probe_set.texts)
        self._hardware.want(self._world.known.requested.auto)
        idle = self._world.active.effective.sections.idle
        self._probes.want(use=idle.after_seconds is not None or bool(self._world.state.unschedulable))
        again = await self._state.keep(self._world.state, time.monotonic())
        was = before.active
        taken_over = was.applied_once and was.effective.observing and not self._world.active.effective.observing
        await self._update_kubelet(inputs.arrived if line else None, allow_next=taken_over)
        self._mps.want(self._world.daemons)
        self._holders.with_offers = self._world.active.needs_offers
        self._holders.with_rewrites = self._world.waits_for_holders
        self._allocations.keep(self._cores.allocated())
        self._reporter.report(
            outcome,
            registrations=self._registrations(),
            probe_errors=self._probes.errors,
            problems={
                "state file": self._state.problem or self._state.lost or "",
                "CDI": self._cdi.problem,
                "records of claims": self._dra.records_problem,
                "": self._paths.problem or self._hardware.problem,
                "files for CNI plugins": self._node_files.problem,
            },
            cores=self._cores.held(),
            now=now,
        )
        deadlines = (outcome.deadline, again, self._dra.slices.settles_at)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _registrations(self) -> tuple[Registration, ...]:
        return merged(self._plugins.registrations(), self._dra.registrations(self._plan_sent))

    def _withdrawn(self, plan: Plan, inventory: Inventory, inputs: Inputs) -> bool:
        """True when nothing that this plan takes away was granted after what it was decided from."""
        by_plugin = self._answers.withdraw(plan, inventory, known=inputs.recent)
        return self._dra.offer.withdraw(plan, inventory, known=inputs.dra.records) and by_plugin

    async def _update_kubelet(self, arrived: float | None, *, allow_next: bool) -> None:
        plan = self._world.plan
        requested = self._world.known.requested.effective
        self._dra.want(asked=self._world.active.effective.by_dra or (requested is not None and requested.by_dra))
        self._cores.observe(self._holders.holdings)
        self._pods.want(wanted=plan is not None and any(resource.sharing.cores for resource in plan.resources))
        if plan is None:
            return
        serving = self._plugins.let_through or (self._dra.let_through and bool(plan.by(Api.DRA).resources))
        if serving:
            await self._prepare()
        packed = self._world.active.effective.node.packed
        inventory, containers = self._world.known.inventory, self._world.access.containers
        self._answers.use(plan, inventory, containers, packed=packed)
        self._dra.offer.use(plan, inventory, containers)
        if serving:
            await self._prepare(free=self._none_held)
        if plan != self._plan_sent:
            before, self._plan_sent = self._plan_sent, plan
            await self._plugins.set_plan(plan.by(Api.DEVICE_PLUGIN), allow_next=allow_next)
            if arrived is not None and withdraws(before, plan):
                self._metrics.fault_to_kubelet.observe(time.monotonic() - arrived)
        self._dra.publish(plan, inventory, self._world.known.verdicts)  # what left the plugin's list may come there now

    async def _others(self, resource: str, own: Own, *, taking_over: bool = False) -> str | None:
        """Return which other plugin serves this resource or its devices; "" none, None: not known (kubelet.guard).
        `taking_over`: only one that serves it differently from the plan."""
        offered = await self._holders.offered_now()
        if offered is None:
            return None
        index = self._world.known.index.under(self._world.active.effective.index_prefix)
        plan = self._world.plan or Plan()
        found = other_plugins(resource, plan, offered, index, own=own(), taking_over=taking_over)
        return offered_text(found) or unread_holders(resource, plan, self._holders.holdings, index)

    async def _others_of_claims(self) -> str | None:
        """Return which device plugin serves devices that DRA is to serve; "" none, None: not known."""
        offered = await self._holders.offered_now()
        if offered is None:
            return None
        plan, own = self._world.plan or Plan(), {served.resource for served in self._plugins.registrations()}
        index = self._world.known.index.under(self._world.active.effective.index_prefix)
        found = (
            offer
            for resource in plan.by(Api.DRA).resources
            for offer in other_plugins(resource.name, plan, offered, index, own=own, api=Api.DRA)
        )
        return offered_text(tuple(dict.fromkeys(found)))

    async def _lists(self, resource: str) -> bool | None:
        """True when the kubelet lists a healthy id of it; None: not known (kubelet.registration)."""
        offered = await self._holders.offered_now()
        return None if offered is None else any(offer.resource == resource for offer in offered)

    async def _prepare(self, *, free: Callable[[], bool] = lambda: False) -> None:
        """Write the files that must exist before an id is handed out. While another plugin serves, write nothing: its
        files have the same names. `free`: says whether no pod has a device, so that what no answer names any more may
        be removed. Only after the answers have changed: until then Allocate may return a name that is in an old file
        alone."""
        if not self._world.active.effective.observing:
            await self._cdi.keep(self._world.access, free=free)
            await self._node_files.keep(self._world.access.files)

    async def _list_holders(self) -> Holdings:
        return await self._holders.list()

    def _held_keys(self) -> Collection[str] | None:
        """Return the keys of the folders that containers may have (host.cores); None: not known."""
        holdings = self._holders.holdings
        if not holdings.known:
            return None
        since = time.monotonic() - RECENT_SECONDS
        recent = (entry.ids for entry in self._recent.entries() if entry.monotonic > since)
        return {key(ids) for ids in (*(ids for _, ids in holdings.held), *recent)}

    def _none_held(self) -> bool:
        recent = self._recent.entries()
        return not self._dra.offer.records and none_held(self._holders.holdings, recent, monotonic=time.monotonic())

    # --- the rest ----------------------------------------------------------------------------------------------------
    def _driver_root(self) -> Path:
        return Path(driver_root(self._local, self._world.known.requested, self._file, self._world.active.effective))

    def _file_contents(self) -> Mapping[str, object]:
        """Return the device files' contents: those read last, else those in effect. What new contents need has to be
        found before they take effect."""
        newest = {name: found.content for name, found in self._device_files.items() if found.content is not None}
        return {**self._world.active.effective.node.files, **newest}

    def _http_servers(self) -> list[HttpServer]:
        local = self._local
        checks = {
            "/healthz": lambda: healthz(self._parts, self._recent.answering_seconds()),
            "/readyz": lambda: readyz(
                self._parts,
                self._world,
                self._registrations(),
                probe_error=self._probes.problem(),
                publisher_problem=self._publisher.problem() if self._publisher is not None else "",
            ),
        }
        return servers(
            local.http_address,
            local.health_address,
            scrape=self._metrics.render,
            checks=checks,
            guard=local.guard,
        )


def main(arguments: Sequence[str] | None = None, *, spare: Spare | None = None, **fixed: Any) -> int:
    """Run the command. Returns 0 after a SIGTERM, 2 for wrong flags or variables. `spare`: as in Agent. `fixed`: values
    for fields of Local that no flag has, for tests."""
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        local = dataclasses.replace(parse(arguments, os.environ), **fixed)
    except ConfigError as error:
        for problem in error.problems:
            print(f"nodedevices-agent: {problem}", file=sys.stderr)  # noqa: T201  the command's output for its user
        return EXIT_USAGE
    logs.configure(local.log_level, local.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    return asyncio.run(_run(local, spare))


async def _run(local: Local, spare: Spare | None) -> int:
    def store(thread: str) -> KubeStore | None:
        return None if local.standalone else KubeStore(local.kubeconfig, thread=thread)

    agent = Agent(
        local,
        store=store("kube-write"),
        slices=store("kube-slices"),  # a claim is read while slices are written, and neither waits for a status
        claims=store("kube-claims"),
        spare=spare,
    )
    running = asyncio.create_task(agent.run(), name="agent")
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, running.cancel)
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return 0
