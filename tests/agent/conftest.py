"""A stand-in kubelet, and the kubelet side of the agent on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.registration import Deadlines
from support.kubelet import StandInKubelet
from support.offers import EchoOffer


@pytest.fixture
async def kubelet() -> AsyncIterator[StandInKubelet]:
    async with StandInKubelet() as kubelet:
        yield kubelet


@pytest.fixture
def allocator() -> EchoOffer:
    return EchoOffer()


@pytest.fixture
async def plugins(kubelet: StandInKubelet, allocator: EchoOffer) -> AsyncIterator[DevicePlugins]:
    """Not registered yet: that takes a plan. The kubelet's deadlines are short here."""
    deadlines = Deadlines(register_seconds=3.0, stream_seconds=3.0)
    plugins = DevicePlugins(folder=kubelet.plugin_folder, offer=allocator, deadlines=deadlines)
    yield plugins
    await plugins.stop()
