"""One vector played to the real agent: its process on simulated devices, called by the stand-in kubelet as recorded.

What comes back has the golden's shape, with one `answer` a scenario where the golden has the distinct `answers` that
were seen. Nothing is judged here: `equal` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from conformance.nvidia_device_plugin.differences import DIFFERENCES
from conformance.nvidia_device_plugin.host import Host, devices_file
from conformance.nvidia_device_plugin.vectors import Vector
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from support.agentprocess import AgentProcess, agent_on
from support.kubelet import Owner, StandInKubelet
from support.patience import PATIENCE_SECONDS

QUIET_SECONDS = 3.0  # after which the recorded plugin counted as one that does not register
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(frozen=True)
class Observed:
    """What the agent did. `resources`, `then`, `cdi_specs`: as in a golden."""

    alive: bool = False
    resources: list[dict[str, Any]] = field(default_factory=list)
    then: list[dict[str, Any]] = field(default_factory=list)
    cdi_specs: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def registered(self) -> bool:
        return bool(self.resources)


async def play(vector: Vector) -> Observed:
    with tempfile.TemporaryDirectory(prefix="nd-vector-") as name:
        folder = Path(name)
        host = Host(vector, folder)
        async with StandInKubelet(folder) as kubelet:
            agent = agent_on(
                kubelet,
                folder,
                devices=devices_file(vector, struck=False),
                arguments=("--standalone", *host.arguments),
                environment=host.environment,
                # What the recorded plugin's nvidia-ctk found on its host is not here.
                variables={"NODEDEVICES_CDI_WITHOUT_LIBRARIES": "true"},
                mps_dir=str(folder / "mps"),
            )
            if host.mps is not None:
                host.mps.start()
            agent.start()
            try:
                return await _Play(vector, host, kubelet, agent).run()
            finally:
                agent.kill()
                if host.mps is not None:
                    host.mps.kill()


class _Play:
    def __init__(self, vector: Vector, host: Host, kubelet: StandInKubelet, agent: AgentProcess) -> None:
        self.vector, self.host, self.kubelet, self.agent = vector, host, kubelet, agent

    async def run(self) -> Observed:
        if self.vector.registered:
            expected = {each["resource_name"] for each in self.vector.resources}
            await self._wait(lambda: expected <= self._connected() or not self.agent.alive, PATIENCE_SECONDS)
        else:
            await self._wait(lambda: self.agent.lines("probe started") or not self.agent.alive, PATIENCE_SECONDS)
            patience = PATIENCE_SECONDS if self.vector.quirky("outcome") else QUIET_SECONDS  # the agent does register
            await self._wait(lambda: self._connected() or not self.agent.alive, patience)
        resources = [await self._resource(name) for name in sorted(self._connected())]
        by_name = {each["resource_name"]: each for each in self.vector.resources}
        await self._query(resources, by_name, late=False)
        if self.vector.watch_seconds:
            await self._watch(resources)
            await self._query(resources, by_name, late=True)
        specs = self.host.cdi_specs()
        then = [await self._then(step) for step in self.vector.then]
        return Observed(
            alive=self.agent.alive, resources=resources, then=then, cdi_specs=specs, log=self.agent.log.read_text()
        )

    async def _wait(self, condition: Any, patience: float) -> None:
        """For the condition, or for as long as that: what is there then is what is compared."""
        with contextlib.suppress(AssertionError):
            await self.kubelet.until(condition, patience=patience)

    def _connected(self) -> set[str]:
        return {name for name in list(self.kubelet.views) if self.kubelet.connected(name)}

    def _devices(self, name: str) -> list[dict[str, Any]]:
        devices = self.kubelet.views[name].devices
        return [
            {
                "id": each.ID,
                "health": each.health,
                "numa": [node.ID for node in each.topology.nodes] if each.HasField("topology") else None,
            }
            for _, each in sorted(devices.items())
        ]

    async def _resource(self, name: str) -> dict[str, Any]:
        request = next(each for each in reversed(self.kubelet.registered) if each.resource_name == name)
        options = await self._call(name, "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        return {
            "resource_name": name,
            "version": request.version,
            "endpoint_is_basename": "/" not in request.endpoint,
            "register_options": _options(request.options),
            "options": _options(options),
            "devices": self._devices(name),
            "scenarios": [],
        }

    # --- asking -----------------------------------------------------------------------------------------------------
    async def _query(self, resources: list[dict[str, Any]], by_name: dict[str, dict[str, Any]], *, late: bool) -> None:
        for resource in resources:
            name = resource["resource_name"]
            for scenario in by_name.get(name, {"scenarios": ()})["scenarios"]:
                if scenario.get("late", False) == late:
                    answer = await self._scenario(name, scenario)
                    resource["scenarios"].append({"name": scenario["name"], "op": scenario["op"], "answer": answer})

    async def _scenario(self, resource: str, scenario: dict[str, Any]) -> dict[str, Any]:
        request = scenario["request"]
        try:
            if scenario["op"] == "allocate":
                message = api.AllocateRequest(
                    container_requests=[api.ContainerAllocateRequest(devices_ids=ids) for ids in request]
                )
                reply = await self._call(resource, "Allocate", message, api.AllocateResponse)
                for number, ids in enumerate(request):
                    owner = Owner("default", f"{resource}-{scenario['name']}", str(number))
                    self.kubelet.allocated[owner] = {resource: tuple(ids)}
                return {"containers": [_container(each) for each in reply.container_responses]}
            if scenario["op"] == "preferred":
                wanted = api.PreferredAllocationRequest(
                    container_requests=[
                        api.ContainerPreferredAllocationRequest(
                            available_deviceIDs=each["available"],
                            must_include_deviceIDs=each["must_include"],
                            allocation_size=each["size"],
                        )
                        for each in request
                    ]
                )
                reply = await self._call(resource, "GetPreferredAllocation", wanted, api.PreferredAllocationResponse)
                return {"containers": [{"ids": list(each.deviceIDs)} for each in reply.container_responses]}
            start = api.PreStartContainerRequest(devices_ids=request)
            await self._call(resource, "PreStartContainer", start, api.PreStartContainerResponse)
        except grpc.aio.AioRpcError as error:
            return {"error": {"code": error.code().name, "message": error.details()}}
        return {"ok": True}

    async def _call(self, resource: str, method: str, request: Any, reply: Any) -> Any:
        registered = next(each for each in reversed(self.kubelet.registered) if each.resource_name == resource)
        target = f"unix:{self.kubelet.plugin_folder / registered.endpoint}"
        async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}", _encode, reply.FromString)
            return await call(request, timeout=PATIENCE_SECONDS)

    # --- faults and what comes afterwards ---------------------------------------------------------------------------
    async def _watch(self, resources: list[dict[str, Any]]) -> None:
        """The faults, now, and the lists as long afterwards as they were recorded after theirs."""
        faults = [each["fault"] for each in self.vector.inventory["devices"] if "fault" in each]
        recorded = min(value for fault in faults for key, value in fault.items() if key.endswith("_after_ms")) / 1000
        parts = DIFFERENCES[self.vector.name].parts if self.vector.name in DIFFERENCES else ()
        right = self.vector.unhealthy_after_watch
        before = self._lines()
        self.agent.edit(devices_file(self.vector, struck=True))
        await asyncio.sleep(self.vector.watch_seconds - recorded)
        # Of three lines one is about the faults, unless they waited in the pipe of a busy machine.
        await self._wait(
            lambda: self._lines() >= before + 3 and ("after_watch" in parts or set(self._unhealthy()) == right),
            PATIENCE_SECONDS,
        )
        for resource in resources:
            devices = self._devices(resource["resource_name"])
            resource["after_watch"] = {"seconds": self.vector.watch_seconds, "devices": devices}

    def _lines(self) -> float:
        """How many the agent has read of its probe, which says one a second."""
        lines = self.agent.get("/metrics")[1].splitlines()
        return sum(float(each.rsplit(" ", 1)[1]) for each in lines if each.startswith("nodedevices_probe_lines_total"))

    async def _end_pods(self) -> None:
        """The pods of the scenarios are over, once the agent has seen them."""
        seen = self.kubelet.lists
        if self.kubelet.allocated:
            await self._wait(lambda: self.kubelet.lists > seen, PATIENCE_SECONDS)
            self.kubelet.allocated.clear()

    async def _then(self, step: dict[str, Any]) -> dict[str, Any]:
        if step["do"] == "kubelet_restart":
            await self.kubelet.restart()
        else:
            if "config_file" in step:
                await self._end_pods()  # what pods hold otherwise is withheld until they have ended
                self.host.configure(step["config_file"])
            if self.agent.process is not None and self.agent.alive:
                self.agent.process.send_signal(signal.SIGHUP)
        expected = step["resources"] or {each["resource_name"]: [] for each in self.vector.resources}

        def settled() -> bool:
            return self._connected() == set(expected) and self._unhealthy() == step["unhealthy"]

        await self._wait(lambda: settled() or not self.agent.alive, PATIENCE_SECONDS)
        shown = {name: self._devices(name) for name in sorted(self._connected())}
        return {
            "do": step["do"],
            "alive": self.agent.alive,
            "resources": {name: [each["id"] for each in devices] for name, devices in shown.items()},
            "unhealthy": self._unhealthy(),
        }

    def _unhealthy(self) -> list[str]:
        shown = [each for name in self._connected() for each in self._devices(name)]
        return sorted(each["id"] for each in shown if each["health"] != "Healthy")


def _options(options: Any) -> dict[str, bool]:
    return {
        "pre_start_required": options.pre_start_required,
        "get_preferred_allocation_available": options.get_preferred_allocation_available,
    }


def _container(answer: Any) -> dict[str, Any]:
    return {
        "envs": dict(answer.envs),
        "mounts": [
            {"container_path": each.container_path, "host_path": each.host_path, "read_only": each.read_only}
            for each in answer.mounts
        ],
        "devices": [
            {"container_path": each.container_path, "host_path": each.host_path, "permissions": each.permissions}
            for each in answer.devices
        ],
        "annotations": {_UUID.sub("<uuid>", key): value for key, value in answer.annotations.items()},
        "cdi_devices": [each.name for each in answer.cdi_devices],
    }


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def play_all(vectors: list[Vector], *, at_once: int) -> dict[str, Observed]:
    """Every vector played, several at once."""

    async def run() -> dict[str, Observed]:
        waiting: Iterator[Vector] = iter(vectors)
        found: dict[str, Observed] = {}

        async def worker() -> None:
            for vector in waiting:
                try:
                    found[vector.name] = await play(vector)
                except Exception:  # this case fails and says why; the others are played
                    found[vector.name] = Observed(log=traceback.format_exc())

        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(worker())
        return found

    return asyncio.run(run())
