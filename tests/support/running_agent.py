"""The whole agent in this process, on the stand-in kubelet, its NodeDevices in memory; its probes are processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

from nodedevices_plugin.agent import Agent
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from support.fakestore import FakeStore
from support.kubelet import StandInKubelet

NODE = "node-a"
Json = dict[str, Any]


class RunningAgent:
    """`running` any number of times, one after the other, on the same folders. `config`: of its object's spec."""

    def __init__(
        self,
        folder: Path,
        kubelet: StandInKubelet,
        *arguments: str,
        config: Mapping[str, Any] | None = None,
        hardware: Mapping[str, str] | None = None,
        vendors: Vendors = VENDORS,
    ) -> None:
        self.vendors = vendors
        self.folder = folder
        self.kubelet = kubelet
        spec = {"config": dict(config or {})}
        self.store = FakeStore(item={"metadata": {"name": NODE, "uid": "u", "generation": 1}, "spec": spec})
        self.hardware = hardware or {}
        self.arguments = [
            f"--node-name={NODE}",
            f"--device-plugin-dir={kubelet.plugin_folder}",
            f"--pod-resources-socket={kubelet.pod_resources_socket}",
            f"--cdi-dir={folder / 'cdi'}",
            "--http-address=off",
            "--health-address=off",
            "--operator-wait-seconds=15",
            *arguments,
        ]

    def agent(self, local: Local) -> Agent:
        return Agent(local, store=self.store, hardware=lambda: dict(self.hardware))

    @contextlib.asynccontextmanager
    async def running(self, *more: str) -> AsyncIterator[Self]:
        task = asyncio.create_task(self.agent(parse([*self.arguments, *more], {}, self.vendors)).run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def status(self) -> Json:
        """As it was written last."""
        return self.store.statuses[-1] if self.store.statuses else {}

    @property
    def devices(self) -> dict[str, Json]:
        return {each["name"]: each for each in self.status.get("devices", ())}

    def condition(self, kind: str) -> tuple[str, str]:
        """Its reason and its message."""
        found = [each for each in self.status.get("conditions", ()) if each["type"] == kind]
        return (found[0]["reason"], found[0].get("message", "")) if found else ("", "")


def simulated(folder: Path, devices: str) -> tuple[str, ...]:
    """The arguments for these devices in a file."""
    file = folder / "devices.yaml"
    file.write_text(devices)
    return "--probe=simulated", f"--simulated-file={file}"


def replace_file(file: Path, text: str) -> None:
    """As a ConfigMap's update: whole."""
    new = file.with_name(f"new-{file.name}")
    new.write_text(text)
    new.replace(file)
