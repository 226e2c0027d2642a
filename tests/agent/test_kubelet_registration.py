"""What ends a registration, and that the resource is back: restarts, wiped sockets, refusals, hangs, two instances."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nodedevices_plugin.kubelet import sockets
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.registration import BACKOFF, Deadlines
from nodedevices_plugin.model import RegistrationState
from nodedevices_plugin.model.plan import KubeletCall, Method, Result
from support.kubelet import StandInKubelet
from support.offers import GPU, EchoOffer, device_plugins, offered, plan
from support.patience import PATIENCE_SECONDS


@pytest.fixture
async def absent() -> AsyncIterator[StandInKubelet]:
    """A kubelet that has not started yet; its folders are there."""
    kubelet = StandInKubelet()
    await kubelet.start()
    await kubelet.stop()
    async with kubelet:
        await kubelet.stop()
        yield kubelet


def waits(seconds: float) -> pytest.MarkDecorator:
    """A plugin that gives a kubelet up that has not answered for so long."""
    return pytest.mark.parametrize("deadlines", [Deadlines(register_seconds=seconds, stream_seconds=seconds)], ids=[""])


def own_sockets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("nodedevices-*") if stat.S_ISSOCK(path.stat().st_mode)]


def state_of(plugins: DevicePlugins) -> RegistrationState:
    [registration] = plugins.registrations()
    return registration.state


async def serving(kubelet: StandInKubelet, plugins: DevicePlugins, count: int = 8) -> None:
    await plugins.set_plan(plan(offered(count)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == count)
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.REGISTERED)


async def test_nothing_is_registered_before_the_first_plan(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    assert plugins.registrations() == ()
    assert list(kubelet.plugin_folder.iterdir()) == [kubelet.socket]
    await serving(kubelet, plugins)
    assert [(request.version, request.resource_name) for request in kubelet.registered] == [("v1beta1", GPU)]


async def test_every_change_of_a_registration_is_announced(kubelet: StandInKubelet) -> None:
    seen: list[RegistrationState] = []
    plugins: DevicePlugins = device_plugins(
        kubelet.plugin_folder,
        EchoOffer(),
        on_change=lambda: seen.extend(each.state for each in plugins.registrations()),
    )
    await serving(kubelet, plugins)
    await kubelet.drop_stream(GPU)
    await kubelet.until(lambda: len(seen) == 3)
    assert seen == [RegistrationState.REGISTERED, RegistrationState.PENDING, RegistrationState.REGISTERED]
    await plugins.stop()


# --- the kubelet is away --------------------------------------------------------------------------------------------
async def test_an_agent_that_starts_before_the_kubelet_waits_for_it(
    absent: StandInKubelet, allocator: EchoOffer
) -> None:
    plugins = device_plugins(absent.plugin_folder, allocator)
    await plugins.set_plan(plan(offered(8)))
    await absent.until(lambda: state_of(plugins) is RegistrationState.KUBELET_UNREACHABLE)
    assert "kubelet.sock does not exist" in plugins.registrations()[0].message
    await absent.start()
    await absent.until(lambda: absent.allocatable(GPU) == 8)
    await plugins.stop()


async def test_a_kubelet_sock_that_nobody_listens_on_is_an_unreachable_kubelet(
    absent: StandInKubelet, allocator: EchoOffer
) -> None:
    await absent.stop(leave_socket=True)
    plugins = device_plugins(absent.plugin_folder, allocator)
    await plugins.set_plan(plan(offered(8)))
    await absent.until(lambda: state_of(plugins) is RegistrationState.KUBELET_UNREACHABLE)
    assert plugins.registrations()[0].message == f"no kubelet answers on {absent.socket}: Connection refused"
    # The next kubelet would remove a socket when it starts, and then dial it for 10 s.
    assert own_sockets(absent.plugin_folder) == []
    await absent.start()
    await absent.until(lambda: absent.allocatable(GPU) == 8)
    await plugins.stop()


async def test_a_kubelet_restart_wipes_the_sockets_and_everything_is_back(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await serving(kubelet, plugins)
    granted = await kubelet.allocate(GPU, 2, pod="training")
    for _ in range(3):
        before = kubelet.registered[-1].endpoint
        await kubelet.restart()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        assert kubelet.registered[-1].endpoint != before
    assert kubelet.ids_in_use(GPU) == set(granted.ids)
    assert len(own_sockets(kubelet.plugin_folder)) == 1


async def test_a_restarted_kubelet_is_sent_what_changed_while_it_was_away(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await serving(kubelet, plugins)
    await kubelet.stop()
    await plugins.set_plan(plan(offered(8, unhealthy=[0, 1]), offered(2, name="nvidia.com/new", prefix="NEW-")))
    updates = len(kubelet.views[GPU].updates)
    await kubelet.start()
    await kubelet.until(lambda: kubelet.connected(GPU) and kubelet.connected("nvidia.com/new"))
    first = kubelet.views[GPU].updates[updates]
    assert [device.ID for device in first.devices if device.health != "Healthy"] == ["GPU-0", "GPU-1"]


async def test_a_kubelet_sock_replaced_under_an_open_stream_is_another_kubelet(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await serving(kubelet, plugins)
    other = StandInKubelet(kubelet.root)
    await other.start(wipe=False)
    await other.until(lambda: other.allocatable(GPU) == 8)
    assert not kubelet.connected(GPU)  # the old server was stopped first
    await plugins.stop()
    await other.stop()


async def test_a_removed_kubelet_sock_with_an_open_stream_changes_nothing(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await serving(kubelet, plugins)
    kubelet.socket.unlink()
    await asyncio.sleep(0.6)  # two looks
    assert state_of(plugins) is RegistrationState.REGISTERED
    assert kubelet.allocatable(GPU) == 8
    assert len(kubelet.registered) == 1


# --- the registration is lost ---------------------------------------------------------------------------------------
async def test_a_dropped_stream_is_registered_again_on_a_new_socket(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await serving(kubelet, plugins)
    for times in range(2, 5):
        await kubelet.drop_stream(GPU)
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        assert len(kubelet.registered) == times
    assert len({request.endpoint for request in kubelet.registered}) == 4
    assert len(own_sockets(kubelet.plugin_folder)) == 1


async def test_streams_that_never_last_are_no_busy_loop(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await plugins.set_plan(plan(offered(8)))
    drops = 0
    loop = asyncio.get_running_loop()
    end = loop.time() + 2.0
    while loop.time() < end or not drops:
        if kubelet.connected(GPU):
            await kubelet.drop_stream(GPU)
            drops += 1
        await asyncio.sleep(0.005)
    assert 1 <= drops <= 10  # four at once, then 0.5 s, 1 s, ... (less jitter) between them
    assert len(kubelet.registered) <= drops + 1


async def test_our_own_socket_deleted_is_served_again(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await serving(kubelet, plugins)
    [path] = own_sockets(kubelet.plugin_folder)
    path.unlink()
    await kubelet.until(lambda: len(kubelet.registered) == 2 and kubelet.allocatable(GPU) == 8)
    assert kubelet.registered[1].endpoint != path.name
    assert (await kubelet.allocate(GPU, 1)).ids


@waits(3.0)
async def test_an_accepted_registration_without_a_stream_starts_over_on_a_new_socket(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    kubelet.watch = False
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: len(kubelet.registered) >= 2)
    assert "did not call ListAndWatch within 3 s" in plugins.registrations()[0].message
    kubelet.watch = True
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    endpoints = [request.endpoint for request in kubelet.registered]
    assert len(set(endpoints)) == len(endpoints)
    assert len(own_sockets(kubelet.plugin_folder)) == 1


async def test_a_folder_that_cannot_be_served_in_is_said_and_tried_again(
    kubelet: StandInKubelet, allocator: EchoOffer
) -> None:
    folder = kubelet.root / "elsewhere"
    plugins = device_plugins(folder, allocator, kubelet_socket=kubelet.socket)
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: "cannot serve nvidia.com/gpu on" in plugins.registrations()[0].message)
    assert kubelet.registered == []
    kubelet.plugin_folder.rename(folder)  # kubelet.sock with it: the kubelet has moved to where we serve
    kubelet.plugin_folder.symlink_to(folder)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await plugins.stop()


# --- the registration is refused ------------------------------------------------------------------------------------
async def test_a_refusal_is_reported_in_the_kubelets_words_and_retried(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    kubelet.refuse = "the kubelet is busy\nwith\x1b[31m itself"
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.REJECTED)
    assert plugins.registrations()[0].message == "the kubelet is busy with [31m itself"
    kubelet.refuse = None
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert state_of(plugins) is RegistrationState.REGISTERED


async def test_s07_a_socket_that_the_kubelet_calls_connected_already_is_not_used_again() -> None:
    """From 1.37 on: the kubelet has connected, and its answer did not arrive."""
    async with StandInKubelet(old_stream_kills_new=False) as kubelet:
        kubelet.loses_answer = True
        plugins = device_plugins(kubelet.plugin_folder, EchoOffer())
        try:
            await plugins.set_plan(plan(offered(8)))
            await kubelet.until(lambda: state_of(plugins) is RegistrationState.REGISTERED)
            assert len({each.endpoint for each in kubelet.registered}) == len(kubelet.registered) == 2
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        finally:
            await plugins.stop()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)  # of a client that it forgot it notices no end


async def test_each_register_is_observed_with_its_result(absent: StandInKubelet, allocator: EchoOffer) -> None:
    seen: list[KubeletCall] = []
    await absent.stop(leave_socket=True)
    plugins = device_plugins(absent.plugin_folder, allocator, observe=seen.append)
    await plugins.set_plan(plan(offered(8)))
    await absent.until(lambda: [each for each in seen if each.result is Result.FAILED])
    absent.refuse = "not now"
    await absent.start()
    await absent.until(lambda: [each for each in seen if each.result is Result.REFUSED])
    absent.refuse = None
    await absent.until(lambda: absent.allocatable(GPU) == 8)
    await absent.until(lambda: seen[-1].result is Result.GRANTED)  # its answer comes after the kubelet's first message
    assert {(each.method, each.resource) for each in seen} == {(Method.REGISTER, GPU)}
    await plugins.stop()


async def test_an_invalid_name_is_refused_without_harm_to_the_others(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await plugins.set_plan(plan(offered(2), offered(1, name="gpu", prefix="X-")))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    await kubelet.until(lambda: plugins.registrations()[0].state is RegistrationState.REJECTED)
    assert plugins.registrations()[0].message == 'the ResourceName "gpu" is invalid'


@waits(3.0)
async def test_a_kubelet_that_never_answers_register_is_unreachable_and_met_again(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    kubelet.hang = True
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(plugins) is RegistrationState.KUBELET_UNREACHABLE)
    assert "did not answer Register within 3 s" in plugins.registrations()[0].message
    kubelet.hang = False
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert len(own_sockets(kubelet.plugin_folder)) == 1


async def test_stop_does_not_wait_for_a_kubelet_that_hangs(kubelet: StandInKubelet, allocator: EchoOffer) -> None:
    kubelet.hang = True
    endless = Deadlines(register_seconds=10 * PATIENCE_SECONDS)
    plugins = device_plugins(kubelet.plugin_folder, allocator, deadlines=endless)
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: kubelet.registered)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await plugins.stop()
    assert own_sockets(kubelet.plugin_folder) == []


async def test_a_new_kubelet_ends_a_long_back_off(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    kubelet.refuse = "not now"
    await plugins.set_plan(plan(offered(8)))
    await kubelet.until(lambda: len(kubelet.registered) >= 3)  # the next waits are 2, 4, 8 ... s
    kubelet.refuse = None
    await kubelet.restart()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)


def test_the_back_off_grows_has_jitter_and_a_bound() -> None:
    for failures in range(1, 2000):
        assert 0.25 <= BACKOFF.after(failures) <= 30.0
    assert max(BACKOFF.after(1) for _ in range(100)) <= 0.5
    assert min(BACKOFF.after(100) for _ in range(100)) >= 15.0
    assert len({BACKOFF.after(3) for _ in range(10)}) > 1


# --- two instances --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("old_stream_kills_new", [True, False], ids=["up to 1.36", "from 1.37"])
async def test_when_an_older_instance_ends_the_newer_one_stays_or_is_back(old_stream_kills_new: bool) -> None:
    async with StandInKubelet(old_stream_kills_new=old_stream_kills_new) as kubelet:
        old = device_plugins(kubelet.plugin_folder, EchoOffer())
        new = device_plugins(kubelet.plugin_folder, EchoOffer())
        await serving(kubelet, old)
        await serving(kubelet, new)
        await old.stop()
        await kubelet.until(lambda: kubelet.connected(GPU) and kubelet.allocatable(GPU) == 8)
        assert len(kubelet.registered) == (3 if old_stream_kills_new else 2)
        assert (await kubelet.allocate(GPU, 1)).ids
        await new.stop()


async def test_m02_a_newer_instance_whose_registration_fails_leaves_the_older_one_alone(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await serving(kubelet, plugins)
    endpoint = kubelet.endpoint(GPU)
    new = device_plugins(kubelet.plugin_folder, EchoOffer())
    kubelet.refuse = "not now"
    await new.set_plan(plan(offered(8)))
    await kubelet.until(lambda: state_of(new) is RegistrationState.REJECTED)
    await new.stop()
    assert (kubelet.endpoint(GPU), kubelet.allocatable(GPU)) == (endpoint, 8)
    assert state_of(plugins) is RegistrationState.REGISTERED
    assert (await kubelet.allocate(GPU, 1)).ids


async def test_a_new_start_takes_another_socket_and_removes_the_dead_ones(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    dead = kubelet.plugin_folder / "nodedevices-nvidia.com-gpu-00000000.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(dead))
    foreign = kubelet.plugin_folder / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(foreign))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as alive:
        living = kubelet.plugin_folder / "nodedevices-nvidia.com-gpu-11111111.sock"
        alive.bind(str(living))
        alive.listen(1)
        for path in (dead, foreign, living):
            age(path)
        await serving(kubelet, plugins)
        assert not dead.exists()
        assert living.exists()
        assert foreign.exists()


def age(path: Path) -> None:
    """As if it were made a minute ago."""
    then = path.stat().st_mtime - 60
    os.utime(path, (then, then))


# --- names of sockets -----------------------------------------------------------------------------------------------
KUBELETS_FOLDER = Path("/var/lib/kubelet/device-plugins")


def test_every_server_has_a_name_of_its_own() -> None:
    paths = {sockets.new_path(KUBELETS_FOLDER, GPU) for _ in range(100)}
    assert len(paths) == 100
    assert all(path.name.startswith("nodedevices-nvidia.com-gpu-") for path in paths)


def test_the_longest_resource_name_fits_and_is_distinguished_from_its_neighbour() -> None:
    names = [f"{'x' * 250}.io/{'y' * 62}{n}" for n in range(2)]
    words = set()
    for name in names:
        path = sockets.new_path(KUBELETS_FOLDER, name)
        assert len(bytes(path)) <= sockets.MAX_PATH_BYTES
        words.add(path.name.rsplit("-", 1)[0])
    assert len(words) == 2


def test_a_folder_that_is_too_long_is_named() -> None:
    with pytest.raises(ValueError, match="too long for a unix socket"):
        sockets.new_path(Path("/" + "x" * 90), GPU)


def test_a_plain_file_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "kubelet.sock").write_text("")
    assert sockets.identity(tmp_path / "kubelet.sock") is None
    assert sockets.identity(tmp_path / "nothing") is None
