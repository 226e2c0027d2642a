"""The v1beta1 answers of one resource, on its own unix socket.

The kubelet sets no deadline on Allocate and GetPreferredAllocation and handles one pod after the other: an answer that
hangs blocks every pod of the node. So answers come from memory, through the port KubeletOffer, and nothing is awaited
on their way, but for a moment where an allocation depends on a pod that has not been seen (StartGate). ListAndWatch
sends the whole list at once, in the plan's order, and again when it has changed or `show_again` is called; changes made
while the kubelet reads are one message. A GetPreferredAllocation fails only where Allocate would fail for the same
request, since its error fails the pod's admission, too; it is a hint otherwise, and any valid choice is better.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NoReturn

import grpc.aio
import structlog
from nodedevices_common.errors import InputError

from nodedevices_plugin.kubelet import sockets
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.offer import KubeletOffer, OpenGate, StartGate
from nodedevices_plugin.kubelet.rpc import DEVICE_PLUGIN_SERVICE
from nodedevices_plugin.model import AllocationError, ContainerEdits, OfferedResource, RecentAllocate
from nodedevices_plugin.model.kubelet_calls import CallObserver, KubeletCall, Method, Result, unobserved

MAX_SNAPSHOT_BYTES = 3 << 20  # the kubelet's client takes 4 MiB; a configuration that would exceed 3 is refused
MAX_REQUEST_BYTES = 8 << 20  # GetPreferredAllocation may name every id twice
STOP_GRACE_SECONDS = 1.0  # for an answer under way; streams end by themselves at once
RECENT_ALLOCATIONS = 1024  # many times the pods that a kubelet admits in half a minute

log = structlog.get_logger(__name__)


class SnapshotError(InputError):
    """A list that the kubelet could not take, and why."""


class RecentAllocations:
    """The newest Allocates that we answered, oldest first; bounded."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._entries: deque[RecentAllocate] = deque(maxlen=RECENT_ALLOCATIONS)
        self._on_change = on_change

    def add(self, resource: str, ids: tuple[str, ...]) -> None:
        self._entries.append(RecentAllocate(resource=resource, ids=ids, time=datetime.now(UTC), monotonic=monotonic()))
        self._on_change()

    def entries(self) -> tuple[RecentAllocate, ...]:
        return tuple(self._entries)


def snapshot(resource: OfferedResource) -> bytes:
    """The encoded ListAndWatchResponse. Raises SnapshotError.

    A duplicate id would be counted in both of the kubelet's sets when its health differs; over 4 MiB the kubelet ends
    the stream and the resource is gone. NUMA "not known" is no topology at all, never node -1. What is retained is
    shown only while it is not healthy: it is not for the next pod.
    """
    seen: set[str] = set()
    message = api.ListAndWatchResponse()
    for each in (*resource.ids, *(one for one in resource.retained if not one.healthy)):
        if each.id in seen:
            raise SnapshotError(f"the id {each.id} is there twice; ids must be unique")
        seen.add(each.id)
        device = message.devices.add(ID=each.id, health="Healthy" if each.healthy else "Unhealthy")
        if each.numa_node is not None:
            device.topology.nodes.add(ID=each.numa_node)
    if message.ByteSize() > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(
            f"{len(resource.ids)} ids make a message of {message.ByteSize()} bytes, and the kubelet "
            f"takes no more than {MAX_SNAPSHOT_BYTES}; use fewer replicas or a larger memory unit"
        )
    return message.SerializeToString()


