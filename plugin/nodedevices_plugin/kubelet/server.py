"""The v1beta1 answers of one resource, on its own unix socket.

The kubelet sets no deadline on Allocate and GetPreferredAllocation and handles one pod after the other: an answer that
hangs blocks every pod of the node. So answers come from memory, through the port KubeletOffer, and nothing is awaited
on their way, but for a moment where an allocation depends on a pod that has not been seen (StartGate). ListAndWatch
sends the whole list at once, in the plan's order, and again when it has changed or `show_again` is called; changes made
while the kubelet reads are one message (rpc.Newest). A GetPreferredAllocation fails only where Allocate would fail
for the same request, since its error fails the pod's admission, too; it is a hint otherwise, and any valid choice is
better.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import grpc
import structlog
from msgspec import Struct
from nodedevices_common.errors import InputError

from nodedevices_plugin.kubelet import sockets
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.offer import KubeletOffer, RecentAllocations, StartGate
from nodedevices_plugin.kubelet.rpc import DEVICE_PLUGIN_SERVICE, Newest, handlers
from nodedevices_plugin.model import (
    AllocationError,
    CallObserver,
    ContainerEdits,
    KubeletCall,
    Method,
    OfferedResource,
    Result,
)
from nodedevices_plugin.runtime.threads import tell

MAX_SNAPSHOT_BYTES = 3 << 20  # the kubelet's client takes 4 MiB; a configuration that would exceed 3 is refused
MAX_REQUEST_BYTES = 8 << 20  # GetPreferredAllocation may name every id twice
BEFORE_START_SECONDS = 25.0  # the kubelet gives up after 30
MAX_CALLS = 256  # at once; the kubelet makes one at a time, but for a stream, and PreStartContainer for many containers

log = structlog.get_logger(__name__)


class SnapshotError(InputError):
    """A list that the kubelet could not take, and why."""


def snapshot(resource: OfferedResource) -> bytes:
    """The encoded ListAndWatchResponse. Raises SnapshotError.

    A duplicate id would be counted in both of the kubelet's sets when its health differs; over 4 MiB the kubelet ends
    the stream and the resource is gone. NUMA "not known" is no topology at all, never node -1. What is retained is
    shown only while it is not healthy: it is not for the next pod.
    """
    seen: set[str] = set()
    message = api.ListAndWatchResponse()
    for schedulable in (*resource.ids, *(kept for kept in resource.retained if not kept.healthy)):
        if schedulable.id in seen:
            raise SnapshotError(f"the id {schedulable.id} is given twice; ids must be unique")
        seen.add(schedulable.id)
        device = message.devices.add(ID=schedulable.id, health="Healthy" if schedulable.healthy else "Unhealthy")
        if schedulable.numa_node is not None:
            device.topology.nodes.add(ID=schedulable.numa_node)
    if message.ByteSize() > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(
            f"{len(resource.ids)} ids make a message of {message.ByteSize()} bytes, and the kubelet "
            f"takes no more than {MAX_SNAPSHOT_BYTES}; use fewer replicas or a larger memory unit"
        )
    return message.SerializeToString()


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What the answers of all resources are made with: sockets in `folder` (the kubelet's of device plugins), answers
    from `offer`. `on_allocated` is called on the event loop after `recent` has got something, and must not block;
    `observe` in the thread that has answered."""

    folder: Path
    offer: KubeletOffer
    recent: RecentAllocations
    on_allocated: Callable[[], None]
    observe: CallObserver
    gate: StartGate


class _Outcome(Struct):
    result: Result = Result.GRANTED


