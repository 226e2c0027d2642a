"""A change of a policy comes to some nodes at a time, and no further while one of them is worse off."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.times import rfc3339
from nodedevices_operator.cache.queue import MAX_LATE_SECONDS
from nodedevices_operator.desired.configuration import resolve
from nodedevices_operator.desired.rollout import (
    LOSS_SECONDS,
    SETTLE_SECONDS,
    STARTING_SECONDS,
    held_back,
)
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import node_devices_record, policy_record
from support.fakekube import FakeKube, settle
from support.marking import events_sent
from support.opfacts import GPU, device, node_devices, raw_node, raw_policy, resource
from support.whole_operator import POLICY, arrive, condition, end, started

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MIXED, SINGLE = {"strategy": "mixed"}, {"strategy": "single"}
DEVICES = 8


@dataclass
class Fleet:
    """Nodes whose agents answer when a test says so; the time is a test's, too."""

    kube: FakeKube = field(default_factory=FakeKube)
    seconds: float = 0.0
    manager: Any = None  # of this life

    def now(self) -> str:
        return rfc3339(START + timedelta(seconds=self.seconds))

    def add(self, name: str, **summary: int) -> None:
        gpus = {GPU: str(DEVICES)}
        node, mine = raw_node(gpus, allocatable=gpus), node_devices(device(0), resources=[resource(DEVICES, DEVICES)])
        for raw in (node, mine):
            raw["metadata"] |= {"name": name, "uid": f"{name}-uid"}
        mine["spec"] = {"config": {}, "configHash": "00", "policies": []}
        mine["status"]["summary"] = {"offered": DEVICES} | summary
        self.kube.put(f"{names.NODES}/{name}", node)
        self.kube.put(self.path(name), mine)

    @staticmethod
    def path(name: str) -> str:
        return f"{names.NODE_DEVICES}/{name}"

    def spec(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects[self.path(name)]["spec"]
        return found

    def have(self, wanted: Any) -> list[str]:
        nodes = [path.rpartition("/")[2] for path in self.kube.objects if path.startswith(f"{names.NODE_DEVICES}/")]
        return sorted(name for name in nodes if self.spec(name)["config"].get("partitions") == wanted)

    async def restart(self) -> None:
        self.manager = await started(self.kube, clock=lambda: self.seconds, now=self.now)

    async def policy(self, generation: int, partitions: Any, **spec: Any) -> None:
        await self.apply("p", generation, partitions=partitions, **spec)

    async def apply(self, name: str, generation: int, *, annotation: str = "", **spec: Any) -> None:
        path = f"{names.POLICIES}/{name}"
        raw = raw_policy(name, generation=generation, **spec)
        if annotation:
            raw["metadata"]["annotations"] = {CONFIRM: annotation}
        status = self.kube.objects.get(path, {}).get("status")
        if status is not None:
            raw["status"] = status
        arrive(self.manager, self.kube, path, raw)
        await self.manager.reconcile_policy(name)
        await settle(self.manager)

    async def delete_policy(self) -> None:
        end(self.manager, self.kube, POLICY)
        await settle(self.manager)

    async def take(self, *nodes: str, offered: int = DEVICES, excluded: int = 0) -> None:
        """Their agents have taken what their objects say, and nothing comes after it."""
        await self.answer(*nodes, offered=offered, excluded=excluded)
        await self.wait(SETTLE_SECONDS)

    async def answer(
        self, *nodes: str, applied: tuple[str, str] = ("True", "Applied"), probe: str = "Ready", **summary: int
    ) -> None:
        """Their agents report: they have applied what their objects say."""
        for name in nodes:
            raw = copy.deepcopy(self.kube.objects[self.path(name)])
            spec, status = raw["spec"], raw["status"]
            status |= {"appliedConfigHash": spec["configHash"], "observedGeneration": raw["metadata"]["generation"]}
            status["summary"] = {**status["summary"], **summary}
            status["probes"] = [{"name": "nvml", "state": probe, "since": rfc3339(START), "devices": DEVICES}]
            others = [each for each in status["conditions"] if each["type"] != "ConfigApplied"]
            one = {"type": "ConfigApplied", "status": applied[0], "reason": applied[1], "message": "why"}
            status["conditions"] = [*others, {**one, "lastTransitionTime": self.now()}]
            arrive(self.manager, self.kube, self.path(name), raw)
        await settle(self.manager)

    async def wait(self, seconds: float) -> None:
        self.seconds += seconds
        for path in list(self.kube.objects):
            if path.startswith(f"{names.NODE_DEVICES}/"):
                self.manager.nodes.add(path.rpartition("/")[2])
        await settle(self.manager)

    def told(self) -> list[tuple[str, str]]:
        """What Events RolloutStopped are about."""
        bodies = [body for _, _, body in self.kube.written("/events") if body["reason"] == "RolloutStopped"]
        return [(body["involvedObject"]["kind"], body["involvedObject"]["name"]) for body in bodies]

    def stopped(self) -> list[str]:
        """Policies, as the metric has them."""
        self.manager.gauge()
        lines = self.manager.metrics.render().decode().splitlines()
        shown = [line for line in lines if line.startswith("nodedevices_operator_rollout_stopped{")]
        return [line.split('"')[1] for line in shown if line.endswith(" 1.0")]

    def reconciled(self) -> float:
        """Nodes, so far, by the metric."""
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.manager.metrics.render().decode().splitlines()
            if line.startswith('nodedevices_operator_reconciles_total{kind="node"')
        )

    async def condition(self) -> tuple[str, str, str]:
        await self.manager.reconcile_policy("p")
        await events_sent()
        found = condition(self.kube, POLICY, "RolledOut")
        return found["status"], found["reason"], found["message"]


