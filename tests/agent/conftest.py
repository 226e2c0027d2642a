"""A stand-in kubelet, and the kubelet side of the agent on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.registration import Deadlines
from support.kubelet import StandInKubelet
from support.offers import EchoOffer, device_plugins
from support.patience import PATIENCE_SECONDS


@pytest.fixture
async def kubelet() -> AsyncIterator[StandInKubelet]:
    async with StandInKubelet() as kubelet:
        yield kubelet


@pytest.fixture
def allocator() -> EchoOffer:
    return EchoOffer()


@pytest.fixture
def deadlines() -> Deadlines:
    """Of the kubelet. However slow the machine is, it is late only in the tests that have shorter ones."""
    return Deadlines(register_seconds=PATIENCE_SECONDS, stream_seconds=PATIENCE_SECONDS)


@pytest.fixture
async def plugins(kubelet: StandInKubelet, allocator: EchoOffer, deadlines: Deadlines) -> AsyncIterator[DevicePlugins]:
    """Not registered yet: that takes a plan."""
    plugins = device_plugins(kubelet.plugin_folder, allocator, deadlines=deadlines)
    yield plugins
    await plugins.stop()
