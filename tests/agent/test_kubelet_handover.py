"""We leave while another plugin runs beside us: it has the node afterwards, whichever of us registered last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.model import Plan
from support.kubelet import StandInKubelet
from support.offers import GPU, EchoOffer, device_plugins, offered, plan
from support.vendor import VendorProcess

VENDOR = "nvidia-gpu.sock"
IDS = [each.id for each in offered(4).ids]


@pytest.fixture
async def plugins(kubelet: StandInKubelet, allocator: EchoOffer) -> AsyncIterator[DevicePlugins]:
    async def lists(resource: str) -> bool:
        return kubelet.allocatable(resource) > 0

    plugins = device_plugins(kubelet.plugin_folder, allocator, lists=lists)
    yield plugins
    await plugins.stop()


@pytest.fixture
def vendor(kubelet: StandInKubelet, tmp_path: Path) -> Iterator[VendorProcess]:
    with VendorProcess(tmp_path, kubelet.plugin_folder, IDS) as vendor:
        yield vendor


async def vendor_serves(kubelet: StandInKubelet) -> None:
    await kubelet.until(lambda: kubelet.endpoint(GPU) == VENDOR and kubelet.allocatable(GPU) == 4)
    granted = await kubelet.allocate_ids(GPU, IDS[:1])
    assert granted.envs["ALLOCATED_BY"] == "vendor"


async def we_serve(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await plugins.set_plan(plan(offered(4)))
    await kubelet.until(lambda: kubelet.endpoint(GPU) not in ("", VENDOR) and kubelet.allocatable(GPU) == 4)


async def test_a_plugin_whose_place_we_took_has_the_node_again_when_we_leave(
    kubelet: StandInKubelet, plugins: DevicePlugins, vendor: VendorProcess
) -> None:
    await vendor_serves(kubelet)
    await we_serve(kubelet, plugins)
    await plugins.set_plan(Plan())
    await vendor_serves(kubelet)
    await we_serve(kubelet, plugins)
    await plugins.stop()  # the agent's end
    await vendor_serves(kubelet)


async def test_a_plugin_that_took_our_place_keeps_the_node_when_we_leave(
    kubelet: StandInKubelet, plugins: DevicePlugins, tmp_path: Path
) -> None:
    await we_serve(kubelet, plugins)
    with VendorProcess(tmp_path, kubelet.plugin_folder, IDS):
        await vendor_serves(kubelet)
        await plugins.set_plan(Plan())
        await kubelet.until(lambda: kubelet.registrations_of(GPU) == 3)  # our end took its registration down
        await vendor_serves(kubelet)


async def test_where_the_kubelet_keeps_both_the_other_plugin_is_not_registered_again() -> None:
    """From 1.37 on. A kubelet that refuses a socket as connected forgets its client (1.37.2): its devices would be
    offered long after it has ended."""
    async with StandInKubelet(old_stream_kills_new=False) as kubelet:

        async def lists(resource: str) -> bool:
            return kubelet.allocatable(resource) > 0

        plugins = device_plugins(kubelet.plugin_folder, EchoOffer(), lists=lists)
        with VendorProcess(kubelet.root, kubelet.plugin_folder, IDS):
            await vendor_serves(kubelet)
            await we_serve(kubelet, plugins)
            await plugins.stop()
            await vendor_serves(kubelet)
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
        assert kubelet.registrations_of(GPU) == 2


async def test_a_plugin_with_other_devices_is_left_alone(
    kubelet: StandInKubelet, plugins: DevicePlugins, tmp_path: Path
) -> None:
    with VendorProcess(tmp_path, kubelet.plugin_folder, ["GPU-of-somebody-else"]):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
        await we_serve(kubelet, plugins)
        await plugins.stop()
        assert (kubelet.registrations_of(GPU), kubelet.allocatable(GPU)) == (2, 0)


async def test_a_plugin_that_prefers_whatever_it_is_given_is_left_alone(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    async def prefer(request: api.PreferredAllocationRequest, _: object) -> api.PreferredAllocationResponse:
        available = [list(each.available_deviceIDs) for each in request.container_requests]
        answers = [api.ContainerPreferredAllocationResponse(deviceIDs=each) for each in available]
        return api.PreferredAllocationResponse(container_responses=answers)

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        prefer, api.PreferredAllocationRequest.FromString, api.PreferredAllocationResponse.SerializeToString
    )
    service = {"GetPreferredAllocation": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", service),))
    server.add_insecure_port(f"unix:{kubelet.plugin_folder / VENDOR}")
    await server.start()
    try:
        await we_serve(kubelet, plugins)
        await plugins.stop()
        assert (kubelet.registrations_of(GPU), kubelet.allocatable(GPU)) == (1, 0)
    finally:
        await server.stop(None)


async def test_a_name_that_is_only_replaced_by_another_is_handed_to_nobody(
    kubelet: StandInKubelet, plugins: DevicePlugins, vendor: VendorProcess
) -> None:
    """The other plugin would offer, beside our new name, the same devices."""
    await vendor_serves(kubelet)
    await we_serve(kubelet, plugins)
    await plugins.set_plan(plan(offered(4, name="nvidia.com/other")))
    await kubelet.until(lambda: kubelet.allocatable("nvidia.com/other") == 4)
    await asyncio.sleep(0.5)
    assert kubelet.allocatable(GPU) == 0


async def test_a_node_that_is_served_again_meanwhile_is_ours(
    kubelet: StandInKubelet, plugins: DevicePlugins, vendor: VendorProcess
) -> None:
    await vendor_serves(kubelet)
    await we_serve(kubelet, plugins)
    await plugins.set_plan(Plan())
    await we_serve(kubelet, plugins)
    await asyncio.sleep(1.5)
    assert kubelet.endpoint(GPU) != VENDOR
    assert kubelet.allocatable(GPU) == 4