class ResourceServer:
    """Serves one resource on one socket, from `socket.start` to `stop`; not to be started again. It is for the event
    loop on which it was made; the answers are given in threads.

    `shown` is the list that ListAndWatch sends, as `snapshot` makes it; `show` takes another one.
    `opened` counts the ListAndWatch streams so far, `open_streams` are the numbers of those still open: the n-th stream
    has number n. `stream_change` is set whenever one opens or ends.
    """

    def __init__(self, name: str, shown: bytes, serving: Serving, *, pre_start: bool = False) -> None:
        self.name = name
        self.opened = 0
        self.open_streams: set[int] = set()
        self.stream_change = asyncio.Event()
        self._offer, self._recent, self._gate = serving.offer, serving.recent, serving.gate
        self._serving = serving
        self._pre_start = pre_start
        self._newest = Newest(shown)
        self.show = self._newest.show
        self._loop = asyncio.get_running_loop()
        path = sockets.new_path(serving.folder, name)
        self.socket = sockets.UnixServer(
            name, path, [self._handlers()], max_calls=MAX_CALLS, max_bytes=MAX_REQUEST_BYTES
        )

    async def stop(self) -> None:
        """End the streams, let an answer under way finish, close and remove the socket."""
        self._newest.serve(serving=False)
        await self.socket.stop()

    def show_again(self) -> bool:
        """Send the kubelet the same list once more. False where there is no stream."""
        self._newest.show_again()
        return bool(self.open_streams)

    # --- answers, each in a thread ------------------------------------------------------------------------------------
    def _handlers(self) -> grpc.GenericRpcHandler:
        return handlers(
            DEVICE_PLUGIN_SERVICE,
            {
                "GetDevicePluginOptions": (lambda _request, _context: options(pre_start=self._pre_start), api.Empty),
                "GetPreferredAllocation": (self._get_preferred_allocation, api.PreferredAllocationRequest),
                "Allocate": (self._allocate, api.AllocateRequest),
                "PreStartContainer": (self._pre_start_container, api.PreStartContainerRequest),
            },
            ListAndWatch=grpc.unary_stream_rpc_method_handler(self._list_and_watch, api.Empty.FromString, bytes),
        )

    def _list_and_watch(self, _request: api.Empty, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._newest.changed:
            number = self.opened + 1
            self.open_streams.add(number)
            self.opened = number
        tell(self._loop, self.stream_change.set)
        try:
            yield from self._newest.stream(context)
        finally:
            self.open_streams.discard(number)
            tell(self._loop, self.stream_change.set)

    @contextlib.contextmanager
    def _answering(self, context: grpc.ServicerContext, what: str, method: Method | None = None) -> Iterator[_Outcome]:
        """A call of the kubelet is answered in the block, or refused by what that raises; the call is observed."""
        began, outcome = perf_counter(), _Outcome()
        try:
            yield outcome
        except AllocationError as error:
            outcome.result = Result.REFUSED
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:
            outcome.result = Result.FAILED
            log.exception(f"{what} failed", resource=self.name)
            text = f"NodeDevices failed to {what} {self.name} ({type(error).__name__}); see the log of its agent"
            context.abort(grpc.StatusCode.INTERNAL, text)
        finally:
            if method is not None:
                self._serving.observe(KubeletCall(method, self.name, outcome.result, perf_counter() - began))

    def _allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> api.AllocateResponse:
        wanted = [tuple(container.devices_ids) for container in request.container_requests]
        with self._answering(context, "allocate", Method.ALLOCATE), self._recent.answering():
            for ids in wanted:
                self._gate.ready(self.name, len(ids), ids)
            with self._recent.granting:  # grant all of them, or raise and grant none
                answers = [container_response(self._offer.edits(self._offer.grant(self.name, ids))) for ids in wanted]
                for ids in wanted:
                    self._recent.add(self.name, ids)
            tell(self._loop, self._serving.on_allocated)
        return api.AllocateResponse(container_responses=answers)

    def _get_preferred_allocation(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        responses = []
        with self._answering(context, "choose", Method.PREFERRED) as outcome, self._recent.answering():
            for container in request.container_requests:
                asked = (
                    tuple(container.available_deviceIDs),
                    tuple(container.must_include_deviceIDs),
                    container.allocation_size,
                )
                self._gate.ready(self.name, container.allocation_size, asked[1])
                ids = self._prefer(*asked)
                if ids is None:
                    outcome.result, ids = Result.FAILED, plain_choice(*asked)
                responses.append(api.ContainerPreferredAllocationResponse(deviceIDs=ids))
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

    def _pre_start_container(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        """Called at every start of a container, where `pre_start` is set. The one answer that needs the event loop:
        what it waits for comes from there."""
        if self._pre_start:
            starting = asyncio.run_coroutine_threadsafe(
                self._gate.before_start(self.name, tuple(request.devices_ids)), self._loop
            )
            with self._answering(context, "prepare"):
                try:
                    starting.result(BEFORE_START_SECONDS)
                finally:
                    starting.cancel()  # where it takes too long
        return api.PreStartContainerResponse()


def options(*, pre_start: bool = False) -> api.DevicePluginOptions:
    return api.DevicePluginOptions(pre_start_required=pre_start, get_preferred_allocation_available=True)


def container_response(edits: ContainerEdits) -> api.ContainerAllocateResponse:
    """The edits as the kubelet's message."""
    return api.ContainerAllocateResponse(
        envs=edits.envs,
        mounts=[
            api.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            api.DeviceSpec(
                container_path=device.container_path, host_path=device.host_path, permissions=device.permissions
            )
            for device in edits.devices
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