@pytest.fixture
async def bare() -> Fleet:
    """Three nodes and no policy."""
    made = Fleet()
    for name in ("a", "b", "c"):
        made.add(name)
    await made.restart()
    return made


@pytest.fixture
async def fleet(bare: Fleet) -> Fleet:
    """A policy that says MIXED begins to come to them."""
    await bare.policy(1, MIXED)
    return bare


async def test_a_new_policy_comes_to_one_node_after_another(fleet: Fleet) -> None:
    assert fleet.have(MIXED) == ["a"]
    assert (await fleet.condition())[:2] == ("False", "Progressing")
    await fleet.take("a")
    assert fleet.have(MIXED) == ["a", "b"]
    await fleet.take("b")
    await fleet.take("c")
    assert fleet.have(MIXED) == ["a", "b", "c"]
    assert await fleet.condition() == ("True", "Done", "")
    assert not any("change" in fleet.spec(name) for name in "abc")


async def test_a_node_that_loses_devices_stops_the_rest_after_a_while(fleet: Fleet) -> None:
    await fleet.answer("a", offered=2)
    assert (await fleet.condition())[1] == "Progressing"  # names register, probes start
    await fleet.wait(LOSS_SECONDS)
    status, reason, message = await fleet.condition()
    assert (status, reason) == ("False", "Stopped")
    assert message.startswith("a: 6 of 8 devices are no longer offered; 2 nodes are waiting.")
    assert "kubectl nodedevices confirm policy/p resumed" in message
    assert fleet.have(MIXED) == ["a"]
    assert {kind for kind, _ in fleet.told()} == {"NodeDevices", "DevicePolicy"}


async def test_a_loss_that_comes_with_a_later_report_than_the_change_stops_the_rest(fleet: Fleet) -> None:
    """A health rule: devices are judged by it after it is applied."""
    await fleet.answer("a")
    assert fleet.have(MIXED) == ["a"]
    await fleet.wait(SETTLE_SECONDS - 1)
    await fleet.answer("a", offered=0)
    await fleet.wait(LOSS_SECONDS)
    assert (await fleet.condition())[1] == "Stopped"
    assert fleet.have(MIXED) == ["a"]


async def test_a_node_whose_agent_applies_late_is_watched_from_then_on(fleet: Fleet) -> None:
    await fleet.wait(600)
    await fleet.answer("a")
    await fleet.wait(SETTLE_SECONDS - 1)
    assert fleet.have(MIXED) == ["a"]
    await fleet.wait(1)
    assert fleet.have(MIXED) == ["a", "b"]


