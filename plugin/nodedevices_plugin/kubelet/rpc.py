"""The kubelet's gRPC methods, typed: what protoc's own stubs would be, without their untyped code.

Paths are `/<protobuf package>.<service>/<method>` of the vendored files in `api/`. Channels are opened for one use and
closed: a channel that is kept backs off from a socket that went away, for up to two minutes, although the kubelet's new
socket is there after 0.1 s. Opening one costs about a millisecond.

A ListAndWatch stream sends the newest list of a resource, which has a version. A reader that is slow gets the newest
list once in place of all that it has missed, and never misses the last one. Each reader remembers the version that it
was sent; there are as many readers as there are streams. Whoever uses it from several threads has the lock
(kubelet.server).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message
from msgspec import Struct

from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as deviceplugin
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as podresources

A = TypeVar("A", bound=Message)

VERSION = "v1beta1"
DEVICE_PLUGIN_SERVICE = "v1beta1.DevicePlugin"
REGISTRATION_SERVICE = "v1beta1.Registration"
PODRESOURCES_SERVICE = "v1.PodResourcesLister"

# What the kubelet's own client accepts (pkg/kubelet/apis/podresources/client.go): some 200,000 ids that pods hold, four
# times what one resource can offer. Reading that many takes 120 MiB for a moment; twice that would exceed the
# manifest's memory limit, and an agent that is killed is worse than one that says why it does not know who holds what.
MAX_PODRESOURCES_BYTES = 16 << 20


def reason(error: grpc.aio.AioRpcError) -> str:
    """Return the reason in short: for a failed connection the last part ("Connection refused"), else the server's
    text."""
    details = error.details() or error.code().name
    return details.rpartition(" error: ")[2] if error.code() is grpc.StatusCode.UNAVAILABLE else details


def answer_too_large(error: grpc.aio.AioRpcError) -> bool:
    """True when it was our own limit that refused the answer: gRPC gives it the code of a server that is busy."""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (error.details() or "")


async def register(kubelet: Path, request: deviceplugin.RegisterRequest, *, timeout_seconds: float) -> None:
    """Registration/Register. Raises grpc.aio.AioRpcError."""
    await _call(kubelet, f"{REGISTRATION_SERVICE}/Register", request, deviceplugin.Empty, seconds=timeout_seconds)


async def preferred(plugin: Path, available: Sequence[str], *, timeout_seconds: float) -> tuple[str, ...]:
    """DevicePlugin/GetPreferredAllocation of another plugin, for one of these. Raises grpc.aio.AioRpcError."""
    wanted = deviceplugin.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=1)
    request = deviceplugin.PreferredAllocationRequest(container_requests=[wanted])
    method = f"{DEVICE_PLUGIN_SERVICE}/GetPreferredAllocation"
    answer = await _call(plugin, method, request, deviceplugin.PreferredAllocationResponse, seconds=timeout_seconds)
    return tuple(id_ for container in answer.container_responses for id_ in container.deviceIDs)


async def list_pod_resources(socket: Path, *, timeout_seconds: float) -> podresources.ListPodResourcesResponse:
    """PodResourcesLister/List. Raises grpc.aio.AioRpcError."""
    method, request = f"{PODRESOURCES_SERVICE}/List", podresources.ListPodResourcesRequest()
    return await _call(socket, method, request, podresources.ListPodResourcesResponse, seconds=timeout_seconds)


async def allocatable_resources(socket: Path, *, timeout_seconds: float) -> podresources.AllocatableResourcesResponse:
    """PodResourcesLister/GetAllocatableResources: healthy ids only. Raises grpc.aio.AioRpcError."""
    method, request = f"{PODRESOURCES_SERVICE}/GetAllocatableResources", podresources.AllocatableResourcesRequest()
    return await _call(socket, method, request, podresources.AllocatableResourcesResponse, seconds=timeout_seconds)


async def _call(socket: Path, method: str, request: Message, answer: type[A], *, seconds: float) -> A:
    """Call this method of the server on a unix socket, over a channel of its own."""
    options = [
        ("grpc.max_receive_message_length", MAX_PODRESOURCES_BYTES),
        ("grpc.use_local_subchannel_pool", 1),  # else an earlier channel's failed attempt delays this one
        ("grpc.enable_http_proxy", 0),
    ]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            f"/{method}", request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return await call(request, timeout=seconds)


NOTHING_SENT = 0  # the version that a new reader has


class NewestList(Struct):
    shown: bytes
    version: int = NOTHING_SENT + 1

    def show(self, shown: bytes) -> bool:
        """Take a list as the newest. False where it equals the one before, and nothing is to be sent."""
        if shown == self.shown:
            return False
        self.shown = shown
        self.show_again()
        return True

    def show_again(self) -> None:
        """Have the same list sent once more to every reader."""
        self.version += 1

    def after(self, sent: int) -> tuple[bytes, int] | None:
        """Return list and version for a reader that was sent this version; None: it has the newest."""
        return None if sent == self.version else (self.shown, self.version)
