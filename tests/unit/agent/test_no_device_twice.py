"""Whatever happens to a node, in any order, no device goes to two containers but as shares of one plan.

A model of the kubelet allocates by the real agent's steps: it knows ids and their health, keeps what containers have
across its restarts, lists nothing while it does not know its pods and then adds them one by one, never lists an init
container, names pods that have ended in its checkpoint until it writes that again, and goes on showing the last list of
a plugin that is away. Around it policies change, agents restart with the state file of any time or none, disks fill up,
GPUs are cut into MIG devices and made whole, vanish, are forgotten and return, and another plugin's pods hold ids of
its own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from nodedevices_plugin.granting.answers import Answers, grant
from nodedevices_plugin.granting.preferred import build, prefer
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as api
from nodedevices_plugin.kubelet.checkpoint import CheckpointEntry
from nodedevices_plugin.kubelet.holders import (
    Settling,
    ShownEntries,
    given,
    listed,
    pods_of,
    taken_from,
    with_checkpoint,
)
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import (
    AllocationError,
    HoldersState,
    Holdings,
    Inventory,
    Offer,
    Plan,
    RecentAllocate,
    is_core,
)
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.file import FileConfig, FileOutcome
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.sharing.daemons import DaemonState, DaemonStatus, MpsFacts
from nodedevices_plugin.sharing.mps import MpsDaemon
from nodedevices_plugin.vendors.base import DeviceFileOutcome, DeviceFiles
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import GIB, START, gpu, gpu_id, mig_id, partition, snapshot
from support.fuzzing import TIMES, scaled
from support.hubs import FLAG as HUB_FLAG, HubFile, Hubs
from support.local import at_once, restored
from support.steps import step

pytestmark = pytest.mark.timeout(600 * TIMES)  # thousands of steps, on a machine that runs clusters beside them
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
LOCAL = at_once(["--node-name=n1"], {}, wait_seconds=2.0)
ALIAS = "ALIAS-"  # before the ids of a probe that calls the same devices otherwise
PROBES = ("nvml", "gpus=/opt/probe", "others=/opt/other-probe", "others=/opt/other-probe --plain")
NAMED = ("nvml", "gpus", "others")  # by policies: some of them are not the file's
OWN_POD = ("nodedevices-system", "agent")


def machines(examples: int) -> int:
    """Each is 25 steps of one: `make test` draws fewer of them than of others."""
    return scaled(examples, share=6)


def shares(replicas: int, **more: Any) -> dict[str, Any]:
    rule_ = {"name": GPU, "replicas": replicas, **more}
    return {"sharing": {"strategy": "timeSlicing", "resources": [rule_]}, "partitions": {"strategy": "mixed"}}


def by_memory(unit: str, **more: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": unit, **more}]}}


CONFIGS: tuple[dict[str, Any] | None, ...] = (
    None,  # the operator has not resolved the node
    {},
    {"partitions": {"strategy": "mixed"}},
    shares(2),
    shares(4),
    shares(2, rename=SHARED),
    shares(4, devices=["0"], rename=SHARED),
    {"resources": {"exclude": [gpu_id(0)]}, "partitions": {"strategy": "mixed"}},
    {"serving": {"mode": "Observe"}},
    by_memory("20Gi"),
    by_memory("70Gi"),
    by_memory("20Gi", devices=["0"]),
    {"health": {"forgetMissingSeconds": 60}},
    {"health": {"forgetMissingSeconds": 60}, **shares(2)},
)


@dataclass(frozen=True)
class Container:
    """What one container has: ids of one resource, as they were handed out under `plan`."""

    pod: str
    resource: str
    ids: tuple[str, ...]
    init: bool = field(default=False, kw_only=True)  # it is no container that List shows
    plan: int  # number of the plan that was sent, -1: another plugin's


class TheNode(RuleBasedStateMachine):
    file = FileOutcome()
    device_files: DeviceFiles = MappingProxyType({})

    def local(self) -> Local:
        return LOCAL

    @initialize()
    def start(self) -> None:
        self.clock = 100.0
        self.cut: frozenset[int] = frozenset()  # GPUs that are cut into two MIG devices each
        self.gone: frozenset[int] = frozenset()  # GPUs that the driver does not list
        self.containers: dict[str, Container] = {}
        self.pods = 0
        self.remembered: dict[str, Container] = {}  # of pods that have ended, which the kubelet has not noticed
        self.recorded: tuple[CheckpointEntry, ...] | None = None  # the kubelet's checkpoint
        self.kubelet_runs, self.knows_pods, self.kubelet = True, True, 0
        self.added: int | None = None  # how many of the pods it has added so far, while it does not know them all
        self.seen: SeenObject | None = SeenObject(exists=True, generation=1)
        self.api_server = True
        self.disk: State | None = None
        self.old_disks: list[State] = []
        self.disk_full = False
        self.sent = Plan()  # the newest list that the kubelet has
        self.plans: list[Plan] = []
        self.agent_starts()

    # --- the agent ----------------------------------------------------------------------------------------------------
    def agent_starts(self) -> None:
        self.world: World = begin(
            self.disk or State(),
            self.local(),
            now=self.now,
            monotonic=self.clock,
            file=self.file,
            device_files=self.device_files,
        )
        self.holdings = Holdings(state=HoldersState.UNAVAILABLE)
        self.first_list_at: float | None = self.clock + 1.0  # called at the start, and answered by then
        self.recent: tuple[RecentAllocate, ...] = ()
        self.saved_state = self.disk
        self.proven: int | None = None
        self.settling, self.shown = Settling(), ShownEntries()
        self.known_object = False
        self.sent = Plan(resources=tuple(replace(each, ids=()) for each in self.sent.resources))  # its streams ended

    @property
    def now(self) -> Any:
        return START + timedelta(seconds=self.clock)

    def devices(self) -> tuple[DeviceFact, ...]:
        return tuple(
            gpu(
                number,
                mig_enabled=number in self.cut,
                partitions=tuple(partition(number, part, profile="3g.40gb", start=4 * part, size=4) for part in (0, 1))
                if number in self.cut
                else (),
            )
            for number in range(2)
            if number not in self.gone
        )

    def agent_lists(self) -> None:
        self.first_list_at = None
        if not self.kubelet_runs:
            now = with_checkpoint(self.holdings, self.holdings, self.recorded, "")
            self.holdings = replace(now, state=HoldersState.UNAVAILABLE)
            return
        before, response = self.recorded, self.pod_resources()
        now_listed = listed(response, self.now)
        self.settling = self.settling.after(self.kubelet, pods_of(response), self.clock)
        self.shown = self.shown.after(self.kubelet, before, self.recorded, given(now_listed))
        if self.world.waits_for_holders and self.sent.resources:
            self.write_checkpoint()  # the agent sends a list once more
        self.holdings = taken_from(
            now_listed,
            self.holdings,
            self.recent,
            complete=self.proven == self.kubelet or self.settling.settled(OWN_POD, self.clock),
            own_pod=OWN_POD,
            recorded=self.shown.without_ended(self.recorded or (), given(now_listed)),
            taken=self.clock,
        )
        offered = tuple(
            Offer(resource=each.name, ids=tuple(one.id for one in each.ids if one.healthy))
            for each in self.sent.resources
        )
        self.holdings = replace(self.holdings, offered=offered)
        if self.holdings.state is HoldersState.SYNCED:
            self.proven = self.kubelet

    def pod_resources(self) -> api.ListPodResourcesResponse:
        """List: of the pods that the kubelet has added, oldest first. One that knows all of its pods forgets others."""
        response = api.ListPodResourcesResponse()
        if self.knows_pods:
            self.remembered = {}
        if not self.knows_pods and self.added is None:
            return response
        response.pod_resources.add(namespace=OWN_POD[0], name=OWN_POD[1])
        for each in list(self.containers.values())[: self.added]:
            pod = response.pod_resources.add(namespace="default", name=each.pod)
            if each.init:
                continue
            container = pod.containers.add(name="main")
            for id_ in each.ids:
                container.devices.add(resource_name=each.resource, device_ids=[id_])
        return response

    def agent_steps(self) -> None:
        for _ in range(3):  # a change, its save, and what follows
            self.clock += 0.1
            if self.first_list_at is not None and self.clock >= self.first_list_at:
                self.agent_lists()
            if self.api_server:
                self.known_object = True
            outcome = self.decided(
                Inputs(
                    snapshot=snapshot(*self.devices()) if self.probe_reports() else None,
                    source=self.probe(),
                    arrived=self.clock,
                    file=self.file,
                    device_files=self.device_files,
                    seen=self.seen if self.known_object else None,
                    holdings=self.holdings,
                    recent=self.recent,
                    saved=restored(self.saved_state.applied, self.local().modes, self.local().vendors)
                    if self.saved_state is not None and self.saved_state.applied is not None
                    else None,
                    unsaved_because="disk full" if self.disk_full else "",
                    mps=self.mps_facts(),
                )
            )
            self.world = outcome.world
            if not self.disk_full and self.world.state != self.disk:
                if self.disk is not None:
                    self.old_disks.append(self.disk)
                self.disk = self.saved_state = self.world.state
            if self.kubelet_runs and self.world.plan is not None:
                if self.world.plan != self.sent:
                    self.write_checkpoint()  # at each list of a plugin
                self.sent = self.world.plan
                self.plans.append(self.sent)

    def decided(self, inputs: Inputs) -> Step:
        return step(self.world, inputs, self.local(), now=self.now, monotonic=self.clock)

    def mps_facts(self) -> MpsFacts:
        return MpsFacts()

    def probe(self) -> str:
        """The one that runs; "": the only one that there ever is."""
        return ""

    def probe_reports(self) -> bool:
        return True

    # --- what happens -------------------------------------------------------------------------------------------------
    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds
        self.agent_lists()
        self.agent_steps()

    @rule()
    def agent_only_steps(self) -> None:
        self.agent_steps()

    @rule(pick=st.integers(min_value=0), count=st.integers(1, 2), init=st.booleans())
    @precondition(lambda self: self.kubelet_runs and self.knows_pods)
    def pod_comes(self, pick: int, count: int, init: bool = False) -> None:
        offers = []
        for resource in self.sent.resources:
            taken = {id_ for each in self.containers.values() if each.resource == resource.name for id_ in each.ids}
            free = [one.id for one in resource.ids if one.healthy and one.id not in taken]
            if len(free) >= count:
                offers.append((resource.name, free))
        if not offers:
            return
        resource_name, free = offers[pick % len(offers)]
        start = pick % (len(free) - count + 1)
        self.allocated(resource_name, tuple(free[start : start + count]), init=init)

    def allocated(self, resource: str, ids: tuple[str, ...], *, init: bool = False) -> None:
        self.pods += 1
        name = f"pod-{self.pods}"
        self.recent = (*self.recent, RecentAllocate(resource=resource, ids=ids, time=self.now, monotonic=self.clock))
        self.containers[name] = Container(name, resource, ids, len(self.plans) - 1, init=init)
        self.remembered = {}
        self.write_checkpoint()

    @rule(pick=st.integers(min_value=0))
    @precondition(lambda self: self.containers)
    def pod_ends(self, pick: int) -> None:
        """Its devices are free at once, and the checkpoint goes on naming it."""
        name = sorted(self.containers)[pick % len(self.containers)]
        self.remembered[name] = self.containers.pop(name)

    @rule()
    def kubelet_restarts(self) -> None:
        self.kubelet_runs, self.knows_pods, self.kubelet, self.added = True, False, self.kubelet + 1, None
        self.sent = self.world.plan or Plan()
        self.plans.append(self.sent)  # which may have changed while the kubelet was away
        named = {each.pod_uid for each in self.recorded or ()}
        self.remembered = {name: each for name, each in self.remembered.items() if name in named}
        if self.sent.resources:
            self.write_checkpoint()

    @rule()
    def kubelet_stops(self) -> None:
        self.kubelet_runs, self.knows_pods, self.added = False, False, None

    @rule()
    @precondition(lambda self: self.kubelet_runs and self.api_server)
    def kubelet_hears_of_its_pods(self) -> None:
        self.knows_pods, self.added = True, None

    @rule(count=st.integers(0, 3))
    @precondition(lambda self: self.kubelet_runs and self.api_server and not self.knows_pods)
    def kubelet_adds_some_of_its_pods(self, count: int) -> None:
        """And a List finds it at that."""
        self.added = max(count, self.added or 0)
        self.time_passes(0.5)

    @rule()
    @precondition(lambda self: self.kubelet_runs and self.knows_pods)
    def nothing_happens_for_a_while(self) -> None:
        """Then nothing is kept back for a pod that has ended."""
        for _ in range(3):
            self.time_passes(20.0)
        if self.world.waits_for_holders and self.sent.resources:
            held = {(each.resource, each.ids) for each in self.containers.values()}
            assert {(each.resource, each.ids) for each in self.holdings.possible or ()} <= held

    @rule(config=st.sampled_from(CONFIGS))
    def policy_changes(self, config: dict[str, Any] | None) -> None:
        self.seen = SeenObject(exists=True, generation=2, config=copy.deepcopy(config), config_hash=str(config))

    @rule(away=st.booleans())
    def api_server_comes_or_goes(self, away: bool) -> None:
        self.api_server = not away

    @rule(how=st.sampled_from(["as it was", "lost", "outdated"]), pick=st.integers(min_value=0))
    def agent_restarts(self, how: str, pick: int) -> None:
        if how == "lost":
            self.disk = None
        elif how == "outdated" and self.old_disks:
            self.disk = self.old_disks[pick % len(self.old_disks)]
        self.agent_starts()

    @rule(full=st.booleans())
    def disk_fills_up_or_not(self, full: bool) -> None:
        self.disk_full = full

    @rule(number=st.integers(0, 1))
    def mig_changes(self, number: int) -> None:
        self.cut ^= {number}

    @rule(number=st.integers(0, 1))
    def gpu_vanishes_or_returns(self, number: int) -> None:
        self.gone ^= {number}

    @rule(number=st.integers(0, 1), share=st.integers(0, 5))
    @precondition(lambda self: self.kubelet_runs and self.knows_pods)
    def pod_of_another_plugin_holds(self, number: int, share: int) -> None:
        """From before this agent and its first List: only on a device that nobody has."""
        if number in self.cut or any(
            owner(id_) == gpu_id(number) for each in self.containers.values() for id_ in each.ids
        ):
            return
        if self.world.active.applied_once or self.first_list_at is None:
            return  # whoever hands out beside this agent is the guard's matter
        self.pods += 1
        name = f"theirs-{self.pods}"
        self.containers[name] = Container(name, "vendor.example/gpu", (f"{gpu_id(number)}::{share}",), -1)
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        every = (*self.containers.values(), *self.remembered.values())
        name = {True: "init", False: "main"}
        self.recorded = tuple(
            CheckpointEntry(each.pod, name[each.init], each.resource, tuple(sorted(each.ids))) for each in every
        )

    # --- what always holds --------------------------------------------------------------------------------------------
    @invariant()
    def no_device_goes_to_two_containers_but_as_shares_of_one_plan(self) -> None:
        held = self.handed_out()
        for place, (one, first) in enumerate(held):
            for other, second in held[place + 1 :]:
                if not same_part(first, second):
                    continue
                newer = max(one.plan, other.plan)
                if newer < 0:
                    continue  # another plugin handed out both
                offered = {(each.name, each_id.id) for each in self.plans[newer].resources for each_id in each.ids}
                together = {(one.resource, first), (other.resource, second)}
                assert all("::" in each for each in (first, second)), (one, other)
                assert together <= offered, (one, other)

    def handed_out(self) -> list[tuple[Container, str]]:
        return [(each, id_) for each in self.containers.values() for id_ in each.ids]

    @invariant()
    def no_more_of_a_devices_memory_is_given_than_it_has(self) -> None:
        given: dict[str, int] = {}
        for each in self.containers.values():
            if each.plan < 0:
                continue
            [resource] = (one for one in self.plans[each.plan].resources if one.name == each.resource)
            memory = resource.sharing.memory
            if memory is None:
                continue
            for id_ in each.ids:
                given[owner(id_)] = given.get(owner(id_), 0) + memory.unit_bytes
        assert all(each <= 80 * GIB for each in given.values()), self.containers


def owner(id_: str) -> str:
    base = id_.partition("::")[0].removeprefix(ALIAS)
    for number in range(2):
        if base in (gpu_id(number), gpu_id(number + 2), mig_id(number, 0), mig_id(number, 1)):
            return gpu_id(number)
    raise AssertionError(id_)


def same_part(one: str, other: str) -> bool:
    """Whether both ids are of one device, or of one MIG device; two MIG devices of a GPU are apart."""
    if owner(one) != owner(other):
        return False
    first, second = (each.partition("::")[0].removeprefix(ALIAS) for each in (one, other))
    return first == second or not (first.startswith("MIG-") and second.startswith("MIG-"))


TheNode.TestCase.settings = settings(
    max_examples=machines(150), stateful_step_count=25, phases=[Phase.reuse, Phase.generate, Phase.shrink]
)
TestNoDeviceTwice = TheNode.TestCase


class TheNodeWithInitContainers(TheNode):
    """The same where one has a GPU for longer than an Allocate is remembered; pods come after each change."""

    @initialize(pick=st.integers(0, 1))
    def start(self, pick: int) -> None:
        super().start()
        self.seen = SeenObject(exists=True, generation=1, config={}, config_hash="{}")
        self.time_passes(3.0)
        self.pod_comes(pick, 1, init=True)
        self.time_passes(61.0)

    @rule(config=st.sampled_from(CONFIGS[1:]))
    def policy_changes(self, config: dict[str, Any] | None) -> None:
        super().policy_changes(config)
        self.time_passes(3.0)
        for pick in range(3 if self.kubelet_runs and self.knows_pods else 0):
            self.pod_comes(pick, 1)

    # What the other models are about, and happens here seldom enough for the rest to come together.
    mig_changes = pod_of_another_plugin_holds = disk_fills_up_or_not = None  # type: ignore[assignment]


TheNodeWithInitContainers.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(40))
TestNoDeviceTwiceWithInitContainers = TheNodeWithInitContainers.TestCase


def clients(replicas: int, **more: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "mps", "resources": [{"name": GPU, "replicas": replicas, **more}]}}


class TheNodeWithDaemons(TheNode):
    """The same with MPS, whose shares need a daemon: changes of it wait as a whole, and it comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = DaemonState.STARTING
        self.wanted: tuple[MpsDaemon, ...] = ()  # as they are kept, whatever becomes of the state file

    def local(self) -> Local:
        local = super().local()
        return dataclasses.replace(local, given={**local.given, "mps-root": "/run/nvidia/mps"})

    def mps_facts(self) -> MpsFacts:
        before = self.wanted if self.world.daemons is None else ()
        self.wanted = self.wanted if self.world.daemons is None else self.world.daemons
        status = DaemonStatus(state=self.answers, message=self.answers.value)
        return MpsFacts(statuses={each.key: status for each in self.wanted}, before=before)

    @rule(answers=st.sampled_from(DaemonState))
    def daemons_come_and_go(self, answers: DaemonState) -> None:
        self.answers = answers

    @rule(config=st.sampled_from((*CONFIGS[1:6], clients(2), clients(4), clients(2, rename=SHARED), clients(2))))
    def policy_changes(self, config: dict[str, Any] | None) -> None:
        self.seen = SeenObject(exists=True, generation=2, config=copy.deepcopy(config), config_hash=str(config))


