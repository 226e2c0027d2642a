"""Dynamic Resource Allocation around one agent: the API server's ResourceSlices and ResourceClaims, in memory, and the
kubelet's calls, as pkg/kubelet/cm/dra and pkg/kubelet/pluginmanager of Kubernetes 1.37.2 make them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from nodedevices_kube.errors import ApiError
from nodedevices_plugin.agent import Agent
from nodedevices_plugin.claims.slices import Stored, devices_of, stored
from nodedevices_plugin.kubelet.api import (
    dra_health_v1_pb2 as health,
    dra_v1_pb2 as dra,
    pluginregistration_v1_pb2 as registration,
)
from nodedevices_plugin.kubelet.dra.driver import DRA_SERVICE, REGISTRATION_SERVICE
from nodedevices_plugin.model import DRA_DRIVER
from nodedevices_plugin.settings.options import Local
from nodedevices_plugin.status.client import ChangedItem, KubeStore, ListedItems, Object
from support.kubelet import StandInKubelet
from support.patience import PATIENCE_SECONDS
from support.running_agent import NODE, RunningAgent

Json = dict[str, Any]
BY_DRA: Json = {"serving": {"api": "DRA"}}
DEADLINE_SECONDS = 45.0  # the kubelet's
Sent = AsyncGenerator[tuple[tuple[int, str], ...]]


def allocated(
    name: str, *devices: str, uid: str = "", namespace: str = "ml", pool: str = NODE, **consumed: str
) -> Json:
    """A ResourceClaim with these devices allocated; `uid`: by default `uid-<name>`. `consumed`: of each device, as it
    is where claims share them."""
    uid = uid or f"uid-{name}"
    results: list[Json] = []
    for number, device in enumerate(devices):
        result: Json = {"request": "gpu", "driver": DRA_DRIVER, "pool": pool, "device": device}
        share: Json = {"shareID": f"{uid}-{number}", "consumedCapacity": dict(consumed)} if consumed else {}
        results.append(result | share)
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "status": {"allocation": {"devices": {"results": results}}},
    }


class FakeDraStore(KubeStore):
    """The slices of one node and driver, and all claims. `problem`, while set, is raised by every call."""

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self.claims: dict[tuple[str, str], Json] = {}
        self.problem: ApiError | None = None
        self.drops: frozenset[str] = frozenset()  # fields of devices that the server does not know
        self.writes: list[str] = []
        self._version = 0
        self._readers: list[asyncio.Queue[ChangedItem[Stored]]] = []

    # --- the ports ----------------------------------------------------------------------------------------------------
    async def node_uid(self) -> str | None:
        return "node-uid"

    async def watch_slices(self, node: str, driver: str) -> AsyncIterator[ListedItems[Stored] | ChangedItem[Stored]]:
        assert (node, driver) == (NODE, DRA_DRIVER)
        self._raise()
        news: asyncio.Queue[ChangedItem[Stored]] = asyncio.Queue()
        self._readers.append(news)
        try:
            yield ListedItems(tuple(map(stored, self.slices.values())))
            while True:
                yield await news.get()
        finally:
            self._readers.remove(news)

    async def create_slice(self, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        return self._kept(body) if dry_run else self._put("create", body)

    async def update_slice(self, body: Mapping[str, Any]) -> Object:
        self._raise()
        now = self.slices.get(body["metadata"]["name"])
        if now is None:
            raise ApiError("not found", status=404)
        if now["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError("the object has been modified", status=409)
        return self._put("update", body)

    async def delete_slice(self, name: str) -> None:
        self._raise()
        self.writes.append(f"delete {name}")
        self.wipe(name)

    async def claim(self, namespace: str, name: str) -> Object:
        self._raise()
        return self.claims.get((namespace, name), {})

    # --- for tests ----------------------------------------------------------------------------------------------------
    def give(self, claim: Json) -> Json:
        """Store a claim as it is now."""
        self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim
        return claim

    def wipe(self, *names: str) -> None:
        """Delete slices, by default all of them, as a kubelet does when it starts."""
        for name in names or tuple(self.slices):
            gone = self.slices.pop(name)
            for reader in self._readers:
                reader.put_nowait(ChangedItem(stored(gone), gone=True))

    @property
    def devices(self) -> dict[str, Json]:
        """The devices of all slices, by name."""
        return {device["name"]: device for piece in self.slices.values() for device in devices_of(piece["spec"])}

    def _put(self, what: str, body: Mapping[str, Any]) -> Object:
        made = self._kept(body)
        name = body["metadata"]["name"]
        self.writes.append(f"{what} {name}")
        self._version += 1
        made["metadata"]["resourceVersion"] = str(self._version)
        self.slices[name] = made
        for reader in self._readers:
            reader.put_nowait(ChangedItem(stored(made)))
        return copy.deepcopy(made)

    def _kept(self, body: Mapping[str, Any]) -> Json:
        """What the server would store."""
        self._raise()
        made = copy.deepcopy(dict(body))
        for device in devices_of(made["spec"]):
            for field in self.drops:
                device.pop(field, None)
        return made

    def _raise(self) -> None:
        if self.problem is not None:
            raise self.problem


@dataclass
class DraKubelet:
    """The kubelet's calls to a DRA driver. `root`: the kubelet's folder."""

    root: Path

    def __post_init__(self) -> None:
        self.registry.mkdir(parents=True, exist_ok=True)

    @property
    def registry(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def socket(self) -> Path:
        return self.registry / f"{DRA_DRIVER}-reg.sock"

    @property
    def address(self) -> str:
        return f"unix:{self.root / 'plugins' / DRA_DRIVER / 'dra.sock'}"

    async def register(self, *, refuses: str = "") -> registration.PluginInfo:
        """Find the driver's registration socket, ask what it is, and say that it is registered, or why not."""
        while not self.socket.is_socket():  # noqa: ASYNC110  a file system sets no event
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(f"unix:{self.socket}") as channel:
            ask = channel.unary_unary(
                f"/{REGISTRATION_SERVICE}/GetInfo",
                request_serializer=registration.InfoRequest.SerializeToString,
                response_deserializer=registration.PluginInfo.FromString,
            )
            info: registration.PluginInfo = await ask(
                registration.InfoRequest(), timeout=PATIENCE_SECONDS, wait_for_ready=True
            )
            tell = channel.unary_unary(
                f"/{REGISTRATION_SERVICE}/NotifyRegistrationStatus",
                request_serializer=registration.RegistrationStatus.SerializeToString,
                response_deserializer=registration.RegistrationStatusResponse.FromString,
            )
            await tell(
                registration.RegistrationStatus(plugin_registered=not refuses, error=refuses), timeout=PATIENCE_SECONDS
            )
        return info

    async def prepare(self, *claims: Json) -> dict[str, dra.NodePrepareResourceResponse]:
        request = dra.NodePrepareResourcesRequest(claims=map(_named, claims))
        answer: dra.NodePrepareResourcesResponse = await self._call(
            "NodePrepareResources", request, dra.NodePrepareResourcesResponse
        )
        return dict(answer.claims)

    async def unprepare(self, *claims: Json) -> dict[str, dra.NodeUnprepareResourceResponse]:
        request = dra.NodeUnprepareResourcesRequest(claims=map(_named, claims))
        answer: dra.NodeUnprepareResourcesResponse = await self._call(
            "NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse
        )
        return dict(answer.claims)

    async def health(self, service: str, *devices: str) -> Sent:
        """Yield health and message of these devices, as often as the driver sends them by this service."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            watch = channel.unary_stream(
                f"/{service}/NodeWatchResources",
                request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health.NodeWatchResourcesResponse.FromString,
            )
            async for sent in watch(health.NodeWatchResourcesRequest(), wait_for_ready=True):
                found = {device.device.device_name: (device.health, device.message) for device in sent.devices}
                assert {device.device.pool_name for device in sent.devices} <= {NODE}
                yield tuple(found[device] for device in devices if device in found)

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = channel.unary_unary(
                f"/{DRA_SERVICE}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return await call(request, timeout=DEADLINE_SECONDS, wait_for_ready=True)


def _named(claim: Json) -> dra.Claim:
    about = claim["metadata"]
    return dra.Claim(namespace=about["namespace"], name=about["name"], uid=about["uid"])


class DraNode(RunningAgent):
    """An agent on a node with DRA; its slices and claims are in `api`."""

    def __init__(self, folder: Path, kubelet: StandInKubelet, *arguments: str, config: Json | None = None) -> None:
        super().__init__(folder, kubelet, *arguments, config=BY_DRA if config is None else config)
        self.api = FakeDraStore()
        self.dra = DraKubelet(kubelet.root)

    def agent(self, local: Local) -> Agent:
        return Agent(local, store=self.store, slices=self.api, claims=self.api, hardware=lambda: dict(self.hardware))
