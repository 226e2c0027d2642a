"""A kubelet's device manager and PodResources server, in this process, for what a real kubelet will not do on request.

It behaves like pkg/kubelet/cm/devicemanager of 1.36: dials the plugin inside Register and calls GetDevicePluginOptions,
reads ListAndWatch and keeps the healthy, unhealthy and all sets, allocates with GetPreferredAllocation and Allocate,
lists pods' devices (and what is allocatable) one entry per id and no init container's, wipes the sockets in its folder
when it starts. It writes its checkpoint at every allocation and at every message of a plugin's list, and forgets a pod
that has ended at a List or an allocation, once it knows its pods. Up to 1.36 the end of an older stream takes down the
newer client of the same name (`old_stream_kills_new`); from 1.37 on those that are left keep the name, and a socket is
refused while it is connected, whose client is forgotten by that: its end is not noticed (1.37.2). Switches make it
misbehave: `refuse`, `hang`, `watch`, `loses_answer`, `pod_resources_error`, `offers_error`, `drop_stream`,
`stop(leave_socket=True)`, `restart(knows_pods=False)`.

    async with StandInKubelet() as kubelet:
        ... start an agent on kubelet.plugin_folder and kubelet.pod_resources_socket ...
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu") == 8)
        granted = await kubelet.allocate("nvidia.com/gpu", 2, pod="train-0")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import stat
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

import grpc.aio
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api, podresources_v1_pb2 as podresources
from support.patience import PATIENCE_SECONDS

T = TypeVar("T")


class AdmissionError(Exception):
    """The pod would be Failed with UnexpectedAdmissionError; the text is the kubelet's."""


@dataclass
class Client:
    """One registration: a connection to a plugin's socket and its ListAndWatch stream."""

    resource: str
    endpoint: str
    channel: grpc.aio.Channel
    preferred: bool
    stream: asyncio.Task[None] | None = None
    forgotten: bool = False


@dataclass
class View:
    """What the kubelet knows of one resource, as its endpoint and its three sets."""

    devices: dict[str, api.Device] = field(default_factory=dict)
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    updates: list[api.ListAndWatchResponse] = field(default_factory=list)  # of all streams, oldest first
    connected: bool = False


@dataclass(frozen=True)
class Granted:
    ids: tuple[str, ...]
    answer: api.ContainerAllocateResponse


@dataclass(frozen=True, order=True)
class Owner:
    namespace: str
    pod: str
    container: str