TheNodeWithDaemons.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(60))
TestNoDeviceTwiceWithDaemons = TheNodeWithDaemons.TestCase


class TheNodeWhoseProbesChange(TheNode):
    """The same with a configuration file, or a policy, that takes the probe away and puts another one in its place,
    which may call the same devices otherwise and may take its time. The state file is whole: who holds an id that
    nothing remembers cannot be known."""

    def __init__(self) -> None:
        super().__init__()
        self.started_after = 0.0

    def probe(self) -> str:
        return self.world.known.probe_set.texts[0].partition("=")[0]

    def probe_reports(self) -> bool:
        return self.clock >= self.started_after

    def devices(self) -> tuple[DeviceFact, ...]:
        plain = (dataclasses.replace(each, pci_bus_id=f"0000:0{each.index}:00.0") for each in super().devices())
        return tuple(plain) if self.calls_them_plainly() else tuple(map(renamed, plain))

    def calls_them_plainly(self) -> bool:
        text = self.world.known.probe_set.texts[0]
        return not text.startswith("others=") or text.endswith("--plain")

    @rule(text=st.sampled_from(PROBES), seconds=st.sampled_from([0.0, 10.0, 30.0]))
    def probe_changes(self, text: str, seconds: float) -> None:
        self.file = FileOutcome(config=FileConfig(flags={"probe": (text,)}))
        self.started_after = self.clock + seconds

    @rule(name=st.sampled_from(NAMED), config=st.sampled_from(CONFIGS[1:6]), seconds=st.sampled_from([0.0, 10.0]))
    def policy_names_the_probe(self, name: str, config: dict[str, Any], seconds: float) -> None:
        """It may name one that the node does not have, and is refused."""
        self.policy_changes({**config, "discovery": {"probes": [name]}})
        self.started_after = self.clock + seconds

    @rule(number=st.integers(0, 1), share=st.integers(0, 5))
    @precondition(lambda self: self.kubelet_runs and self.knows_pods and self.calls_them_plainly())
    def pod_of_another_plugin_holds(self, number: int, share: int) -> None:
        """Of a device that the agent has had by this name: nothing else leads from it to the new one."""
        if not self.world.known.inventory.devices:
            return
        super().pod_of_another_plugin_holds(number, share)

    @rule(full=st.just(False))
    def disk_fills_up_or_not(self, full: bool) -> None:
        super().disk_fills_up_or_not(full)

    @rule(how=st.just("as it was"), pick=st.just(0))
    def agent_restarts(self, how: str, pick: int) -> None:
        super().agent_restarts(how, pick)


