"""Who holds what, from the kubelet's PodResources: grouping, `since`, and that problem never means "nobody"."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from msgspec.structs import replace
from nodedevices_plugin.kubelet import holders, podresources, rpc
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as api
from nodedevices_plugin.kubelet.checkpoint import CheckpointEntry
from nodedevices_plugin.kubelet.holders import listed
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.podresources import PodResourcesClient, wanted_after_allocate
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, RecentAllocate, tenure_key
from nodedevices_plugin.runtime.threads import Worker
from support.kubelet import Owner, StandInKubelet
from support.offers import GPU, offered, plan

NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
NOTHING = Holdings(state=HoldersState.UNAVAILABLE)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def entry(*ids: str, pod: str = "train-0", resource: str | None = GPU, claim: str | None = None) -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=resource, claim=claim, ids=ids, since=NOON)


def track(
    before: Holdings, entries: list[Holder], recent: Sequence[RecentAllocate], *, now: datetime, **other: Any
) -> Holdings:
    return holders.track(before, [replace(entry, since=now) for entry in entries], recent, **other)


def allocate(seconds: float, *ids: str, resource: str = GPU) -> RecentAllocate:
    return RecentAllocate(resource=resource, ids=ids, time=at(seconds), monotonic=seconds)


def since(holdings: Holdings) -> list[datetime]:
    return [holder.since for holder in holdings.holders]


# --- pure: track ----------------------------------------------------------------------------------------------------
def test_a_holder_is_there_since_the_allocate_that_handed_out_its_device() -> None:
    recent = [allocate(-9, "GPU-0"), allocate(-5, "GPU-0", "GPU-1"), allocate(-1, "GPU-2")]
    held = track(NOTHING, [entry("GPU-1")], recent, now=NOON, taken=1.0)
    assert since(held) == [at(-5)]
    assert held.state is HoldersState.SYNCED
    assert held.taken == 1.0


def given_to(uid: str, *ids: str) -> CheckpointEntry:
    return CheckpointEntry(uid, "main", GPU, ids)


def test_a_pod_made_again_under_its_name_is_another_holder_by_the_checkpoint() -> None:
    listing, old, new = [entry("GPU-0")], given_to("old", "GPU-0"), given_to("new", "GPU-0")
    first = track(NOTHING, listing, [], recorded=(old, given_to("other", "GPU-1")), now=NOON, taken=1.0)
    unread = track(first, listing, [], recorded=None, now=at(5), taken=6.0)
    both = track(unread, listing, [], recorded=(old, new), now=at(10), taken=11.0)
    assert [(each.uid, each.since) for each in (*first.holders, *unread.holders, *both.holders)] == [("old", NOON)] * 3
    [other] = track(both, listing, [], recorded=(new,), now=at(15), taken=16.0).holders
    assert (other.uid, other.since) == ("new", at(15))
    [handed] = track(first, listing, [allocate(4, "GPU-0")], recorded=None, now=at(5), taken=6.0).holders
    assert (handed.uid, handed.since) == ("", at(4))


def test_a_restarted_agent_knows_since_when_a_pod_has_its_devices() -> None:
    saved = {tenure_key("old", "main", GPU): at(-900), tenure_key("ahead", "main", GPU): at(900)}

    def first(
        *recorded: CheckpointEntry, recent: tuple[RecentAllocate, ...] = (), before: Holdings = NOTHING
    ) -> list[datetime]:
        return since(track(before, [entry("GPU-0")], recent, recorded=recorded, saved=saved, now=NOON, taken=1.0))

    assert first(given_to("old", "GPU-0")) == [at(-900)]
    assert first(given_to("new", "GPU-0")) == [NOON], "it was made again under its name meanwhile"
    assert first() == [NOON], "it may have been"
    assert first(given_to("ahead", "GPU-0")) == [NOON], "the clock was set back"
    assert first(given_to("old", "GPU-0"), recent=(allocate(-5, "GPU-0"),)) == [at(-5)]
    unread = track(NOTHING, [entry("GPU-0")], [], recorded=None, saved=saved, now=at(-5), taken=1.0)
    assert (since(unread), first(given_to("old", "GPU-0"), before=unread)) == ([at(-5)], [at(-900)])


AGES_AGO = [allocate(-5, "GPU-0")]


@pytest.mark.parametrize(
    ("recent", "ids", "later", "expected"),
    [
        pytest.param([], "GPU-0", [], (0, 0), id="without an allocate of ours: the first list that shows it"),
        pytest.param(AGES_AGO, "GPU-0", [*AGES_AGO, allocate(60, "GPU-0")], (-5, 60), id="a pod created again"),
        pytest.param([], "GPU-3", [], (0, 61), id="other devices under the same name"),
        pytest.param(
            [allocate(-5, "GPU-0", resource="x/y")], "GPU-0", [], (0, 0), id="an allocate of another resource"
        ),
        pytest.param(AGES_AGO, "GPU-0", [], (-5, -5), id="an allocate that left the ring"),
    ],
)
def test_since_when_a_pod_of_this_name_holds_its_devices(
    recent: list[RecentAllocate], ids: str, later: list[RecentAllocate], expected: tuple[float, float]
) -> None:
    first = track(NOTHING, [entry("GPU-0")], recent, now=NOON, taken=1.0)
    second = track(first, [entry(ids)], later, now=at(61), taken=62.0)
    assert since(first) + since(second) == [at(each) for each in expected]


def test_who_is_not_listed_any_more_is_gone() -> None:
    first = track(NOTHING, [entry("GPU-0", pod="a"), entry("GPU-1", pod="b")], [], now=NOON, taken=1.0)
    later = track(first, [entry("GPU-1", pod="b")], [], now=at(5), taken=6.0)
    assert [holder.pod for holder in later.holders] == ["b"]


# --- pure: the List's answer ----------------------------------------------------------------------------------------
def pod_with(container: api.ContainerResources, *, name: str = "p", namespace: str = "ns") -> api.PodResources:
    return api.PodResources(name=name, namespace=namespace, containers=[container])


def test_one_entry_per_id_becomes_one_per_container_and_resource() -> None:
    container = api.ContainerResources(
        name="main",
        devices=[
            api.ContainerDevices(resource_name=GPU, device_ids=["GPU-1"]),
            api.ContainerDevices(resource_name="x/y", device_ids=["z"]),
            api.ContainerDevices(resource_name=GPU, device_ids=["GPU-0"]),
        ],
        cpu_ids=[1, 2],
        memory=[api.ContainerMemory(memory_type="memory", size=1)],
    )
    answer = api.ListPodResourcesResponse(pod_resources=[pod_with(container)])
    assert [(each.resource, each.ids) for each in listed(answer, NOON)] == [(GPU, ("GPU-0", "GPU-1")), ("x/y", ("z",))]


def test_a_dra_claim_is_a_holder_with_its_claim() -> None:
    claim = api.DynamicResource(
        claim_name="train-0-gpus",
        claim_namespace="ml",
        claim_resources=[
            api.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node-a", device_name="gpu-3"),
            api.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node-a", device_name="gpu-1"),
            api.ClaimResource(driver_name="gpu.nvidia.com"),  # a kind of resource that we do not know yet
        ],
    )
    container = api.ContainerResources(name="main", dynamic_resources=[claim])
    [held] = listed(api.ListPodResourcesResponse(pod_resources=[pod_with(container)]), NOON)
    assert (held.resource, held.claim) == (None, "ml/train-0-gpus")
    assert held.ids == ("gpu.nvidia.com/node-a/gpu-1", "gpu.nvidia.com/node-a/gpu-3")


def test_entries_that_say_nothing_are_left_out() -> None:
    devices = [api.ContainerDevices(resource_name=GPU, device_ids=["GPU-0"])]
    answer = api.ListPodResourcesResponse(
        pod_resources=[
            pod_with(api.ContainerResources(name="main", devices=devices), name=""),
            pod_with(api.ContainerResources(name="main", devices=devices), namespace=""),
            pod_with(api.ContainerResources(devices=devices)),
            pod_with(api.ContainerResources(name="none", devices=[api.ContainerDevices(resource_name=GPU)])),
            pod_with(api.ContainerResources(name="cpu-only", cpu_ids=[1])),
            api.PodResources(),
        ]
    )
    assert listed(answer, NOON) == ()


# --- pure: when to call ---------------------------------------------------------------------------------------------
def test_an_allocate_is_searched_for_soon_and_once() -> None:
    before = Holdings(state=HoldersState.SYNCED, taken=90.0)
    assert wanted_after_allocate(before, []) is None
    assert wanted_after_allocate(before, [allocate(50.0, "GPU-0")]) is None
    assert wanted_after_allocate(before, [allocate(100.0, "GPU-0")]) == 100.5
    assert wanted_after_allocate(replace(before, taken=100.6), [allocate(100.0, "GPU-0")]) is None


@pytest.mark.parametrize("state", [HoldersState.UNAVAILABLE, HoldersState.RATE_LIMITED])
def test_a_list_that_fails_is_not_called_again_at_once(state: HoldersState) -> None:
    failed = Holdings(state=state, taken=90.0)  # the last good one is older than the Allocate, and stays so
    assert wanted_after_allocate(failed, [allocate(100.0, "GPU-0")]) is None


def test_many_allocates_do_not_query_faster_than_the_kubelet_allows() -> None:
    just_asked = Holdings(state=HoldersState.SYNCED, taken=100.0)
    assert wanted_after_allocate(just_asked, [allocate(100.1, "GPU-0")]) == 101.0


# --- the client -----------------------------------------------------------------------------------------------------
@pytest.fixture
def client(kubelet: StandInKubelet, plugins: DevicePlugins) -> PodResourcesClient:
    return PodResourcesClient(
        kubelet.pod_resources_socket,
        recent=plugins.registering.recent.entries,
        checkpoint_file=kubelet.checkpoint,
        files=Worker("files"),
    )


async def test_holders_follow_the_pods(
    kubelet: StandInKubelet, plugins: DevicePlugins, client: PodResourcesClient
) -> None:
    assert client.holdings.state is HoldersState.UNAVAILABLE  # not queried yet is not "nobody"
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await kubelet.allocate(GPU, 2, pod="train-0", namespace="ml")
    await kubelet.allocate(GPU, 1, pod="notebook", namespace="ml")
    held = await client.list()
    times = [each.time for each in plugins.registering.recent.entries()]
    assert held.state is HoldersState.SYNCED
    one = Holder(namespace="ml", pod="notebook", container="main", resource=GPU, ids=("GPU-5",), since=times[1])
    two = Holder(namespace="ml", pod="train-0", container="main", resource=GPU, ids=("GPU-6", "GPU-7"), since=times[0])
    assert held.holders == (replace(one, uid="uid-ml-notebook"), replace(two, uid="uid-ml-train-0"))
    kubelet.release("train-0", namespace="ml")
    assert [holder.pod for holder in (await client.list()).holders] == ["notebook"]


async def test_without_the_socket_the_last_good_list_stays(kubelet: StandInKubelet, client: PodResourcesClient) -> None:
    kubelet.extra_pods = [some_pod()]
    good = await client.list()
    await kubelet.remove_pod_resources()
    problem = await client.list()
    assert problem.state is HoldersState.UNAVAILABLE
    where = kubelet.pod_resources_socket
    assert problem.message == f"PodResources on {where} does not answer: No such file or directory"
    assert (problem.holders, problem.taken) == (good.holders, good.taken)
    await kubelet.serve_pod_resources()
    back = await client.list()
    assert back.state is HoldersState.SYNCED
    assert back.holders == good.holders  # `since` included
    assert back.taken > good.taken


async def test_a_rate_limit_is_reported_and_not_answered_by_asking_more(
    kubelet: StandInKubelet, client: PodResourcesClient
) -> None:
    kubelet.extra_pods = [some_pod()]
    good = await client.list()
    kubelet.pod_resources_error = (grpc.StatusCode.UNKNOWN, "no cgroup\x1b[2J driver")
    problem = await client.list()
    assert (problem.state, problem.holders) == (HoldersState.UNAVAILABLE, good.holders)
    assert problem.message.endswith("does not answer: no cgroup [2J driver")
    kubelet.pod_resources_error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    limited = await client.list()
    assert (limited.state, limited.holders) == (HoldersState.RATE_LIMITED, good.holders)
    assert "rejected by rate limit" in limited.message
    list_calls = kubelet.lists
    for _ in range(20):
        assert await client.list() == limited
    assert kubelet.lists == list_calls


async def test_an_answer_that_is_too_large_is_not_called_a_rate_limit(
    kubelet: StandInKubelet, client: PodResourcesClient
) -> None:
    kubelet.extra_pods = [some_pod()]
    good = await client.list()
    kubelet.extra_pods = [some_pod("p", "GPU-0" + "x" * rpc.MAX_PODRESOURCES_BYTES)]
    problem = await client.list()
    assert (problem.state, problem.holders) == (HoldersState.UNAVAILABLE, good.holders)
    assert "the answer is larger than the 16 MiB allowed" in problem.message
    list_calls = kubelet.lists
    assert await client.list() == problem
    assert kubelet.lists == list_calls, "such an answer costs the kubelet as much each time"


def some_pod(name: str = "p", *ids: str) -> api.PodResources:
    devices = [api.ContainerDevices(resource_name=GPU, device_ids=[id_]) for id_ in ids or ("GPU-0",)]
    return pod_with(api.ContainerResources(name="main", devices=devices), name=name)


# --- whether a List is complete ---------------------------------------------------------------------------------------
AGENT = ("nodedevices", "nodedevices-agent-x7f2q")


def in_a_pod(kubelet: StandInKubelet) -> PodResourcesClient:
    kubelet.extra_pods = [api.PodResources(namespace=AGENT[0], name=AGENT[1])]
    return PodResourcesClient(
        kubelet.pod_resources_socket,
        recent=tuple,
        checkpoint_file=kubelet.checkpoint,
        files=Worker("files"),
        own_pod=AGENT,
    )


async def holder_of(kubelet: StandInKubelet, plugins: DevicePlugins, pod: str) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) > 0)
    await kubelet.allocate(GPU, 1, pod=pod)


@pytest.mark.parametrize("as_a_pod", [True, False])
async def test_a_holder_stays_one_while_a_kubelet_that_has_started_does_not_know_its_pods(
    kubelet: StandInKubelet, plugins: DevicePlugins, client: PodResourcesClient, as_a_pod: bool
) -> None:
    reader = in_a_pod(kubelet) if as_a_pod else client
    await holder_of(kubelet, plugins, "train")
    before = await reader.list()
    await kubelet.restart(knows_pods=False)
    during = await reader.list()
    assert during.state is HoldersState.INCOMPLETE
    assert (during.holders, during.taken) == (before.holders, before.taken)
    assert ("own pod nodedevices/nodedevices-agent-x7f2q" in during.message) is as_a_pod
    assert during.possible == ()  # the checkpoint says nothing else
    kubelet.knows_pods = True
    after = await reader.list()
    assert (after.state, after.holders, after.possible) == (HoldersState.SYNCED, before.holders, ())
    kubelet.release("train")  # the checkpoint goes on naming it, and this kubelet is known to list all of its pods
    assert (await reader.list()).holders == ()


async def test_a_pod_that_came_meanwhile_is_a_holder_beside_those_that_were_known(
    kubelet: StandInKubelet, plugins: DevicePlugins, client: PodResourcesClient
) -> None:
    await holder_of(kubelet, plugins, "train")
    await client.list()
    await kubelet.restart(knows_pods=False)
    kubelet.knows_pods, kubelet.allocated = True, {}
    kubelet.extra_pods = [some_pod("notebook", "GPU-3")]
    during = await client.list()
    assert during.state is HoldersState.INCOMPLETE
    assert {each.pod for each in during.holders} == {"notebook", "train"}


async def settled(reader: PodResourcesClient) -> Holdings:
    """Its first complete List."""
    for _ in range(300):
        if (await reader.list()).state is HoldersState.SYNCED:
            break
        await asyncio.sleep(0.2)
    assert reader.holdings.state is HoldersState.SYNCED
    return reader.holdings


async def test_a_pod_that_ended_while_the_kubelet_was_down_is_no_holder_once_the_lists_are_settled(
    kubelet: StandInKubelet,
) -> None:
    reader = in_a_pod(kubelet)
    kubelet.allocated = {Owner("ml", "train", "main"): {GPU: ("GPU-7",)}}
    kubelet.write_checkpoint()
    await reader.list()
    await kubelet.restart(knows_pods=False)
    assert len((await reader.list()).holders) == 1
    kubelet.release("train", "ml")
    kubelet.knows_pods = True
    assert (await settled(reader)).holders == ()
    assert reader.holdings.possible == (Offer(resource=GPU, ids=("GPU-7",)),), "no plugin has made it write since"


async def test_s31_what_a_running_pod_held_is_forgotten_by_a_kubelet_that_lost_its_record(
    kubelet: StandInKubelet,
) -> None:
    reader = in_a_pod(kubelet)
    kubelet.allocated = {Owner("ml", "train", "main"): {GPU: ("GPU-7",)}, Owner("ml", "ended", "main"): {GPU: ("1",)}}
    kubelet.write_checkpoint()
    await reader.list()
    await kubelet.restart()
    kubelet.allocated.clear()  # it lists neither devices nor, yet, all of its pods
    kubelet.write_checkpoint()
    assert (await reader.list()).forgotten == ()
    train = api.PodResources(namespace="ml", name="train")
    kubelet.extra_pods = [*kubelet.extra_pods, train]
    found = await reader.list()
    assert [(each.pod, each.ids) for each in found.forgotten] == [("train", ("GPU-7",))]
    assert "the kubelet lists ml/train without the devices held before it was started again" in found.message
    await settled(reader)
    assert len((await reader.list()).forgotten) == 1, "as long as the pod runs"
    kubelet.extra_pods.remove(train)
    assert (await reader.list()).forgotten == ()


async def test_a_kubelet_that_remembers_its_pods_has_forgotten_nothing(kubelet: StandInKubelet) -> None:
    reader = in_a_pod(kubelet)
    kubelet.allocated = {Owner("ml", "train", "main"): {GPU: ("GPU-7",)}}
    kubelet.write_checkpoint()
    await reader.list()
    await kubelet.restart(knows_pods=False)
    await reader.list()
    kubelet.knows_pods = True
    assert (await settled(reader)).forgotten == ()
    kubelet.release("train", "ml")
    kubelet.extra_pods.append(api.PodResources(namespace="ml", name="train"))  # another one with its name
    assert (await reader.list()).forgotten == (), "the same kubelet"


async def test_a_holder_stays_one_while_the_kubelet_adds_its_pods_one_by_one(kubelet: StandInKubelet) -> None:
    reader = in_a_pod(kubelet)
    kubelet.allocated = {Owner("ml", "train", "main"): {GPU: ("GPU-7",)}}
    kubelet.write_checkpoint()
    before = await reader.list()
    await kubelet.restart()
    kubelet.added = lambda pod: pod != "train"  # the agent's own is the oldest
    during = await reader.list()
    assert (during.state, during.holders) == (HoldersState.INCOMPLETE, before.holders)
    kubelet.added = lambda _: True
    after = await reader.list()
    assert (after.state, after.holders) == (HoldersState.SYNCED, before.holders)


async def test_a_claim_of_a_pod_that_is_not_listed_yet_stays_a_holder(kubelet: StandInKubelet) -> None:
    """The kubelet's checkpoint knows of no claims."""
    reader = in_a_pod(kubelet)
    own = kubelet.extra_pods
    device = api.ClaimResource(driver_name="gpu.nvidia.com", pool_name="n", device_name="gpu-0")
    claim = api.DynamicResource(claim_name="gpus", claim_namespace="ml", claim_resources=[device])
    kubelet.extra_pods = [*own, pod_with(api.ContainerResources(name="main", dynamic_resources=[claim]))]
    kubelet.write_checkpoint()
    before = await reader.list()
    assert [each.claim for each in before.holders] == ["ml/gpus"]
    await kubelet.restart()
    kubelet.extra_pods = own
    assert ((await reader.list()).state, reader.holdings.holders) == (HoldersState.INCOMPLETE, before.holders)
    assert (await settled(reader)).holders == ()


