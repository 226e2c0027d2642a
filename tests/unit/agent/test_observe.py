"""serving.mode Observe, step by step from literals: another plugin serves the kubelet, this agent only looks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from nodedevices_api import nodedevices as api
from nodedevices_api.conditions import find
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, Registration, RegistrationState
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.effective import from_saved
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import ProbeEvent
from support.facts import START, gpu, gpu_id, old, snapshot, xid
from support.steps import step

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
LOCAL = parse_flags(["--node-name=n1"], {})
OBSERVER = parse_flags(["--node-name=n1"], {"NODEDEVICES_SERVING_MODE": "Observe"})
NOBODY = Holdings(state=HoldersState.SYNCED, offered=(), taken=1.0)
THEIRS = replace(NOBODY, offered=(Offer(resource=GPU, ids=(gpu_id(0), gpu_id(1))),))
SLICED = replace(NOBODY, offered=(Offer(resource=GPU, ids=tuple(f"{gpu_id(n)}::{r}" for n in (0, 1) for r in (0, 1))),))
OBSERVE: dict[str, Any] = {"serving": {"mode": "Observe"}}
SERVE: dict[str, Any] = {"serving": {"mode": "Serve"}}


def seen(config: dict[str, Any] | None) -> SeenObject:
    return SeenObject(exists=True, generation=1, config=config, config_hash=None)


def holder(*ids: str, resource: str = GPU) -> Holder:
    return Holder(namespace="ml", pod="train-0", container="main", resource=resource, ids=ids, since=START)


class Node:
    """Two GPUs of a driver that cannot say what they need; each step comes a second after the one before."""

    def __init__(self, local: Local = OBSERVER, state: State | None = None) -> None:
        self.local = local
        self.clock = 100.0
        self.inputs = Inputs(holdings=NOBODY, seen=seen({}))
        self.world: World = begin(state or State(), local, now=START, monotonic=self.clock)
        self.last: Step | None = None

    def given(self, **inputs: Any) -> Node:
        self.inputs = replace(self.inputs, **inputs)
        return self.line()

    def line(self, *xids: ProbeEvent, after: float = 1) -> Node:
        self.clock += after
        devices = tuple(gpu(number, readings=old()) for number in range(2))
        line = snapshot(*devices, events=tuple(replace(each, sequence=int(self.clock)) for each in xids))
        self._step(replace(self.inputs, snapshot=line, arrived=self.clock))
        applied = self.world.state.applied  # which is saved at once
        if applied is not None and from_saved(applied) != self.inputs.saved:
            self.inputs = replace(self.inputs, saved=from_saved(applied))
            self._step(self.inputs)
        return self

    def _step(self, inputs: Inputs) -> None:
        self.last = step(self.world, inputs, self.local, now=self.now, monotonic=self.clock)
        self.world = self.last.world

    def restarted(self, local: Local | None = None) -> Node:
        again = Node(local or self.local, self.world.state)
        again.clock, again.inputs = self.clock, self.inputs
        return again

    @property
    def now(self) -> Any:
        return START + timedelta(seconds=self.clock)

    @property
    def serves(self) -> set[str]:
        return {each.name for each in self.world.plan.resources} if self.world.plan else set()

    @property
    def config(self) -> str:
        return self.world.config.reason

    def status(self) -> api.NodeDevicesStatus:
        world = self.world
        return report(
            NodeFacts(
                inventory=world.inventory,
                verdicts=world.verdicts,
                plan=world.plan,
                observed=world.observed,
                holdings=world.holdings,
                config=world.config,
                retired=world.state.retired,
                started=START,
                running_seconds=(self.now - START).total_seconds(),
                probes=(ProbeFacts(name="simulated", inventory=world.inventory),),
                now=self.now,
            )
        )

    def resources(self) -> dict[str, tuple[int, int, int, str]]:
        return {
            each.name: (each.capacity, each.healthy, each.allocated, each.managed_by)
            for each in self.status().resources
        }

    def ready(self) -> tuple[str, str, str]:
        found = find(self.status().conditions, "Ready")
        assert found is not None
        return found.status, found.reason, found.message


def test_an_observer_offers_nothing_and_shows_what_the_other_plugin_offers() -> None:
    node = Node().given(holdings=replace(THEIRS, holders=(holder(gpu_id(1)),)))
    assert (node.serves, node.config) == (set(), "Applied")
    assert node.resources() == {GPU: (2, 2, 1, "plugin")}
    assert [len(each.holders) for each in node.status().devices] == [0, 1]
    assert node.ready()[:2] == ("True", "AgentRunning")
    assert GPU in node.ready()[2]


def test_the_flag_and_the_policy_set_the_same_and_the_policy_is_stronger() -> None:
    assert Node(LOCAL).given(seen=seen(OBSERVE)).serves == set()
    assert Node(OBSERVER).given(seen=seen(SERVE)).serves == {GPU}
    assert Node(LOCAL).line().serves == {GPU}


def test_faults_are_judged_and_reported_and_a_plugin_that_goes_on_offering_the_device_is_named() -> None:
    node = Node().given(holdings=THEIRS).line(xid(79))
    assert [each.health.reason for each in node.status().devices] == ["Xid79", ""]
    assert node.resources()[GPU][:2] == (2, 2)
    assert "gpu-0" in node.ready()[2]
    withdrawn = replace(NOBODY, offered=(Offer(resource=GPU, ids=(gpu_id(1),)),))
    assert node.given(holdings=withdrawn).resources()[GPU][:2] == (2, 1)
    assert "gpu-0" not in node.ready()[2]


def test_another_plugins_end_is_reported_as_nothing_healthy_and_its_name_is_not_retired() -> None:
    node = Node().given(holdings=THEIRS).given(holdings=NOBODY)
    assert node.resources() == {GPU: (2, 0, 0, "plugin")}
    assert node.ready()[0] == "True"
    assert not node.status().retired_resources
    assert node.restarted().line().resources() == {GPU: (2, 0, 0, "plugin")}


def test_a_name_that_the_other_plugin_gave_up_is_retired() -> None:
    shared = replace(NOBODY, offered=(Offer(resource=SHARED, ids=(f"{gpu_id(0)}::0", f"{gpu_id(1)}::0")),))
    node = Node().given(holdings=THEIRS).given(holdings=shared)
    assert [each.name for each in node.status().resources] == [SHARED]
    assert [each.name for each in node.status().retired_resources] == [GPU]
    assert not [each.name for each in node.given(holdings=THEIRS).status().retired_resources if each.name == GPU]


def test_podresources_is_the_way_to_the_kubelet() -> None:
    away = Holdings(state=HoldersState.UNAVAILABLE, message="PodResources does not answer")
    node = Node().given(holdings=THEIRS).given(holdings=replace(THEIRS, state=away.state, message=away.message))
    assert node.ready() == ("False", "KubeletUnreachable", "serving.mode Observe: PodResources does not answer")
    assert node.resources()[GPU][:2] == (2, 0)
    refused = replace(THEIRS, state=HoldersState.RATE_LIMITED, message="rejected by rate limit")
    assert node.given(holdings=refused).ready()[0] == "True"
    assert node.resources()[GPU][:2] == (2, 2)


def test_before_the_kubelets_first_answer_an_observer_is_starting() -> None:
    node = Node()
    node.clock = 0.0
    node.given(holdings=Holdings(state=HoldersState.UNAVAILABLE, message="not queried yet"))
    assert node.ready()[:2] == ("Unknown", "Starting")
    assert node.line(after=20).ready()[:2] == ("False", "KubeletUnreachable")


def test_what_others_offer_may_be_unknown_while_holders_are_known() -> None:
    node = Node().given(holdings=replace(NOBODY, offered=None, message="GetAllocatableResources failed"))
    assert node.ready()[:2] == ("True", "AgentRunning")
    assert "GetAllocatableResources failed" in node.ready()[2]


# --- from one mode to the other ---------------------------------------------------------------------------------------
def test_to_stop_serving_waits_for_the_pods_that_hold_what_is_served() -> None:
    node = Node(LOCAL).given(holdings=replace(NOBODY, offered=None, holders=(holder(gpu_id(0)),)))
    node.given(seen=seen(OBSERVE))
    assert (node.config, node.serves) == ("WaitingForHolders", {GPU})
    assert "ml/train-0" in node.world.config.message
    node.given(holdings=replace(NOBODY, offered=None))
    assert (node.config, node.serves) == ("Applied", set())
    assert [each.name for each in node.status().retired_resources] == [GPU]
    assert not node.given(holdings=THEIRS).status().retired_resources


def test_the_same_ids_are_taken_over_at_once_with_their_pods_and_beside_the_other_plugin() -> None:
    node = Node().given(holdings=replace(THEIRS, holders=(holder(gpu_id(0)),))).given(seen=seen(SERVE))
    assert (node.config, node.serves) == ("Applied", {GPU})
    assert node.resources() == {GPU: (2, 2, 1, "plugin")}


def test_other_ids_are_taken_over_when_their_pods_have_ended_and_their_plugin_has_left() -> None:
    node = Node().given(holdings=replace(SLICED, holders=(holder(f"{gpu_id(0)}::1"),))).given(seen=seen(SERVE))
    assert (node.config, node.serves) == ("WaitingForHolders", set())
    assert "ml/train-0" in node.world.config.message
    node.given(holdings=SLICED)
    assert (node.config, node.serves) == ("WaitingForHolders", set())
    assert node.given(holdings=NOBODY).serves == {GPU}
    assert not node.status().retired_resources


def test_nothing_is_taken_over_while_the_kubelet_does_not_say() -> None:
    node = Node().given(holdings=THEIRS).given(holdings=replace(THEIRS, state=HoldersState.UNAVAILABLE))
    assert node.given(seen=seen(SERVE)).config == "WaitingForHolders"


def test_a_restart_remembers_that_it_observed_and_waits_as_before() -> None:
    node = Node(LOCAL).given(seen=seen(OBSERVE), holdings=SLICED)
    again = node.restarted()
    again.given(holdings=Holdings(state=HoldersState.UNAVAILABLE), seen=None)
    assert again.serves == set()
    assert again.resources() == {GPU: (4, 0, 0, "plugin")}
    assert again.given(seen=seen(SERVE), holdings=SLICED).config == "WaitingForHolders"


def test_index_ids_are_led_back_to_devices_where_they_are_configured() -> None:
    local = parse_flags(["--node-name=n1", "--serving-mode=Observe", "--device-id-strategy=index"], {})
    theirs = replace(NOBODY, offered=(Offer(resource=GPU, ids=("0", "1")),), holders=(holder("1"),))
    node = Node(local).given(holdings=theirs)
    assert node.resources() == {GPU: (2, 2, 1, "plugin")}
    assert [len(each.holders) for each in node.status().devices] == [0, 1]
    node.given(seen=seen(SERVE))
    assert (node.config, node.serves) == ("WaitingForHolders", set())


def test_who_never_served_stops_at_once_whatever_pods_hold() -> None:
    theirs = Registration(resource=GPU, state=RegistrationState.SERVED_BY_ANOTHER, message="another one")
    held = replace(THEIRS, holders=(holder(gpu_id(0)),))
    node = Node(LOCAL).given(holdings=held, registrations=(theirs,))
    assert node.serves == {GPU}
    assert Node(LOCAL).given(holdings=held).given(seen=seen(OBSERVE)).config == "WaitingForHolders"
    node.given(seen=seen(OBSERVE))
    assert (node.serves, node.config) == (set(), "Applied")
    assert node.resources() == {GPU: (2, 2, 1, "plugin")}