class ResourceServer:
    """Serves one resource on one socket, from `start` to `stop`; not to be started again.

    `shown` is the list that ListAndWatch sends, as `snapshot` makes it.
    `opened` counts the ListAndWatch streams so far, `open_streams` are the numbers of those still open: the n-th stream
    has number n. `stream_change` is set whenever one opens or ends.
    """

    def __init__(
        self,
        name: str,
        shown: bytes,
        *,
        folder: Path,
        offer: KubeletOffer,
        recent: RecentAllocations,
        observe: CallObserver = unobserved,
        gate: StartGate | None = None,
        pre_start: bool = False,
    ) -> None:
        self.name = name
        self.path = sockets.new_path(folder, name)
        self.opened = 0
        self.open_streams: set[int] = set()
        self.stream_change = asyncio.Event()
        self._offer = offer
        self._recent = recent
        self._observe = observe
        self._gate = gate or OpenGate()
        self._pre_start = pre_start
        self._shown = shown
        self._again = 0  # how often the list was to be sent though nothing had changed
        self._changed = asyncio.Event()
        self._stopping = False
        self._identity: sockets.FileIdentity | None = None
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0)]
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))

    async def start(self) -> None:
        """Raises OSError when the socket cannot be made. Afterwards the kubelet may dial."""
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
            await self._server.start()
        except RuntimeError as error:  # grpc raises it for every failure to bind
            raise OSError(f"cannot serve {self.name} on {self.path}: {error}") from error
        self._identity = sockets.identity(self.path)

    async def stop(self) -> None:
        """End the streams, let an answer under way finish, close and remove the socket."""
        self._stopping = True
        self._changed.set()
        await self._server.stop(STOP_GRACE_SECONDS)
        if self.has_socket():
            self.path.unlink(missing_ok=True)

    def has_socket(self) -> bool:
        """True while our socket is still there: the kubelet removes all sockets when it starts."""
        return self._identity is not None and sockets.identity(self.path) == self._identity

    def show(self, shown: bytes) -> None:
        """Send the kubelet this list, unless it has an equal one."""
        if shown != self._shown:
            self._shown = shown
            self._wake()

    def show_again(self) -> bool:
        """Send the kubelet the same list once more. False where there is no stream."""
        self._again += 1
        self._wake()
        return bool(self.open_streams)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- answers ----------------------------------------------------------------------------------------------------
    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            DEVICE_PLUGIN_SERVICE,
            {
                "GetDevicePluginOptions": unary(
                    self._options, api.Empty.FromString, api.DevicePluginOptions.SerializeToString
                ),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, api.Empty.FromString, bytes),
                "GetPreferredAllocation": unary(
                    self._get_preferred_allocation,
                    api.PreferredAllocationRequest.FromString,
                    api.PreferredAllocationResponse.SerializeToString,
                ),
                "Allocate": unary(
                    self._allocate, api.AllocateRequest.FromString, api.AllocateResponse.SerializeToString
                ),
                "PreStartContainer": unary(
                    self._pre_start_container,
                    api.PreStartContainerRequest.FromString,
                    api.PreStartContainerResponse.SerializeToString,
                ),
            },
        )

    async def _options(self, _request: api.Empty, _context: Any) -> api.DevicePluginOptions:
        return options(pre_start=self._pre_start)

    async def _list_and_watch(self, _request: api.Empty, context: grpc.aio.ServicerContext[api.Empty, bytes]) -> None:
        self.opened += 1
        number = self.opened
        self.open_streams.add(number)
        self.stream_change.set()
        sent: tuple[bytes, int] | None = None
        try:
            while not self._stopping:  # grpc cancels the stream of a kubelet that has gone, at the await
                changed, current = self._changed, (self._shown, self._again)
                if current != sent:
                    await context.write(current[0])
                    sent = current
                else:
                    await changed.wait()
        finally:
            self.open_streams.discard(number)
            self.stream_change.set()

    async def _allocate(
        self, request: api.AllocateRequest, context: grpc.aio.ServicerContext[api.AllocateRequest, api.AllocateResponse]
    ) -> api.AllocateResponse:
        began = perf_counter()
        wanted = [tuple(each.devices_ids) for each in request.container_requests]
        for ids in wanted:
            await self._gate.ready(self.name, len(ids), ids)
        try:
            answers = [container_response(self._offer.edits(self._offer.grant(self.name, ids))) for ids in wanted]
        except AllocationError as error:
            self._ended(Method.ALLOCATE, Result.REFUSED, began)
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:
            self._ended(Method.ALLOCATE, Result.FAILED, began)
            log.exception("allocate failed", resource=self.name, ids=wanted)
            text = f"NodeDevices failed to allocate {self.name} ({type(error).__name__}); see the log of its agent"
            await refuse(context, grpc.StatusCode.INTERNAL, text)
        for ids in wanted:
            self._recent.add(self.name, ids)
        self._ended(Method.ALLOCATE, Result.GRANTED, began)
        return api.AllocateResponse(container_responses=answers)

    async def _get_preferred_allocation(
        self,
        request: api.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[api.PreferredAllocationRequest, api.PreferredAllocationResponse],
    ) -> api.PreferredAllocationResponse:
        began = perf_counter()
        result = Result.GRANTED
        responses = []
        try:
            for each in request.container_requests:
                asked = tuple(each.available_deviceIDs), tuple(each.must_include_deviceIDs), each.allocation_size
                await self._gate.ready(self.name, each.allocation_size, asked[1])
                ids = self._prefer(*asked)
                if ids is None:
                    result, ids = Result.FAILED, plain_choice(*asked)
                responses.append(api.ContainerPreferredAllocationResponse(deviceIDs=ids))
        except AllocationError as error:
            self._ended(Method.PREFERRED, Result.REFUSED, began)
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._ended(Method.PREFERRED, result, began)
        return api.PreferredAllocationResponse(container_responses=responses)

    def _prefer(self, available: tuple[str, ...], must_include: tuple[str, ...], size: int) -> tuple[str, ...] | None:
        """None: there is no valid preference, by a bug."""
        try:
            chosen = tuple(self._offer.prefer(self.name, available, must_include, size))
        except AllocationError:
            raise
        except Exception:
            log.exception("preferred allocation failed", resource=self.name, size=size)
            return None
        if is_valid_choice(chosen, available, must_include, size):
            return chosen
        log.error("preferred allocation is not a valid choice", resource=self.name, size=size, chosen=chosen[:16])
        return None

    def _ended(self, method: Method, result: Result, began: float) -> None:
        self._observe(KubeletCall(method, self.name, result, perf_counter() - began))

    async def _pre_start_container(
        self,
        request: api.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[api.PreStartContainerRequest, api.PreStartContainerResponse],
    ) -> api.PreStartContainerResponse:
        """Called at every start of a container, where `pre_start` is set."""
        try:
            await self._gate.before_start(self.name, tuple(request.devices_ids))
        except AllocationError as error:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:
            log.exception("preparing a container's start failed", resource=self.name)
            text = f"NodeDevices failed to prepare {self.name} ({type(error).__name__}); see the log of its agent"
            await refuse(context, grpc.StatusCode.INTERNAL, text)
        return api.PreStartContainerResponse()