# --- what no List shows -----------------------------------------------------------------------------------------------
async def test_what_an_init_container_holds_is_known_from_the_checkpoint(
    kubelet: StandInKubelet, plugins: DevicePlugins, client: PodResourcesClient
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) > 0)
    held = await kubelet.allocate(GPU, 2, pod="convert", container="init-model", init=True)
    holdings = await client.list()
    assert holdings.holders == ()
    assert holdings.possible == (Offer(resource=GPU, ids=tuple(sorted(held.ids))),)
    assert set(holdings.held) == {(GPU, tuple(sorted(held.ids)))}


async def test_an_outdated_checkpoint_is_written_again_where_it_keeps_something_back(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    reader = PodResourcesClient(
        kubelet.pod_resources_socket,
        recent=plugins.registering.recent.entries,
        checkpoint_file=kubelet.checkpoint,
        files=Worker("files"),
        rewrite=plugins.show_again,
    )
    await holder_of(kubelet, plugins, "train")
    await kubelet.allocate(GPU, 1, pod="convert", init=True)
    kubelet.release("train")  # before any List
    updates = len(kubelet.views[GPU].updates)
    assert len((await reader.list()).possible or ()) == 2
    assert len(kubelet.views[GPU].updates) == updates, "nothing waits for it"
    reader.with_rewrites = True
    while len((await reader.list()).possible or ()) == 2:  # a write takes the kubelet its time
        pass
    assert len(reader.holdings.possible or ()) == 1, "the init container's"
    updates = len(kubelet.views[GPU].updates)
    for _ in range(5):
        await reader.list()
    assert len(kubelet.views[GPU].updates) == updates, "the same pods hold the same: there is nothing to be written"
    kubelet.release("convert")
    kubelet.extra_pods = [some_pod("notebook", "GPU-0")]
    while (await reader.list()).possible:
        pass


async def test_a_pod_that_was_listed_and_is_no_more_holds_nothing_whatever_the_checkpoint_says(
    kubelet: StandInKubelet, client: PodResourcesClient
) -> None:
    init, main = Owner("ml", "train", "fetch"), Owner("ml", "train", "main")
    kubelet.allocated = {init: {GPU: ("GPU-6", "GPU-7")}, main: {GPU: ("GPU-7",)}}
    kubelet.init_containers = {init}
    kubelet.write_checkpoint()
    assert (await client.list()).possible == (Offer(resource=GPU, ids=("GPU-6", "GPU-7")),)
    kubelet.release("train", "ml")
    kubelet.extra_pods = [some_pod("notebook", "GPU-0")]
    assert (await settled(client)).possible == ()
    assert "GPU-7" in kubelet.checkpoint.read_text()


def test_an_entry_that_came_while_a_list_was_answered_is_not_taken_for_the_pod_in_it() -> None:
    """That pod may have ended since, and an init container of the same name may have its device now."""
    new = CheckpointEntry("uid-2", "main", GPU, ("GPU-0",))
    old = CheckpointEntry("uid-1", "main", GPU, ("GPU-0",))
    in_list = frozenset({("main", GPU, ("GPU-0",))})
    shown = holders.ShownEntries().after("kubelet", [old], [new], in_list)
    assert shown.without_ended((new,), frozenset()) == (new,)
    assert holders.ShownEntries().after("kubelet", [new], [new], in_list).without_ended((new,), frozenset()) == ()


def test_what_another_kubelet_has_listed_says_nothing() -> None:
    """One that has just started has not added all of its pods."""
    held = CheckpointEntry("uid-1", "main", GPU, ("GPU-0",))
    shown = holders.ShownEntries().after("kubelet", [held], [held], frozenset({("main", GPU, ("GPU-0",))}))
    shown = shown.after("another kubelet", [held], [held], frozenset())
    assert shown.without_ended((held,), frozenset()) == (held,)


async def test_a_checkpoint_that_can_no_longer_be_read_leaves_what_it_said(
    kubelet: StandInKubelet, client: PodResourcesClient
) -> None:
    init, main = Owner("ml", "convert", "init-model"), Owner("ml", "train", "main")
    kubelet.allocated = {init: {GPU: ("GPU-7",)}, main: {GPU: ("GPU-3",)}}
    kubelet.init_containers = {init}
    kubelet.write_checkpoint()
    before = await settled(client)
    kubelet.checkpoint.write_text("{")
    after = await client.list()
    assert (after.state, after.holders, after.possible) == (HoldersState.SYNCED, before.holders, before.possible)
    assert before.known
    assert not after.known
    assert "not a checkpoint" in after.message


def test_lists_are_settled_once_they_have_had_the_same_pods_and_the_own_one_for_a_while() -> None:
    own, other = ("ns", "agent"), ("ns", "train")
    first = holders.Settling().after("kubelet", frozenset({own}), 10.0)
    assert not first.settled(own, 10.0)
    grown = first.after("kubelet", frozenset({own, other}), 11.5)
    assert not grown.settled(own, 12.5)
    assert grown.after("kubelet", frozenset({own, other}), 13.6).settled(own, 13.6)
    assert not grown.after("another kubelet", frozenset({own, other}), 13.6).settled(own, 13.6)
    assert not grown.settled(("ns", "agent-2"), 20.0)
    assert grown.settled(None, 20.0)
    assert not holders.Settling().after("kubelet", frozenset(), 10.0).settled(None, 20.0)


async def test_a_checkpoint_that_gives_nothing_to_anybody_proves_that_nobody_holds(kubelet: StandInKubelet) -> None:
    kubelet.write_checkpoint()
    await kubelet.restart(knows_pods=False)
    assert (await in_a_pod(kubelet).list()).state is HoldersState.SYNCED


async def test_a_checkpoint_that_cannot_be_read_proves_nothing(
    kubelet: StandInKubelet, client: PodResourcesClient
) -> None:
    kubelet.checkpoint.write_text("{")
    held = await client.list()
    assert (held.state, held.possible) == (HoldersState.INCOMPLETE, None)
    assert "not a checkpoint" in held.message


async def test_a_checkpoint_on_a_disk_that_hangs_is_not_waited_for(
    kubelet: StandInKubelet, client: PodResourcesClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podresources, "CHECKPOINT_SECONDS", 0.2)
    os.mkfifo(kubelet.checkpoint)  # opening it blocks until somebody writes
    for _ in range(2):
        held = await client.list()
        assert (held.state, held.possible) == (HoldersState.INCOMPLETE, None)
        assert "took more than 0.2 s" in held.message
    os.close(os.open(kubelet.checkpoint, os.O_RDWR | os.O_NONBLOCK))


async def test_what_the_checkpoint_gives_to_containers_is_reported_while_the_kubelet_does_not_answer(
    kubelet: StandInKubelet, plugins: DevicePlugins, client: PodResourcesClient
) -> None:
    await holder_of(kubelet, plugins, "train")
    await kubelet.stop()
    held = await client.list()
    assert (held.state, held.holders) == (HoldersState.UNAVAILABLE, ())
    assert [each.resource for each in held.possible or ()] == [GPU]


# --- what is offered, by whomever -------------------------------------------------------------------------------------
async def test_what_is_offered_is_queried_only_where_it_is_wanted(
    kubelet: StandInKubelet, client: PodResourcesClient, plugins: DevicePlugins
) -> None:
    await plugins.set_plan(plan(offered(3, unhealthy=[1])))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    assert (await client.list()).offered is None
    assert kubelet.offers_asked == 0
    client.with_offers = True
    [offer] = (await client.list()).offered or ()
    assert (offer.resource, len(offer.ids)) == (GPU, 2)
    await plugins.stop()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    assert (await client.list()).offered == ()


async def test_holders_are_known_even_if_what_is_offered_is_not(
    kubelet: StandInKubelet, client: PodResourcesClient
) -> None:
    client.with_offers = True
    kubelet.offers_error = (grpc.StatusCode.UNIMPLEMENTED, "not in this kubelet")
    holdings = await client.list()
    assert (holdings.state, holdings.offered) == (HoldersState.SYNCED, None)
    assert "not in this kubelet" in holdings.message


async def test_what_was_offered_stays_while_the_kubelet_refuses_to_answer(
    kubelet: StandInKubelet, client: PodResourcesClient, plugins: DevicePlugins
) -> None:
    client.with_offers = True
    await plugins.set_plan(plan(offered(2)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    before = await client.list()
    kubelet.pod_resources_error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    after = await client.list()
    assert (after.state, after.offered) == (HoldersState.RATE_LIMITED, before.offered)
