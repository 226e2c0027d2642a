"""The whole agent in this process, on the stand-in kubelet, its NodeDevices in memory; its probes are processes.

One that flags want for simulated devices is a fork (preloaded) behind a socket: the agent itself would start a new
interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from nodedevices_plugin.agent import Agent
from nodedevices_plugin.settings.options import OPERATOR_WAIT_SECONDS, Local
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_probe.simulated import SIMULATED as KIND
from support.fakestore import FakeStore
from support.kubelet import StandInKubelet
from support.local import at_once
from support.preloaded import fork

SIMULATED, OPTION = "--probe=simulated", "--simulated="
QUIET = {"NODEDEVICES_HEALTH_ADDRESS": "off"}
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
            f"--kubelet-dir={kubelet.root}",
            f"--cdi-spec-dirs={folder / 'cdi'}",
            "--http-address=off",
            *arguments,
        ]

    def agent(self, local: Local) -> Agent:
        return Agent(local, store=self.store, hardware=lambda: dict(self.hardware))

    @contextlib.asynccontextmanager
    async def running(self, *more: str, wait_seconds: float = OPERATOR_WAIT_SECONDS) -> AsyncIterator[Self]:
        with self._simulated() as arguments:
            local = at_once([*arguments, *more], QUIET, self.vendors, wait_seconds=wait_seconds)
            task = asyncio.create_task(self.agent(local).run())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @contextlib.contextmanager
    def _simulated(self) -> Iterator[list[str]]:
        """The agent's arguments, and a probe where they want one of simulated devices."""
        if SIMULATED not in self.arguments:
            yield self.arguments
            return
        listens = f"unix:{self.kubelet.root / 'simulated.sock'}"
        [value] = [each.removeprefix(OPTION) for each in self.arguments if each.startswith(OPTION)]
        others = [each for each in self.arguments if not each.startswith(OPTION)]
        given = [*KIND.arguments({"simulated": value, "node-name": NODE}), f"--listen={listens}"]
        probe = fork("nodedevices_probe.main", given, os.environ, self.folder / "probe.log")
        try:
            yield [f"{each}={listens}" if each == SIMULATED else each for each in others]
        finally:
            probe.kill()
            probe.wait()

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
    return SIMULATED, f"{OPTION}{file}"


def replace_file(file: Path, text: str) -> None:
    """As a ConfigMap's update: whole."""
    new = file.with_name(f"new-{file.name}")
    new.write_text(text)
    new.replace(file)