def options(*, pre_start: bool = False) -> api.DevicePluginOptions:
    return api.DevicePluginOptions(pre_start_required=pre_start, get_preferred_allocation_available=True)


async def refuse(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)


def container_response(edits: ContainerEdits) -> api.ContainerAllocateResponse:
    """The edits as the kubelet's message."""
    return api.ContainerAllocateResponse(
        envs=edits.envs,
        mounts=[
            api.Mount(container_path=each.container_path, host_path=each.host_path, read_only=each.read_only)
            for each in edits.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=each.container_path, host_path=each.host_path, permissions=each.permissions)
            for each in edits.devices
        ],
        annotations=edits.annotations,
        cdi_devices=[api.CDIDevice(name=name) for name in edits.cdi_devices],
    )


def plain_choice(available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
    """Return `must_include`, then the first available ids, up to `size`, in the given order."""
    return tuple(dict.fromkeys((*must_include, *available)))[: max(size, 0)]


def is_valid_choice(chosen: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int) -> bool:
    """True for distinct available ids which, where the request can be met, are exactly `size` with all of
    `must_include`."""
    known, must = set(available), set(must_include)
    distinct = set(chosen)
    if len(distinct) != len(chosen) or not distinct <= known | must or len(chosen) > max(size, 0):
        return False
    can_be_met = must <= known and len(must) <= size <= len(known)
    return not can_be_met or (len(chosen) == size and distinct >= must)
