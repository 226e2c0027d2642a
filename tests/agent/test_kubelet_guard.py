"""Registrations beside other plugins: what is checked, when it is not, and what must be there before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from nodedevices_plugin.kubelet.guard import RECHECK_SECONDS, Own
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.podresources import PodResourcesClient
from nodedevices_plugin.kubelet.registration import Deadlines, ListedCheck
from nodedevices_plugin.model import Offer, RegistrationState
from nodedevices_plugin.runtime.threads import Worker
from support.kubelet import StandInKubelet
from support.offers import GPU, EchoOffer, device_plugins, offered, plan

NAMES = [f"nvidia.com/mig-{number}g.10gb" for number in range(1, 7)]


def client_of(kubelet: StandInKubelet) -> PodResourcesClient:
    return PodResourcesClient(
        kubelet.pod_resources_socket, recent=tuple, checkpoint_file=kubelet.checkpoint, files=Worker("files")
    )


class Rival:
    """Who is in the way, as the guard gets it; and a tally of what was queried and prepared."""

    def __init__(self, serves: StandInKubelet) -> None:
        self.serves = serves
        self.who: str | None = ""
        self.queries: list[tuple[str, tuple[str, ...]]] = []
        self.prepared = 0
        self.kubelet: StandInKubelet | None = None
        self.looks = 0  # that found devices
        self.came = ""  # who is beside us once we are registered
        self.differs = ""  # who serves otherwise what is to be taken over
        self.slow_prepare = 0.0  # seconds, once
        self.own: set[str] = set()  # what was called ours with the last such query
        self.checks = 0

    async def lists(self, resource: str) -> bool | None:
        found = self.kubelet is not None and self.kubelet.allocatable(resource) > 0
        self.looks += found
        return found

    async def others(self, resource: str, own: Own, *, taking_over: bool = False) -> str | None:
        if taking_over:
            assert resource not in own()
            return self.differs
        if self.serves.connected(resource):  # it is registered
            self.own = set(own())
            self.checks += 1
            return self.came
        self.queries.append((resource, tuple(sorted(own()))))
        return self.who

    async def prepare(self) -> None:
        self.prepared += 1
        seconds, self.slow_prepare = self.slow_prepare, 0.0
        await asyncio.sleep(seconds)


@pytest.fixture
def rival(kubelet: StandInKubelet) -> Rival:
    return Rival(kubelet)


@pytest.fixture
async def plugins(
    kubelet: StandInKubelet, allocator: EchoOffer, rival: Rival, deadlines: Deadlines
) -> AsyncIterator[DevicePlugins]:
    plugins = device_plugins(
        kubelet.plugin_folder,
        allocator,
        deadlines=deadlines,
        others=rival.others,
        lists=rival.lists,
        prepare=rival.prepare,
    )
    yield plugins
    await plugins.stop()


def state_of(plugins: DevicePlugins) -> RegistrationState:
    [registration] = plugins.registrations()
    return registration.state


async def test_nothing_is_registered_or_prepared_while_another_plugin_serves(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    rival.who = "another device plugin serves it"
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)
    await kubelet.until(lambda: len(rival.queries) >= 2)
    assert plugins.registrations()[0].message == "another device plugin serves it"
    assert (kubelet.registered, rival.prepared, plugins.let_through) == ([], 0, False)
    rival.who = None  # a kubelet that does not answer now
    seen = len(rival.queries)
    await kubelet.until(lambda: len(rival.queries) > seen)
    assert kubelet.registered == []
    rival.who = ""
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert (rival.prepared, plugins.let_through) == (1, True)


async def test_a_lost_stream_is_renewed_without_asking(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    rival.who = "another device plugin serves it"  # or the kubelet has not yet noticed that the stream is gone
    await kubelet.drop_stream(GPU)
    await kubelet.until(lambda: len(kubelet.registered) == 2 and kubelet.allocatable(GPU) == 8)
    assert len(rival.queries) == 1


async def test_with_a_new_kubelet_it_is_queried_again(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await kubelet.restart()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert len(rival.queries) == 2
    rival.who = "another device plugin came first"
    await kubelet.restart()
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)
    assert len(kubelet.registered) == 2


async def test_what_was_decided_to_be_taken_over_is_registered_beside_the_other_plugin(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    rival.who = "another device plugin serves it"
    await plugins.set_plan(plan(offered(8)), allow_next=True)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert (rival.queries, rival.prepared) == ([], 1)
    await kubelet.restart()  # and what this kubelet has is another question
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)


async def test_what_is_to_be_taken_over_waits_for_a_plugin_that_serves_otherwise_by_now(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    """Between the decision and the registration the other plugin was replaced, as while the kubelet was away."""
    rival.who = "another device plugin serves it"
    rival.differs = "another device plugin serves 16 ids of it"
    await plugins.set_plan(plan(offered(8)), allow_next=True)
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)
    assert plugins.registrations()[0].message == rival.differs
    assert (kubelet.registered, rival.prepared) == ([], 0)
    rival.differs = ""
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)


async def test_who_comes_while_it_is_prepared_is_in_the_way(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    rival.slow_prepare = RECHECK_SECONDS + 0.2
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: rival.prepared == 1)
    rival.who = "another device plugin came"
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)
    assert kubelet.registered == []


async def test_an_older_process_of_ours_is_not_in_the_way(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    older = device_plugins(kubelet.plugin_folder, EchoOffer())
    await older.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    rival.who = "somebody serves it"
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.REGISTERED)
    assert rival.queries == []
    await older.stop()
    await kubelet.until(lambda: kubelet.connected(GPU) and kubelet.allocatable(GPU) == 8)


async def test_a_dead_socket_of_ours_or_one_of_another_name_is_no_older_process(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    rival.who = "another device plugin serves it"
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as other:
        dead.bind(str(kubelet.plugin_folder / "nodedevices-nvidia.com-gpu-00000000.sock"))
        other.bind(str(kubelet.plugin_folder / "nodedevices-nvidia.com-gpu.shared-11111111.sock"))
        other.listen(1)
        await plugins.set_plan(plan(offered(8)))
        await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)
    assert kubelet.registered == []


async def test_names_that_are_registered_together_are_not_in_each_others_way(kubelet: StandInKubelet) -> None:
    client = client_of(kubelet)

    async def others(resource: str, own: Own, *, taking_over: bool = False) -> str | None:
        found = await client.offered_now()
        assert found is not None
        return ", ".join(each.resource for each in found if each.resource not in own())

    states: list[RegistrationState] = []
    running: DevicePlugins = device_plugins(
        kubelet.plugin_folder,
        EchoOffer(),
        others=others,
        on_change=lambda: states.extend(each.state for each in running.registrations()),
    )
    await running.set_plan(plan(*(offered(2, name=name, prefix=f"{name}-") for name in NAMES)))
    await kubelet.until(lambda: all(kubelet.allocatable(name) == 2 for name in NAMES))
    for _ in range(3):
        await kubelet.restart()
        await kubelet.until(lambda: all(kubelet.allocatable(name) == 2 for name in NAMES))
    await running.stop()
    assert RegistrationState.SERVED_BY_ANOTHER not in states


# --- another plugin takes our place ---------------------------------------------------------------------------------
async def test_when_the_plugin_that_took_our_place_is_gone_we_register_again(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    """Our stream stays open all the time: only what the kubelet lists shows it."""
    rival.kubelet = kubelet
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await kubelet.until(lambda: rival.looks)
    other = device_plugins(kubelet.plugin_folder, EchoOffer())
    await other.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(other) is RegistrationState.REGISTERED)
    await other.stop()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    assert state_of(plugins) is RegistrationState.REGISTERED, "nothing has notified us"
    await kubelet.until(lambda: len(kubelet.registered) == 3 and kubelet.allocatable(GPU) == 8)
    assert (await kubelet.allocate(GPU, 1)).ids


async def test_devices_that_another_plugin_comes_to_serve_under_another_name_are_left_to_it(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    rival.came = rival.who = "another device plugin has come"
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)
    assert plugins.registrations()[0].message == "another device plugin has come"
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    rival.came = rival.who = ""
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.REGISTERED and kubelet.allocatable(GPU) == 8)


async def test_a_plugin_whose_socket_is_new_is_soon_checked(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    """Every second instead of every five."""
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: rival.checks == 1)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(kubelet.plugin_folder / "other.sock"))
        await kubelet.until(lambda: rival.checks >= 3)


async def test_a_name_that_we_gave_up_is_not_taken_back_from_who_has_it_since(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await plugins.set_plan(plan(offered(8, name="nvidia.com/gpu.shared")))
    await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu.shared") == 8)
    rival.who = "another device plugin serves it"
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.SERVED_BY_ANOTHER)


async def test_a_name_that_we_have_given_up_is_ours_for_as_long_as_the_kubelet_may_list_it(
    kubelet: StandInKubelet, plugins: DevicePlugins, rival: Rival
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await plugins.set_plan(plan(offered(8, name="nvidia.com/gpu.shared")))
    await kubelet.until(lambda: rival.own == {GPU, "nvidia.com/gpu.shared"})
    await kubelet.until(lambda: rival.own == {"nvidia.com/gpu.shared"})


def test_devices_that_were_never_listed_are_not_missed_and_one_check_is_none() -> None:
    listed = ListedCheck(now=0.0)
    assert listed.due(0.5), "soon after the registration: another plugin may come and go within seconds"
    assert not any(listed.observed(False, now=float(second)) for second in range(9))
    assert not listed.observed(True, now=10.0)
    assert not listed.observed(False, now=15.0)
    assert not listed.due(15.9)
    assert listed.due(16.0)
    assert not listed.observed(None, now=16.0)
    assert not listed.observed(False, now=21.0)
    assert listed.observed(False, now=22.0)


# --- what the kubelet is queried ------------------------------------------------------------------------------------
async def test_what_the_kubelet_before_has_listed_is_not_taken_for_this_ones(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    client = client_of(kubelet)
    assert await client.offered_now()
    await plugins.stop()
    await kubelet.restart()
    assert await client.offered_now() == ()


async def test_one_read_answers_all_that_query_at_one_time(kubelet: StandInKubelet) -> None:
    client = client_of(kubelet)
    serving = device_plugins(kubelet.plugin_folder, EchoOffer())
    await serving.set_plan(plan(offered(2)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    answers = await asyncio.gather(*(client.offered_now() for _ in range(8)))
    assert answers == [(Offer(resource=GPU, ids=("GPU-0", "GPU-1")),)] * 8
    assert kubelet.offers_asked == 1
    await serving.stop()


async def test_a_kubelet_that_cannot_say_is_queried_once(kubelet: StandInKubelet) -> None:
    kubelet.offers_error = (grpc.StatusCode.UNIMPLEMENTED, "not here")
    assert await client_of(kubelet).offered_now() is None
    assert kubelet.offers_asked == 1
    await kubelet.remove_pod_resources()
    assert await client_of(kubelet).offered_now() is None


async def test_a_rate_limit_is_met_by_asking_again_and_not_for_ever(kubelet: StandInKubelet) -> None:
    client = client_of(kubelet)
    kubelet.offers_error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    looking = asyncio.create_task(client.offered_now())
    await kubelet.until(lambda: kubelet.offers_asked >= 2)
    kubelet.offers_error = None
    assert await looking == ()
    kubelet.offers_error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    assert await client_of(kubelet).offered_now() is None
