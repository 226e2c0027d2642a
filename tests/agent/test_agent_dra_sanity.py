"""What dra_sanity checks holds of our driver, and a driver that does everything wrong is found in it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from dra_sanity.__main__ import checked, table
from dra_sanity.checks import Bench, Outcome, run
from dra_sanity.claims import Result
from dra_sanity.driver import HEALTH, REGISTRATION, SERVICES, Claim, Driver
from google.protobuf.message import DecodeError
from nodedevices_plugin.kubelet.api import dra_v1_pb2 as dra, pluginregistration_v1_pb2 as registration
from nodedevices_plugin.kubelet.sockets import UnixServer
from support.dra import DraNode, FakeDraStore
from support.kubelet import StandInKubelet
from support.running_agent import NODE, simulated

THREE = "devices:\n" + "".join(
    f"- {{index: {n}, id: ACME-{n}, type: gpu, vendor: acme, deviceNodes: [/dev/acme{n}]}}\n" for n in range(3)
)
CONFIG = {"serving": {"api": "DRA"}, "resources": {"devices": [{"match": {"vendor": "acme"}, "name": "acme.com/gpu"}]}}


class StoredClaims:
    """In the API server that the tests' agents have."""

    def __init__(self, api: FakeDraStore) -> None:
        self._api = api

    def devices(self, _driver: str, _pool: str) -> Sequence[str]:
        return sorted(self._api.devices)

    def give(self, name: str, results: Sequence[Result]) -> Claim:
        found = {"namespace": "ml", "name": name, "uid": f"uid-{name}"}
        allocation = {"devices": {"results": [each.json for each in results]}}
        self._api.give({"metadata": found, "status": {"allocation": allocation} if results else {}})
        return Claim(**found)

    def remove(self, claim: Claim) -> None:
        self._api.claims.pop((claim.namespace, claim.name), None)


class Careless:
    """A driver that answers without a look at what it is asked."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.registry = folder / "registry" / f"{name}-reg.sock"
        self.registry.parent.mkdir()
        self.endpoint = folder / "dra.sock"
        self._number = itertools.count()

    def serve(self) -> list[UnixServer]:
        parts: dict[Path, dict[str, dict[str, Callable[[bytes, grpc.ServicerContext], bytes]]]] = {
            self.endpoint: {
                SERVICES["v1.DRAPlugin"]: {"NodePrepareResources": self.prepare, "NodeUnprepareResources": self.end}
            },
            self.registry: {REGISTRATION: {"GetInfo": self.info, "NotifyRegistrationStatus": lambda _, __: b""}},
        }
        servers = []
        for path, services in parts.items():
            [(service, calls)] = services.items()
            methods: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
            servers.append(
                UnixServer(self.name, path, [grpc.method_handlers_generic_handler(service, methods)], max_calls=8)
            )
        return servers

    def info(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        versions = ["v1.DRAPlugin", "v9.DRAPlugin", HEALTH[0]]
        path = str(self.endpoint) + next(self._number) % 2 * "/"
        info = registration.PluginInfo(type="Plugin", name=self.name, endpoint=path, supported_versions=versions)
        return info.SerializeToString()

    def prepare(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        answer = dra.NodePrepareResourcesResponse()
        try:
            claims = dra.NodePrepareResourcesRequest.FromString(request).claims
        except DecodeError:
            return b""
        for claim in claims:
            name = f"no name {next(self._number)}"
            answer.claims[claim.uid].devices.add(device_name="gpu-0", pool_name="p", cdi_device_ids=[name])
        return answer.SerializeToString()

    def end(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        answer = dra.NodeUnprepareResourcesResponse()
        try:
            claims = dra.NodeUnprepareResourcesRequest.FromString(request).claims
        except DecodeError:
            return b""
        for claim in claims:
            answer.claims[claim.uid].error = "no"
        return answer.SerializeToString()


async def outcomes(folder: Path, kubelet: StandInKubelet, *, waiting: bool) -> list[str]:
    node = DraNode(folder, kubelet, *simulated(folder, THREE), config=CONFIG)
    async with node.running():
        await node.dra.register()
        await kubelet.until(lambda: len(node.api.devices) == 3)
        bench = Bench(Driver(node.dra.registry), StoredClaims(node.api), NODE, [folder / "cdi"])
        found = await asyncio.to_thread(checked, bench, waiting=waiting)
        print(table(found))
        return [f"{each.what}: {each.seen}" for each in found if each.state == "FAILED"]


async def test_our_driver_is_as_a_kubelet_needs_it(tmp_path: Path, kubelet: StandInKubelet) -> None:
    assert await outcomes(tmp_path, kubelet, waiting=False) == []


@pytest.mark.long
async def test_our_driver_is_as_a_kubelet_needs_it_also_where_it_waits(tmp_path: Path, kubelet: StandInKubelet) -> None:
    assert await outcomes(tmp_path, kubelet, waiting=True) == []


RIGHT_BY_CHANCE = {
    "the endpoint is the absolute path of a socket",
    "the sockets' paths are as short as they must be",
    "a version that kubelets know is supported",
    "a call without claims has an answer without claims",
    "a claim is prepared with its device",
    "a claim whose CDI file has gone keeps its names",
    "each claim of a call has its own answer",
    "and costs no other claim of the call",
    "devices of other drivers in a claim are theirs",
    "a device of another node's pool is not prepared here",
    "its CDI devices have gone",
    "its device goes to the next claim",
    "and its device goes to the next claim",
    "and while it is prepared never its old one",
    "bytes that are no request of NodeNone are refused",
    "odd uids and names write no file elsewhere",
    "and the driver goes on",
    "and holds nothing",
}


async def test_a_careless_driver_is_found_in_what_it_does_wrong(tmp_path: Path) -> None:
    api = FakeDraStore()
    careless = Careless(tmp_path, "Careless_Driver")
    servers = careless.serve()
    for server in servers:
        server.start()
    try:
        bench = Bench(Driver(tmp_path / "registry"), StoredClaims(api), NODE, [tmp_path / "cdi"], ["gpu-0", "gpu-1"])
        found: list[Outcome] = await asyncio.to_thread(run, bench)
    finally:
        for server in servers:
            await server.stop()
    assert {each.what for each in found if each.state != "FAILED"} <= RIGHT_BY_CHANCE
    assert sum(each.state == "FAILED" for each in found) > 20