def renamed(device: DeviceFact) -> DeviceFact:
    parts = tuple(dataclasses.replace(each, id=ALIAS + each.id) for each in device.partitions)
    return dataclasses.replace(device, id=ALIAS + device.id, partitions=parts)


TheNodeWhoseProbesChange.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(100))
TestNoDeviceTwiceWhenProbesChange = TheNodeWhoseProbesChange.TestCase


NEAR = {"devices": [{"match": {"type": "gpu", "near": "nic"}, "name": SHARED}]}
NEAR_CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"resources": NEAR, "health": {"forgetMissingSeconds": 60}},
    {"resources": NEAR, "health": {"forgetMissingSeconds": 60}, **shares(2)},
    {"resources": NEAR},
)


class TheNodeWithANic(TheNode):
    """The same where GPUs are called otherwise while a NIC is on their PCIe root; the NIC comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.nic = False

    def devices(self) -> tuple[DeviceFact, ...]:
        gpus = tuple(dataclasses.replace(each, pcie_root="pci0000:16") for each in super().devices())
        nic = DeviceFact(id="NIC-0", index=0, type="nic", vendor="none", pcie_root="pci0000:16")
        return (*gpus, nic) if self.nic else gpus

    @rule()
    def nic_comes_or_goes(self) -> None:
        self.nic = not self.nic

    @rule(config=st.sampled_from(NEAR_CONFIGS))
    def policy_changes(self, config: dict[str, Any] | None) -> None:
        super().policy_changes(config)


TheNodeWithANic.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(60))
TestNoDeviceTwiceWithANic = TheNodeWithANic.TestCase


INDEX: dict[str, Any] = {"injection": {"deviceIDStrategy": "index"}}


class TheNodeWhoseGpusAreReplaced(TheNode):
    """The same where a GPU in a slot is another one from now on, and containers are given indices or device nodes: they
    have what is in the slot. The state file is whole: which GPU was there before is known from it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.second: frozenset[int] = frozenset()  # slots with the other one of two GPUs

    def devices(self) -> tuple[DeviceFact, ...]:
        nodes = {each.id: (f"/dev/nvidia{each.index}",) for each in super().devices()}
        return tuple(
            dataclasses.replace(
                each, id=gpu_id(each.index + 2 * (each.index in self.second)), device_nodes=nodes[each.id]
            )
            for each in super().devices()
        )

    @rule(number=st.integers(0, 1), pick=st.integers(min_value=0), count=st.integers(1, 2))
    def gpu_is_replaced(self, number: int, pick: int, count: int) -> None:
        """And pods come, as many as there is room for."""
        self.second ^= {number}
        self.time_passes(3.0)
        for _ in range(2 if self.kubelet_runs and self.knows_pods else 0):
            self.pod_comes(pick, count)

    @rule(config=st.sampled_from([INDEX, {}, {**INDEX, **shares(2)}, shares(2)]))
    def policy_changes(self, config: dict[str, Any] | None) -> None:
        super().policy_changes(config)

    @rule(how=st.just("as it was"), pick=st.just(0))
    def agent_restarts(self, how: str, pick: int) -> None:
        super().agent_restarts(how, pick)

    mig_changes = pod_of_another_plugin_holds = disk_fills_up_or_not = None  # type: ignore[assignment]


