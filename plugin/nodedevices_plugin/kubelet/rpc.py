"""The kubelet's gRPC methods, typed: what protoc's own stubs would be, without their untyped code.

Paths are `/<protobuf package>.<service>/<method>` of the vendored files in `api/`. Channels are opened for one use and
closed: a channel that is kept backs off from a socket that went away, for up to two minutes, although the kubelet's new
socket is there after 0.1 s. Opening one costs about a millisecond.

A stream sends the newest value, such as the list of a resource, which has a version. A reader that is slow gets the
newest value once in place of all that it has missed, and never misses the last one. Each stream remembers the version
that it was sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc.aio
from google.protobuf.message import Message

from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as deviceplugin, podresources_v1_pb2 as podresources

A = TypeVar("A", bound=Message)
T = TypeVar("T")

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


Calls = Mapping[str, tuple[Callable[..., Message], type[Message]]]
"""The calls of a service: what answers each, and the type of its request."""


def handlers(service: str, calls: Calls, **streams: grpc.RpcMethodHandler[Any, Any]) -> grpc.GenericRpcHandler:
    """Return what serves these calls and streams."""
    unary = grpc.unary_unary_rpc_method_handler
    return grpc.method_handlers_generic_handler(
        service,
        {
            **{
                method: unary(call, request.FromString, lambda answer: answer.SerializeToString())
                for method, (call, request) in calls.items()
            },
            **streams,
        },
    )


NOTHING_SENT = 0  # the version that a new stream has


class Newest(Generic[T]):
    """A value, and its streams to the kubelet, each in a thread. All methods may be called in any thread."""

    def __init__(self, value: T) -> None:
        self.changed = threading.Condition()
        self._value = value
        self._version = NOTHING_SENT + 1
        self._serving = True

    def show(self, value: T) -> None:
        """Take a value as the newest; nothing is sent where it equals the one before."""
        with self.changed:
            if value != self._value:
                self._value = value
                self.show_again()

    def show_again(self) -> None:
        """Have the same value sent once more in every stream."""
        with self.changed:
            self._version += 1
            self._wake()

    def serve(self, *, serving: bool) -> None:
        """`serving` False: end the streams, before their server waits for them."""
        self._serving = serving
        self._wake()

    def after(self, sent: int) -> tuple[T, int] | None:
        """Return value and version for a stream that was sent this version; None: it has the newest."""
        return None if sent == self._version else (self._value, self._version)

    def stream(self, context: grpc.ServicerContext, *, repeat_seconds: float | None = None) -> Iterator[T]:
        """Yield the newest value whenever it is another one, and again after so long, until the call is over."""

        def over() -> bool:
            return not self._serving or not context.is_active()

        def due() -> bool:
            return over() or self.after(sent) is not None

        sent = NOTHING_SENT
        if not context.add_callback(self._wake):
            return  # the kubelet that called has gone
        while True:
            with self.changed:
                self.changed.wait_for(due, timeout=repeat_seconds)
                if over():
                    return
                value, sent = self._value, self._version
            yield value

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()
