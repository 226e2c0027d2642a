"""A caller of a device plugin that holds the event loop on which the plugin's agent runs.

Its calls block, and are made on the loop itself: nothing else runs there until they are answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.rpc import DEVICE_PLUGIN_SERVICE
from support.kubelet import StandInKubelet
from support.patience import PATIENCE_SECONDS


class Caller:
    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def options(self) -> api.DevicePluginOptions:
        call = self._channel.unary_unary(
            f"/{DEVICE_PLUGIN_SERVICE}/GetDevicePluginOptions",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.DevicePluginOptions.FromString,
        )
        return call(api.Empty(), timeout=PATIENCE_SECONDS)

    def first_list(self) -> api.ListAndWatchResponse:
        call = self._channel.unary_stream(
            f"/{DEVICE_PLUGIN_SERVICE}/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        stream = call(api.Empty(), timeout=PATIENCE_SECONDS)
        try:
            return next(iter(stream))
        finally:
            stream.cancel()

    def preferred(self, available: Sequence[str], size: int) -> list[str]:
        call = self._channel.unary_unary(
            f"/{DEVICE_PLUGIN_SERVICE}/GetPreferredAllocation",
            request_serializer=api.PreferredAllocationRequest.SerializeToString,
            response_deserializer=api.PreferredAllocationResponse.FromString,
        )
        wanted = api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        answer = call(api.PreferredAllocationRequest(container_requests=[wanted]), timeout=PATIENCE_SECONDS)
        return list(answer.container_responses[0].deviceIDs)

    def allocate(self, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        call = self._channel.unary_unary(
            f"/{DEVICE_PLUGIN_SERVICE}/Allocate",
            request_serializer=api.AllocateRequest.SerializeToString,
            response_deserializer=api.AllocateResponse.FromString,
        )
        wanted = api.ContainerAllocateRequest(devices_ids=ids)
        return call(api.AllocateRequest(container_requests=[wanted]), timeout=PATIENCE_SECONDS).container_responses[0]


@contextlib.contextmanager
def held_loop(socket: Path) -> Iterator[Caller]:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        yield Caller(channel)


def plugins_socket(kubelet: StandInKubelet) -> Path:
    """The one of the only plugin of ours."""
    [socket] = kubelet.plugin_folder.glob("nodedevices-*.sock")
    return socket