TheNodeWhoseGpusAreReplaced.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(60))
TestNoDeviceTwiceWhereGpusAreReplaced = TheNodeWhoseGpusAreReplaced.TestCase


HUB, OTHER = "example.com/hub", "example.com/other"
HUB_FILES = (
    HubFile(HUB, shares=4, together=True),
    HubFile(HUB, shares=6, together=True),
    HubFile(HUB, shares=3),
    HubFile(OTHER),
)
HUB_CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"resources": {"devices": [{"match": {"ids": ["HUB-1"]}, "name": OTHER}]}},
    {"resources": {"devices": [{"match": {"ids": ["HUB-0"]}, "name": OTHER}]}},
    {"sharing": {"strategy": "timeSlicing", "resources": [{"name": HUB, "replicas": 2}]}},
)


class TheNodeThatGivesAllOfAResource(TheNode):
    """The same with devices of which a container gets all with any share. The state file is whole: what a container got
    beside the id that the kubelet lists is known from it alone."""

    def local(self) -> Local:
        return dataclasses.replace(LOCAL, devices_dir="/etc", vendors=Vendors((*VENDORS.every, Hubs())))

    @initialize(file=st.sampled_from(HUB_FILES))
    def start(self, file: HubFile) -> None:
        self.device_files = {HUB_FLAG: DeviceFileOutcome(content=file)}
        super().start()
        self.knows_pods = True
        self.seen = SeenObject(exists=True, generation=1, config={}, config_hash="{}")
        self.clock += 3.0
        self.agent_lists()
        self.agent_steps()
        self.pod_comes(0, 1)

    def devices(self) -> tuple[DeviceFact, ...]:
        return tuple(
            DeviceFact(
                id=f"HUB-{number}", index=number, type="hub", vendor="sitara", device_nodes=(f"/dev/hub{number}",)
            )
            for number in range(3)
            if number not in self.gone
        )

    @rule(file=st.sampled_from(HUB_FILES))
    def file_changes(self, file: HubFile) -> None:
        self.device_files = {HUB_FLAG: DeviceFileOutcome(content=file)}
        self.a_pod_comes_at_once()

    def a_pod_comes_at_once(self) -> None:
        """Of whatever is offered for the first time now, if there is such a thing."""
        self.time_passes(3.0)
        self.pod_comes(len(self.sent.resources) - 1, 1)

    @rule()
    def file_breaks(self) -> None:
        self.device_files = {HUB_FLAG: DeviceFileOutcome(error="not valid JSON")}

    @rule(config=st.sampled_from(HUB_CONFIGS))
    def policy_changes(self, config: dict[str, Any] | None) -> None:
        super().policy_changes(config)
        self.a_pod_comes_at_once()

    @rule(how=st.just("as it was"), pick=st.just(0))
    def agent_restarts(self, how: str, pick: int) -> None:
        super().agent_restarts(how, pick)

    # What the other models are about, and happens here seldom enough for the rest to come together.
    kubelet_stops = kubelet_restarts = api_server_comes_or_goes = disk_fills_up_or_not = None  # type: ignore[assignment]
    mig_changes = pod_of_another_plugin_holds = None  # type: ignore[assignment]

    def given(self, container: Container) -> set[str]:
        """The devices that it got."""
        [resource] = (each for each in self.plans[container.plan].resources if each.name == container.resource)
        own = {each.partition("::")[0] for each in container.ids}
        return own | ({each.device_id for each in resource.ids if each.healthy} if resource.together else set())

    @invariant()
    def no_device_goes_to_two_containers_but_as_shares_of_one_plan(self) -> None:
        held = list(self.containers.values())
        for place, one in enumerate(held):
            for other in held[place + 1 :]:
                if self.given(one) & self.given(other):
                    assert all("::" in each for each in (*one.ids, *other.ids)), (one, other)
                    assert one.resource == other.resource, (one, other)