async def test_a_node_whose_probe_is_starting_is_watched_until_what_the_probe_finds_shows(fleet: Fleet) -> None:
    """What the probes of before found is offered until then."""
    await fleet.answer("a", probe="Starting")
    await fleet.wait(STARTING_SECONDS - 1)
    await fleet.answer("a", probe="Failed")
    await fleet.wait(SETTLE_SECONDS - 1)
    assert fleet.have(MIXED) == ["a"]
    await fleet.answer("a", probe="Failed", offered=0)
    await fleet.wait(LOSS_SECONDS)
    assert (await fleet.condition())[1] == "Stopped"
    assert fleet.have(MIXED) == ["a"]


async def test_a_probe_that_never_reports_holds_nobody_up_where_nothing_is_lost(fleet: Fleet) -> None:
    await fleet.answer("a", probe="Starting")
    await fleet.wait(STARTING_SECONDS)
    await fleet.wait(SETTLE_SECONDS)
    assert fleet.have(MIXED) == ["a", "b"]


async def test_an_operator_that_starts_anew_watches_a_node_anew(fleet: Fleet) -> None:
    await fleet.answer("a")
    await fleet.wait(SETTLE_SECONDS - 1)
    await fleet.restart()
    await fleet.wait(SETTLE_SECONDS - 1)
    assert fleet.have(MIXED) == ["a"]
    await fleet.wait(1)
    assert fleet.have(MIXED) == ["a", "b"]


async def test_an_agent_that_refuses_the_change_stops_the_rest_at_once(fleet: Fleet) -> None:
    await fleet.answer("a", applied=("False", "RegistrationRejected"))
    assert (await fleet.condition())[1:] == ("Stopped", (await fleet.condition())[2])
    assert (await fleet.condition())[2].startswith("a: why; 2 nodes are waiting.")
    assert fleet.have(MIXED) == ["a"]


async def test_a_person_goes_on_with_this_generation(fleet: Fleet) -> None:
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    await fleet.policy(1, MIXED, annotation="rollout=resumed@1")
    assert fleet.have(MIXED) == ["a", "b"]


async def test_of_a_generation_that_a_person_resumed_no_event_says_that_it_is_stopped(fleet: Fleet) -> None:
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    await fleet.policy(1, MIXED, annotation="rollout=resumed@1")
    before = fleet.told()
    for name in "bc":
        await fleet.answer(name, applied=("False", "ConfigInvalid"))
    assert fleet.have(MIXED) == ["a", "b", "c"]
    assert fleet.told() == before
    await fleet.policy(2, SINGLE, annotation="rollout=resumed@1")
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    assert len(fleet.told()) > len(before), "another generation"


async def test_of_two_policies_that_are_stopped_the_one_that_a_person_resumed_goes_on(bare: Fleet) -> None:
    health = {"holdDownSeconds": 7}
    await bare.policy(1, MIXED)
    await bare.apply("q", 1, health=health)
    assert bare.spec("a")["change"]["policies"] == ["p", "q"]
    await bare.answer("a", applied=("False", "ConfigInvalid"))
    await bare.apply("q", 1, health=health, annotation="rollout=resumed@1")
    assert bare.spec("b")["config"] == {"health": health}
    assert bare.spec("c")["config"] == {}, "its turn comes when b has taken it"


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("yes", "give rollout=resumed@<metadata.generation>"),
        ("rollout=resumed@2", "the policy has no such generation yet: give rollout=resumed@1"),
        ("rollout=resumed@-1", "give rollout=resumed@<metadata.generation>"),
        ("rollout=resumed@1.0", "give rollout=resumed@<metadata.generation>"),
    ],
)
async def test_a_word_that_means_nothing_is_refused_and_nothing_goes_on(fleet: Fleet, word: str, why: str) -> None:
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    await fleet.policy(1, MIXED, annotation=word)
    assert fleet.have(MIXED) == ["a"]
    assert f"annotation nodedevices.io/confirm: {word}: {why}" in (await fleet.condition())[2]


async def test_a_changed_policy_goes_on_with_the_node_that_is_worse_off(fleet: Fleet) -> None:
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    await fleet.policy(2, SINGLE)
    assert fleet.have(SINGLE) == ["a"]
    assert fleet.spec("a")["change"]["devices"] == DEVICES
    await fleet.take("a")
    assert fleet.have(SINGLE) == ["a", "b"]


