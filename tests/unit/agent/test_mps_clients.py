"""Whose CUDA contexts are gone with an MPS daemon: who is marked, and who is not."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from msgspec.structs import replace
from nodedevices_plugin.model import HealthState, Holder, HoldersState, Holdings, OfferedResource, Plan, SharingFacts
from nodedevices_plugin.sharing.daemons import Clients, DaemonProcess, client_key, follow, restored, with_daemons
from nodedevices_plugin.sharing.mps import Gpu, Mps, MpsDaemon
from nodedevices_plugin.sharing.registry import TimeSlicing
from support.facts import START, gpu, gpu_id, healthy

GPU = "nvidia.com/gpu"
DOWN, RESTARTED = "MpsDaemonDown", "MpsDaemonRestarted"
PLAN = Plan(resources=(OfferedResource(name=GPU, ids=(), sharing=SharingFacts(mode=Mps(), replicas=4)),))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def pod(name: str, since: float = 10.0) -> Holder:
    ids = (f"{gpu_id(0)}::0",)
    return Holder(namespace="ml", pod=name, container="main", resource=GPU, ids=ids, since=at(since))


class Node:
    """What is remembered, a step at a time. The first daemon is `one`, started at 0 s."""

    def __init__(self) -> None:
        self.mps = Clients()
        self.process = DaemonProcess(answers=True, instance="one", started=at(0))
        self.holdings = Holdings(state=HoldersState.SYNCED, taken=1.0)

    def step(
        self, now: float, *holders: Holder, plan: Plan | None = PLAN, not_ours: frozenset[str] = frozenset()
    ) -> Node:
        self.holdings = replace(self.holdings, holders=holders or self.holdings.holders)
        processes = {GPU: self.process}
        self.mps = follow(self.mps, plan, self.holdings, processes, not_ours=not_ours, now=at(now))
        return self

    def daemon(self, instance: str, started: float) -> Node:
        self.process = DaemonProcess(answers=True, instance=instance, started=at(started))
        return self

    def silent(self) -> Node:
        self.process = replace(self.process, answers=False)
        return self

    def reasons(self) -> dict[str, str]:
        return {each.split("/")[1]: client.reason for each, client in self.mps.clients.items()}


def test_a_daemon_that_was_restarted_unseen_is_reported_to_its_clients_and_not_to_new_ones() -> None:
    node = Node().step(20, pod("old"))
    assert node.reasons() == {"old": ""}
    node.daemon("two", 100).step(101)
    assert node.reasons() == {"old": RESTARTED}
    assert node.mps.clients[client_key(pod("old"))].since == at(100)
    node.step(130, pod("old"), pod("new", since=120))
    assert node.reasons() == {"old": RESTARTED, "new": ""}
    node.step(140, pod("new", since=120))
    assert node.reasons() == {"new": ""}


def test_while_no_daemon_answers_every_client_is_marked_and_its_devices_are_out_of_service() -> None:
    node = Node().step(20, pod("old")).silent().step(30).step(40)
    assert node.reasons() == {"old": DOWN}
    assert node.mps.clients[client_key(pod("old"))].since == at(30)
    device = gpu(0)
    wanted = (MpsDaemon(resource=GPU, percentage=25, gpus=(Gpu(id=device.id, index=0),)),)
    verdict = with_daemons(healthy(device), node.mps, wanted)[device.id]
    assert (verdict.state, verdict.reason, verdict.since) == (HealthState.UNHEALTHY, DOWN, at(30))
    node.daemon("one", 0).step(50)
    assert node.reasons() == {"old": ""}, "the same daemon answers again: nothing was lost"
    assert with_daemons(healthy(device), node.mps, wanted)[device.id].reason == ""
    node.silent().step(60).daemon("two", 70).step(71)
    assert node.reasons() == {"old": RESTARTED}


def test_a_worse_fault_of_a_device_is_not_hidden_behind_its_daemons() -> None:
    device = gpu(0)
    node = Node().step(20, pod("old")).silent().step(30)
    bad = dataclasses.replace(healthy(device)[device.id], state=HealthState.UNHEALTHY, reason="Xid79", offered=False)
    wanted = (MpsDaemon(resource=GPU, percentage=25, gpus=(Gpu(id=device.id, index=0),)),)
    assert with_daemons({device.id: bad}, node.mps, wanted)[device.id].reason == "Xid79"


def test_a_daemon_of_an_unknown_process_is_another_after_silence_and_one_that_begins_to_say_it_is_none() -> None:
    node = Node().daemon("", 0).step(20, pod("old")).step(30)
    assert node.reasons() == {"old": ""}
    node.silent().step(40).daemon("", 0).step(50)
    assert node.reasons() == {"old": RESTARTED}
    node = Node().daemon("", 0).step(20, pod("old")).daemon("one", 0).step(30)
    assert node.reasons() == {"old": ""}
    assert node.daemon("two", 40).step(41).reasons() == {"old": RESTARTED}


def test_a_client_that_came_just_before_the_restart_is_marked_and_none_for_a_clock_set_back() -> None:
    node = Node().step(20, pod("first")).daemon("two", 100)
    node.step(101, pod("first"), pod("before", since=99.5), pod("after", since=100.5))
    assert node.reasons() == {"first": RESTARTED, "before": RESTARTED, "after": ""}
    node = Node().daemon("one", 1000).step(1010).step(20, pod("new", since=15))
    assert node.reasons() == {"new": ""}


def test_a_namesake_that_was_allocated_again_is_a_new_client() -> None:
    node = Node().step(20, pod("train-0")).daemon("two", 100).step(101)
    assert node.reasons() == {"train-0": RESTARTED}
    assert node.step(120, pod("train-0", since=119)).reasons() == {"train-0": ""}


def test_a_restart_of_the_agent_forgets_nothing_and_invents_nothing() -> None:
    node = Node().step(20, pod("old")).daemon("two", 100).step(101, pod("old"), pod("new", since=102))
    node.mps = restored(node.mps)
    node.process = DaemonProcess()  # not queried yet
    node.step(200, pod("old", since=199), pod("new", since=199))
    assert node.reasons() == {"old": RESTARTED, "new": ""}
    assert node.daemon("two", 100).step(210).reasons() == {"old": RESTARTED, "new": ""}
    node.mps = restored(node.mps)
    assert node.daemon("three", 300).step(310).reasons() == {"old": RESTARTED, "new": RESTARTED}, "while it was away"


def test_who_is_not_listed_yet_is_not_forgotten_and_what_is_not_shared_by_mps_has_no_clients() -> None:
    node = Node().step(20, pod("old")).daemon("two", 100).step(101)
    node.holdings = Holdings(state=HoldersState.INCOMPLETE)
    assert node.step(110).reasons() == {"old": RESTARTED}
    node.holdings = Holdings(state=HoldersState.SYNCED, taken=1.0)
    assert node.step(120).reasons() == {}
    assert Node().step(20, pod("old"), not_ours=frozenset({GPU})).reasons() == {}
    slices = Plan(resources=(OfferedResource(name=GPU, ids=(), sharing=SharingFacts(mode=TimeSlicing(), replicas=4)),))
    assert Node().step(20, pod("old"), plan=slices).reasons() == {}
    node = Node().step(20, pod("old"))
    assert node.step(30, plan=None).reasons() == {"old": ""}, "while nothing is planned yet, nothing is forgotten"