TheNodeThatGivesAllOfAResource.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(40))
TestNoDeviceTwiceWhereAllIsGiven = TheNodeThatGivesAllOfAResource.TestCase


class Granted(RecentAllocations):
    """Those of the model."""

    def __init__(self, entries: Callable[[], tuple[RecentAllocate, ...]]) -> None:
        super().__init__()
        self.entries = entries  # type: ignore[method-assign]


class TheNodeThatIsAskedWhileItDecides(TheNode):
    """The kubelet's calls are answered by other threads than the one that steps: pods come after a step has taken its
    facts, and once more when it has decided, before its plan is in use. `moments`: which id they get then, one moment
    after the other; None: no pod comes."""

    def starts(self) -> None:
        self.moments: list[int | None] = []
        self.start()
        self.seen = SeenObject(exists=True, generation=1, config={}, config_hash="{}")
        self.time_passes(3.0)

    def agent_starts(self) -> None:
        super().agent_starts()
        self.answers = Answers(recent=Granted(lambda: self.recent))

    def decided(self, inputs: Inputs) -> Step:
        """As the agent does it (agent._pass)."""
        outcome = super().decided(inputs)
        self.pod_is_allocated()
        while (plan := outcome.world.plan) is not None and not self.answers.withdraw(
            plan, outcome.world.known.inventory, known=inputs.recent
        ):
            inputs = replace(inputs, recent=self.recent)
            outcome = super().decided(inputs)
        self.pod_is_allocated()
        if plan is not None:
            self.answers.use(plan, outcome.world.known.inventory, outcome.world.access.containers)
        return outcome

    def pod_is_allocated(self) -> None:
        """By the list that the kubelet has, and the plan that is in use."""
        pick = self.moments.pop(0) if self.moments else None
        held = {(each.resource, id_) for each in self.containers.values() for id_ in each.ids}
        free = [
            (resource.name, each.id)
            for resource in self.sent.resources
            for each in resource.ids
            if each.healthy and (resource.name, each.id) not in held
        ]
        if pick is not None and free:
            name, id_ = free[pick % len(free)]
            with contextlib.suppress(AllocationError):
                self.answers.grant(name, (id_,))
                self.allocated(name, (id_,))