async def test_a_policy_that_is_deleted_leaves_one_node_after_another(fleet: Fleet) -> None:
    for name in "abc":
        await fleet.take(name)
    await fleet.delete_policy()
    assert fleet.have(MIXED) == ["b", "c"]
    assert [ref["name"] for ref in fleet.spec("b")["policies"]] == ["p"]
    await fleet.take("a")
    assert fleet.have(MIXED) == ["c"]


async def test_an_operator_that_starts_anew_goes_on_where_it_was(fleet: Fleet) -> None:
    await fleet.restart()
    assert fleet.have(MIXED) == ["a"]
    await fleet.answer("a", offered=0)
    await fleet.wait(LOSS_SECONDS)
    await fleet.restart()
    assert fleet.have(MIXED) == ["a"]
    assert (await fleet.condition())[1] == "Stopped"
    await fleet.take("a", offered=DEVICES)
    assert fleet.have(MIXED) == ["a", "b"]


async def test_a_deleted_policys_roll_out_goes_on_when_a_person_says_that_the_node_is_all_right(fleet: Fleet) -> None:
    for name in "abc":
        await fleet.take(name)
    await fleet.delete_policy()
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    assert fleet.have(MIXED) == ["b", "c"]
    assert fleet.stopped() == ["p"]
    raw = fleet.kube.objects[fleet.path("a")]
    raw["metadata"]["annotations"] = {CONFIRM: f"x=y,config=accepted@{raw['spec']['configHash']}"}
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    assert fleet.have(MIXED) == ["c"]


async def test_what_the_operator_does_by_itself_waits_for_nobodys_turn(bare: Fleet) -> None:
    await bare.policy(1, MIXED, labels={"extra": {"example.com/a": "b"}})
    assert bare.have(MIXED) == ["a"]
    assert [bare.spec(name)["config"]["labels"]["extra"] for name in "abc"] == [{"example.com/a": "b"}] * 3


async def test_a_node_that_joins_waits_only_while_the_roll_out_is_stopped(fleet: Fleet) -> None:
    fleet.add("d")
    del fleet.kube.objects[fleet.path("d")]["spec"]
    await fleet.restart()
    assert fleet.have(MIXED) == ["a", "d"]
    await fleet.answer("a", applied=("False", "ConfigInvalid"))
    fleet.add("e")
    del fleet.kube.objects[fleet.path("e")]["spec"]
    await fleet.restart()
    assert fleet.have(MIXED) == ["a", "d"]
    assert fleet.spec("e")["config"] == {}


def test_where_what_stays_does_not_go_with_the_rest_all_of_it_stays() -> None:
    old = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2, "rename": "x.io/a"}]}
    spec = {
        "config": {"sharing": old},
        "configHash": "aa",
        "policies": [{"name": "q", "generation": 1, "priority": 0, "sections": ["sharing"]}],
    }
    record = node_devices_record(node_devices(device(0), spec=spec))
    new = policy_record(raw_policy("p", capacity=[{"name": "x.io/a", "perNode": 1}]))
    wanted = resolve({}, [new], record.config, record.policies)
    held = held_back(wanted, record, {"sharing"}, "why")
    assert held.config == {"sharing": old}
    assert [ref.name for ref in held.policies] == ["q"]


# --- a large fleet ---------------------------------------------------------------------------------------------------
async def visits(nodes: int) -> float:
    """How often a node is reconciled on average while a change comes to all of so many, a tenth at a time."""
    fleet = Fleet()
    for number in range(nodes):
        fleet.add(f"n{number}")
    await fleet.restart()
    before = fleet.reconciled()
    await fleet.policy(1, MIXED, rollout={"maxNodes": "10%", "pauseSeconds": 0})
    answered = set[str]()
    while wave := [name for name in fleet.have(MIXED) if name not in answered]:
        assert len(wave) <= max(1, nodes // 10)
        await fleet.answer(*wave)
        fleet.seconds += SETTLE_SECONDS + MAX_LATE_SECONDS
        await settle(fleet.manager)
        answered |= {*wave}
    assert len(fleet.have(MIXED)) == nodes
    return (fleet.reconciled() - before) / nodes


async def test_a_roll_out_reconciles_each_node_as_often_in_a_large_fleet_as_in_a_small_one() -> None:
    few, many = await visits(10), await visits(40)
    assert many <= few + 1
