"""The stream by which the kubelet is sent the health of devices that claims have."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nodedevices_plugin.claims.slices import DeviceHealth
from nodedevices_plugin.kubelet.api.dra_health_v1_pb2 import HEALTHY, UNHEALTHY, UNKNOWN
from nodedevices_plugin.kubelet.dra.driver import HEALTH_SERVICES, HealthStreams
from nodedevices_plugin.kubelet.sockets import UnixServer
from nodedevices_plugin.model import HealthState
from support.dra import DraKubelet, Sent
from support.kubelet import StandInKubelet
from support.patience import PATIENCE_SECONDS
from support.running_agent import NODE

SHOWN = (
    DeviceHealth(name="gpu-0", state=HealthState.HEALTHY),
    DeviceHealth(name="gpu-1", state=HealthState.DEGRADED, reason="RowRemapPending"),
    DeviceHealth(name="gpu-2", state=HealthState.UNHEALTHY, reason="Xid79"),
    DeviceHealth(name="gpu-3", state=HealthState.UNKNOWN),
)
SENT = ((HEALTHY, ""), (HEALTHY, "RowRemapPending"), (UNHEALTHY, "Xid79"), (UNKNOWN, ""))


@contextlib.asynccontextmanager
async def streaming(root: Path, streams: HealthStreams) -> AsyncIterator[Sent]:
    dra = DraKubelet(root)
    path = Path(dra.address.removeprefix("unix:"))
    path.parent.mkdir(parents=True)
    server = UnixServer("health", path, streams.handlers(), max_calls=2)
    server.start()
    streams.serve(serving=True)
    sent = dra.health(HEALTH_SERVICES[0], *(device.name for device in SHOWN))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), contextlib.aclosing(sent):
            yield sent
    finally:
        streams.serve(serving=False)
        await server.stop()


async def test_the_same_health_is_sent_again_before_the_kubelet_takes_it_for_unknown(kubelet: StandInKubelet) -> None:
    streams = HealthStreams(NODE, repeat_seconds=0.01)
    streams.show(SHOWN)
    async with streaming(kubelet.root, streams) as sent:
        assert [await anext(sent) for _ in range(3)] == [SENT] * 3


async def test_a_stream_ends_when_its_server_is_to_stop(kubelet: StandInKubelet) -> None:
    streams = HealthStreams(NODE)
    async with streaming(kubelet.root, streams) as sent:
        assert await anext(sent) == ()
        streams.serve(serving=False)
        with pytest.raises(StopAsyncIteration):
            await anext(sent)