@cases("config", shares(2), by_memory("20Gi"))
@cases("back", False, True)
def test_no_device_goes_to_two_containers_whenever_the_kubelet_asks_while_the_agent_decides(
    config: dict[str, Any], back: bool
) -> None:
    """A policy comes; and one goes (`back`). Every order of Allocates in the three steps after it."""
    for moments in itertools.product([None, 0], repeat=5):
        node = TheNodeThatIsAskedWhileItDecides()
        node.starts()
        if back:
            node.policy_changes(config)
            node.time_passes(3.0)
        node.policy_changes({} if back else config)
        node.moments = list(moments)
        node.agent_steps()
        node.no_device_goes_to_two_containers_but_as_shares_of_one_plan()
        node.no_more_of_a_devices_memory_is_given_than_it_has()


NO_TOPOLOGY = build(Inventory())
CORES, VCUDA = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


def tencents(*shared: str) -> dict[str, Any]:
    """These GPUs by memory, and the others whole, for a hundred cores each."""
    rule_ = {"name": GPU, "rename": VCUDA, "memoryUnit": "20Gi", "devices": list(shared)}
    return {"sharing": {"strategy": "memory", "resources": [rule_]}}


CORE_CONFIGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    tencents("0"),
    tencents("0"),
    tencents("1"),
    tencents("none"),
    tencents("0", "1"),
    shares(2),
    {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 100, "rename": CORES}]}},
    by_memory("20Gi", devices=["0"]),
    {"serving": {"mode": "Observe"}},
)