class StandInKubelet:
    """See the module. All its methods belong to one event loop."""

    def __init__(self, root: Path | None = None, *, old_stream_kills_new: bool = True) -> None:
        self._own_root = root is None
        self.root = root or Path(tempfile.mkdtemp(prefix="nd-kubelet-"))  # short: a socket's path has 107 bytes
        self.plugin_folder = self.root / "device-plugins"
        self.socket = self.plugin_folder / "kubelet.sock"
        self.pod_resources_socket = self.root / "pod-resources" / "kubelet.sock"
        # What it does wrong on request.
        self.refuse: str | None = None  # Register is refused with this text
        self.hang = False  # Register is never answered
        self.watch = True  # whether a registration is followed by ListAndWatch
        self.loses_answer = False  # the next Register is done, and its answer does not arrive
        self.old_stream_kills_new = old_stream_kills_new
        self.pod_resources_error: tuple[grpc.StatusCode, str] | None = None
        self.offers_error: tuple[grpc.StatusCode, str] | None = None  # of GetAllocatableResources alone
        self.knows_pods = True  # False: List has no pod, as from a start until the API server has answered
        self.added: Callable[[str], bool] = lambda _: True  # whether it has added this pod, in a start: one by one
        self.extra_pods: list[podresources.PodResources] = []  # listed beside the pods that `allocate` made
        # What it has seen.
        self.registered: list[api.RegisterRequest] = []  # every Register call, refused ones too
        self.lists = 0  # PodResources/List calls
        self.offers_asked = 0  # PodResources/GetAllocatableResources calls
        self.views: dict[str, View] = defaultdict(View)
        self.allocated: dict[Owner, dict[str, tuple[str, ...]]] = {}  # survives a restart: the checkpoint
        self.init_containers: set[Owner] = set()  # of those
        self.remembered: dict[Owner, dict[str, tuple[str, ...]]] = {}  # what pods had that have ended
        self._clients: dict[str, Client] = {}
        self._all_clients: list[Client] = []
        self._servers: dict[Path, grpc.aio.Server] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self._own_root:
            shutil.rmtree(self.root, ignore_errors=True)

    # --- its life ---------------------------------------------------------------------------------------------------
    async def start(self, *, wipe: bool = True) -> None:
        """Like a kubelet's start: every socket in the plugin folder goes (with `wipe`), then kubelet.sock appears."""
        for path in (self.plugin_folder, self.pod_resources_socket.parent):
            path.mkdir(parents=True, exist_ok=True)
        for path in self.plugin_folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a plugin may take its own away meanwhile
                if stat.S_ISSOCK(path.stat().st_mode) and (wipe or path == self.socket):
                    path.unlink()
        await self.serve_pod_resources()
        await self._serve(self.socket, "v1beta1.Registration", Register=(self._register, api.RegisterRequest))

    async def serve_pod_resources(self) -> None:
        self.pod_resources_socket.unlink(missing_ok=True)
        await self._serve(
            self.pod_resources_socket,
            "v1.PodResourcesLister",
            List=(self._list, podresources.ListPodResourcesRequest),
            GetAllocatableResources=(self._offers, podresources.AllocatableResourcesRequest),
        )

    async def remove_pod_resources(self) -> None:
        """Its socket is gone, as where PodResources is not mounted."""
        await self._servers.pop(self.pod_resources_socket).stop(None)

    async def _serve(self, path: Path, service: str, **methods: tuple[Any, Any]) -> None:
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer, request.FromString, _encode)
            for name, (answer, request) in methods.items()
        }
        server = self._servers[path] = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()

    async def stop(self, *, leave_socket: bool = False) -> None:
        """Ends at once. With `leave_socket` kubelet.sock stays as a file that nobody listens on, as after a kill."""
        servers, self._servers = list(self._servers.values()), {}
        for server in servers:  # first, so that none registers with a kubelet that has ended
            await server.stop(None)
        clients, self._all_clients, self._clients = self._all_clients, [], {}
        for client in clients:
            await self._disconnect(client)
        if self._closing:
            await asyncio.wait(self._closing)
        for view in self.views.values():
            view.connected = False
        if leave_socket:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(str(self.socket))

    async def restart(self, *, knows_pods: bool = True) -> None:
        """Stops, forgets the devices' health, keeps what pods were given, wipes the sockets, starts."""
        await self.stop()
        self.knows_pods = knows_pods
        for view in self.views.values():
            view.devices, view.healthy, view.unhealthy = {}, set(), set()
        await self.start()

    async def drop_stream(self, resource: str) -> None:
        """Ends the current ListAndWatch stream and closes its connection, as on a transport error."""
        client = self._clients[resource]
        await self._disconnect(client)

    # --- what it shows ----------------------------------------------------------------------------------------------
    def capacity(self, resource: str) -> int:
        view = self.views[resource]
        return len(view.healthy) + len(view.unhealthy)

    def allocatable(self, resource: str) -> int:
        return len(self.views[resource].healthy)

    def connected(self, resource: str) -> bool:
        """Whether the newest registration of this resource has an open stream that has shown its devices."""
        return self.views[resource].connected

    def endpoint(self, resource: str) -> str:
        """The socket that Allocate is sent to; empty: nobody has the name."""
        client = self._clients.get(resource)
        return "" if client is None else client.endpoint

    def registrations_of(self, resource: str) -> int:
        return sum(request.resource_name == resource for request in self.registered)

    async def until(self, condition: Callable[[], object], *, patience: float = PATIENCE_SECONDS) -> None:
        """Waits for it to hold; AssertionError with what the kubelet knows when it does not in time."""
        deadline = asyncio.get_running_loop().time() + patience
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                known = {name: (sorted(view.healthy), sorted(view.unhealthy)) for name, view in self.views.items()}
                raise AssertionError(
                    f"not within {patience} s; kubelet knows {known}, {len(self.registered)} Registers"
                )
            self._change.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._change.wait()

    # --- pods -------------------------------------------------------------------------------------------------------
    async def allocate(
        self,
        resource: str,
        count: int,
        *,
        pod: str = "pod",
        namespace: str = "default",
        container: str = "main",
        init: bool = False,
    ) -> Granted:
        """Admits a container that requests `count`; `init`: one that List does not show. Raises AdmissionError, with
        the kubelet's message or the plugin's."""
        client, view = self._clients.get(resource), self.views[resource]
        if not view.devices:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        if client is None or not view.healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        free = sorted(view.healthy - self.ids_in_use(resource))
        if len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
            )
        ids = tuple(await self.prefer(resource, free, count) if client.preferred else ())
        ids = tuple(each for each in ids if each in free)[:count]
        ids += tuple(each for each in free if each not in ids)[: count - len(ids)]
        answer = await self.allocate_ids(resource, ids)
        owner = Owner(namespace, pod, container)
        owned = self.allocated.setdefault(owner, {})
        owned[resource] = (*owned.get(resource, ()), *ids)
        if init:
            self.init_containers.add(owner)
        self._forget_ended()
        self.write_checkpoint()
        return Granted(ids, answer)

    @property
    def checkpoint(self) -> Path:
        return self.plugin_folder / "kubelet_internal_checkpoint"

    def write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": f"uid-{owner.namespace}-{owner.pod}",
                "ContainerName": owner.container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": list(ids)},
                "AllocResp": "",
            }
            for owner, owned in [*sorted(self.allocated.items()), *sorted(self.remembered.items())]
            for resource, ids in owned.items()
        ]
        registered = {name: sorted(view.healthy) for name, view in self.views.items()}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        new = self.checkpoint.with_name(f".{self.checkpoint.name}")
        new.write_text(json.dumps({"Data": data, "Checksum": 0}))
        new.replace(self.checkpoint)

    def _forget_ended(self) -> None:
        """UpdateAllocatedDevices."""
        if self.knows_pods and all(self.added(each.pod) for each in self.allocated):
            self.remembered.clear()

    async def allocate_ids(self, resource: str, ids: Iterable[str]) -> api.ContainerAllocateResponse:
        """The bare Allocate call for one container, recorded nowhere. Raises AdmissionError with the plugin's words."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=list(ids))])
        try:
            reply = await self._call(resource, "Allocate", request, api.AllocateResponse)
        except grpc.aio.AioRpcError as error:
            text = f"rpc error: code = {error.code().name} desc = {error.details()}"
            raise AdmissionError(f"Allocate failed due to {text}, which is unexpected") from error
        answer: api.ContainerAllocateResponse
        [answer] = reply.container_responses
        return answer

    async def prefer(
        self, resource: str, available: Iterable[str], count: int, must_include: Iterable[str] = ()
    ) -> list[str]:
        wanted = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=list(available), must_include_deviceIDs=list(must_include), allocation_size=count
        )
        request = api.PreferredAllocationRequest(container_requests=[wanted])
        reply = await self._call(resource, "GetPreferredAllocation", request, api.PreferredAllocationResponse)
        [answer] = reply.container_responses
        return list(answer.deviceIDs)

    async def pre_start(self, resource: str, ids: Iterable[str]) -> None:
        request = api.PreStartContainerRequest(devices_ids=list(ids))
        await self._call(resource, "PreStartContainer", request, api.PreStartContainerResponse)

    def release(self, pod: str, namespace: str = "default") -> None:
        """The pod has ended."""
        for owner in [each for each in self.allocated if (each.namespace, each.pod) == (namespace, pod)]:
            self.remembered[owner] = self.allocated.pop(owner)
            self.init_containers.discard(owner)

    def ids_in_use(self, resource: str) -> set[str]:
        return {id_ for owned in self.allocated.values() for id_ in owned.get(resource, ())}

    # --- services ---------------------------------------------------------------------------------------------------
    async def _register(self, request: api.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]) -> api.Empty:
        self.registered.append(request)
        self._change.set()
        if self.hang:
            await asyncio.Event().wait()
        if self.refuse is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse)
        if request.version != "v1beta1":
            text = (
                f'requested API version "{request.version}" is not supported by kubelet. Supported version is "v1beta1"'
            )
            await context.abort(grpc.StatusCode.UNKNOWN, text)
        if "/" not in request.resource_name or "kubernetes.io/" in request.resource_name:
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        path = self.plugin_folder / request.endpoint
        known = [each for each in self._all_clients if each.endpoint == request.endpoint]
        if known and not self.old_stream_kills_new:
            for each in known:
                each.forgotten = True
            await context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {path}")
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])
        try:
            options = await _unary(channel, "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        except grpc.aio.AioRpcError as error:
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {error.details()}")
        preferred = options.get_preferred_allocation_available
        client = Client(request.resource_name, request.endpoint, channel, preferred)
        self._clients[client.resource] = client
        self._all_clients.append(client)
        if self.watch:
            client.stream = asyncio.create_task(self._consume(client))
        if self.loses_answer:
            self.loses_answer = False
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is lost")
        return api.Empty()

    async def _consume(self, client: Client) -> None:
        """The endpoint's run: until the stream ends, for whatever reason."""
        view = self.views[client.resource]
        call = client.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch", _encode, api.ListAndWatchResponse.FromString
        )(api.Empty())
        try:
            async for message in call:
                view.updates.append(message)
                view.devices = {each.ID: each for each in message.devices}
                view.healthy = {each.ID for each in message.devices if each.health == "Healthy"}
                view.unhealthy = {each.ID for each in message.devices if each.health != "Healthy"}
                view.connected = True
                self.write_checkpoint()
                self._change.set()
        except grpc.aio.AioRpcError:
            pass  # the plugin is gone, or its answer was an error: to the kubelet it is the same
        finally:
            await client.channel.close()
        self._ended(client)

    def _ended(self, client: Client) -> None:
        """All its devices are unhealthy now; up to 1.36 that is so for whatever client has the name by now.

        From 1.37 on a client that is left has the name, and the end of one that was forgotten is not noticed.
        """
        if client.forgotten:
            return
        if client in self._all_clients:
            self._all_clients.remove(client)
        left = [one for one in self._all_clients if one.resource == client.resource]
        if left and not self.old_stream_kills_new:
            self._clients[client.resource] = left[0]
            self._change.set()
            return
        current = self._clients.get(client.resource)
        if current is None or (current is not client and not self.old_stream_kills_new):
            return
        view = self.views[client.resource]
        view.unhealthy |= view.healthy
        view.healthy = set()
        view.connected = False
        del self._clients[client.resource]
        if current is not client:
            closing = asyncio.create_task(self._disconnect(current))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._change.set()

    async def _disconnect(self, client: Client) -> None:
        if client.stream is not None:
            client.stream.cancel()
            await asyncio.wait([client.stream])
        await client.channel.close()
        self._ended(client)

    async def _call(self, resource: str, method: str, request: Any, reply: Any) -> Any:
        return await _unary(self._clients[resource].channel, method, request, reply)

    async def _list(
        self, _request: podresources.ListPodResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> podresources.ListPodResourcesResponse:
        self.lists += 1
        if self.pod_resources_error is not None:
            await context.abort(*self.pod_resources_error)
        if not self.knows_pods:
            return podresources.ListPodResourcesResponse()
        pods: dict[tuple[str, str], podresources.PodResources] = {}
        self._forget_ended()
        for owner, owned in sorted(self.allocated.items()):
            key = (owner.namespace, owner.pod)
            if not self.added(owner.pod):
                continue
            pod = pods.setdefault(key, podresources.PodResources(name=owner.pod, namespace=owner.namespace))
            if owner in self.init_containers:
                continue
            container = pod.containers.add(name=owner.container)
            for resource, ids in owned.items():
                for id_ in ids:  # the kubelet lists one entry per id
                    container.devices.add(resource_name=resource, device_ids=[id_])
        return podresources.ListPodResourcesResponse(pod_resources=[*pods.values(), *self.extra_pods])

    async def _offers(
        self, _request: podresources.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> podresources.AllocatableResourcesResponse:
        """Healthy ids only, and none of a plugin whose stream has ended."""
        self.offers_asked += 1
        if error := self.offers_error or self.pod_resources_error:
            await context.abort(*error)
        answer = podresources.AllocatableResourcesResponse()
        for resource, view in self.views.items():
            for id_ in sorted(view.healthy):
                answer.devices.add(resource_name=resource, device_ids=[id_])
        return answer


async def _unary(channel: grpc.aio.Channel, method: str, request: Any, reply: Any) -> Any:
    call = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}", _encode, reply.FromString)
    return await call(request, timeout=PATIENCE_SECONDS)


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


class ThreadedKubelet:
    """A kubelet with a thread and an event loop of its own, for tests that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.kubelet = self.run(_started())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.kubelet.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """One of its methods, to its end."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


async def _started() -> StandInKubelet:
    return await StandInKubelet().__aenter__()