class TheNodeWithCores(TheNode):
    """The same with computing power as a resource: a GPU's hundred go to one container, and those of shared GPUs are
    ids of no device."""

    @initialize(shared=st.sampled_from(["0", "none"]), size=st.sampled_from([30, 100]))
    def start(self, shared: str, size: int) -> None:
        super().start()
        self.knows_pods = True
        self.seen = SeenObject(exists=True, generation=1, config=tencents(shared), config_hash=shared)
        self.time_passes(3.0)
        self.pod_with_cores_comes(0, size)

    @rule(pick=st.integers(min_value=0), size=st.sampled_from([30, 99, 100, 100, 200]))
    @precondition(lambda self: self.kubelet_runs and self.knows_pods)
    def pod_with_cores_comes(self, pick: int, size: int) -> None:
        """The kubelet asks which, unless exactly so many are free, and then whether."""
        for resource in self.sent.resources:
            taken = {id_ for each in self.containers.values() if each.resource == resource.name for id_ in each.ids}
            free = [one.id for one in resource.ids if one.healthy and one.id not in taken]
            if resource.per_device is None or len(free) < size:
                continue
            try:
                ids = tuple(free)
                if len(free) > size:
                    ids = prefer(resource, free[pick % len(free) :] + free[: pick % len(free)], (), size, NO_TOPOLOGY)
                grant(resource, ids)
            except AllocationError:
                return
            self.allocated(resource.name, ids)

    @rule(pick=st.integers(min_value=0), count=st.integers(1, 2))
    @precondition(lambda self: self.kubelet_runs and self.knows_pods)
    def pod_comes(self, pick: int, count: int) -> None:
        """Of another resource."""
        every, self.sent = self.sent, Plan(resources=tuple(each for each in self.sent.resources if not each.per_device))
        super().pod_comes(pick, count)
        self.sent = every

    @rule(config=st.sampled_from(CORE_CONFIGS), size=st.sampled_from([1, 30, 100]))
    def policy_changes(self, config: dict[str, Any] | None, size: int) -> None:
        """And pods come at once, as many as there is room for."""
        super().policy_changes(config)
        self.time_passes(3.0)
        for pick in range(2 if self.kubelet_runs and self.knows_pods else 0):
            self.pod_with_cores_comes(pick, size)
            self.pod_comes(pick, 1)

    # What the other models are about, and happens here seldom enough for the rest to come together.
    api_server_comes_or_goes = mig_changes = pod_of_another_plugin_holds = None  # type: ignore[assignment]

    def handed_out(self) -> list[tuple[Container, str]]:
        """Of a whole device's hundred, which the next invariant is about, the first."""
        return [
            (each, id_)
            for each in self.containers.values()
            for id_ in each.ids
            if not is_core(id_) or id_.endswith("::core.0")
            if not id_.startswith("shared::")
        ]

    @invariant()
    def all_ids_of_a_whole_device_are_one_containers(self) -> None:
        seen: dict[str, str] = {}
        for each in self.containers.values():
            parts = [id_.partition("::")[0] for id_ in each.ids if is_core(id_) and not id_.startswith("shared::")]
            for part in set(parts):
                assert parts.count(part) == 100, each
                assert seen.setdefault(part, each.pod) == each.pod, (part, self.containers)


TheNodeWithCores.TestCase.settings = settings(TheNode.TestCase.settings, max_examples=machines(40))
TestNoDeviceTwiceWithCores = TheNodeWithCores.TestCase
