"""How fast the agent is there, and how much memory it and its probe keep: the real command, a stand-in kubelet.

The floor is the least that a device plugin in Python can be: an interpreter that imports grpc and calls Register.
With eight GPUs: beside a probe server, as in the pod's two containers, and with the agent's own child, as outside a
cluster. With 128 MIG devices in the second form. Memory is resident (VmRSS) of the agent's process and of its
children; of a server and its probe, which share pages, it is their part of each page (Pss).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

import yaml
from support.kubelet import StandInKubelet

from benchmarks.offer import GPU, mig
from benchmarks.process import cpu_seconds
from benchmarks.table import Row

RUNS = 5
EIGHT = ("--probe", "simulated", "--simulated", "h100 x 8")
SETTLE_SECONDS = 3.0
DEADLINE_SECONDS = 30.0
RELEASED = Path(__file__).with_name("released")  # in the place of packages that only development has
FLOOR = """
import sys, time, grpc
channel = grpc.insecure_channel("unix://" + sys.argv[1])
call = channel.unary_unary("/v1beta1.Registration/Register", request_serializer=bytes, response_deserializer=bytes)
try:
    call(b"", timeout=5)
except grpc.RpcError:
    pass
print("called", flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True)
class Start:
    seconds: float  # from the command to the kubelet's open stream
    cpu_seconds: float  # of all its processes until then
    agent_mib: float
    children_mib: float


def resident_mib(pid: int) -> float:
    return _kib(Path(f"/proc/{pid}/status"), "VmRSS") / 1024


def proportional_mib(pid: int) -> float:
    """A page that several processes have counts in parts."""
    return _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss") / 1024


def _kib(file: Path, key: str) -> int:
    return next((int(each.split()[1]) for each in file.read_text().splitlines() if each.startswith(f"{key}:")), 0)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    direct = [int(one) for one in listed]
    return direct + [below for one in direct for below in children(one)]


def as_released() -> dict[str, str]:
    """The variables of a process that loads what a release does, and nothing of `requirements/dev.lock`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(RELEASED), os.environ.get("PYTHONPATH"))))}


@contextlib.asynccontextmanager
async def server_of(folder: Path) -> AsyncIterator[tuple[Path, asyncio.subprocess.Process]]:
    """`nodedevices-probe serve`, listening, ended after the block."""
    path = folder / "probes.sock"
    server = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("nodedevices-probe"),
        *("serve", "--listen", f"unix:{path}", "--health-address", "off"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=as_released(),
    )
    try:
        while not path.is_socket():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        yield path, server
    finally:
        server.send_signal(signal.SIGTERM)
        await server.wait()


@contextlib.asynccontextmanager
async def agent_of(
    kubelet: StandInKubelet,
    devices: Sequence[str],
    server: Path | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`nodedevices-agent` with these devices (flags) and no API server, ended after the block. `more`: variables."""
    quiet = {"NODEDEVICES_HEALTH_ADDRESS": "off"}
    served = {"NODEDEVICES_PROBE_SERVER": f"unix:{server}"} if server else {}
    environment = {**as_released(), **quiet, **more, **served}
    agent = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("nodedevices-agent"),
        *("--standalone", "--node-name", "bench", "--http-address", "off"),
        *("--kubelet-dir", str(kubelet.root)),
        *devices,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        yield agent
    finally:
        agent.send_signal(signal.SIGTERM)
        await agent.wait()


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[StandInKubelet]:
    """The kubelet of an agent with eight GPUs, once it has them."""
    async with StandInKubelet() as kubelet, agent_of(kubelet, EIGHT):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        yield kubelet


async def start_agent(devices: Sequence[str] = EIGHT, *, resource: str = GPU, count: int = 8) -> Start:
    """One start of the agent."""
    async with StandInKubelet() as kubelet:
        began = time.monotonic()
        async with agent_of(kubelet, devices) as agent:
            await kubelet.until(lambda: kubelet.allocatable(resource) == count)
            took = time.monotonic() - began
            used = sum(cpu_seconds(one) for one in (agent.pid, *children(agent.pid)))
            await asyncio.sleep(SETTLE_SECONDS)
            below = sum(resident_mib(one) for one in children(agent.pid))
            return Start(took, used, resident_mib(agent.pid), below)


async def start_served() -> Start:
    """One start of the agent beside a probe server that is there."""
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as folder:
        async with StandInKubelet() as kubelet, server_of(Path(folder)) as (path, server):
            began = time.monotonic()
            async with agent_of(kubelet, EIGHT, path) as agent:
                await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
                took = time.monotonic() - began
                used = sum(cpu_seconds(one) for one in (agent.pid, *children(server.pid)))
                await asyncio.sleep(SETTLE_SECONDS)
                below = sum(proportional_mib(one) for one in (server.pid, *children(server.pid)))
                return Start(took, used, resident_mib(agent.pid), below)


def mig_devices(folder: Path, count: int) -> tuple[str, ...]:
    """Arguments for so many MIG ids, four of each GPU."""
    file = folder / "mig.yaml"
    file.write_text(yaml.safe_dump(mig(count // 4, 4)))
    return ("--probe", "simulated", "--simulated", str(file), "--mig-strategy", "mixed")


async def start_with_mig() -> Start:
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as folder:
        return await start_agent(mig_devices(Path(folder), 128), resource="nvidia.com/mig-1g.10gb", count=128)


async def start_floor() -> Start:
    async with StandInKubelet() as kubelet:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FLOOR, str(kubelet.socket), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(DEADLINE_SECONDS):
                await process.stdout.readline()
            took = time.monotonic() - began
            return Start(took, cpu_seconds(process.pid), resident_mib(process.pid), 0.0)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()


def measure() -> list[Row]:
    served = [asyncio.run(start_served()) for _ in range(RUNS)]
    agents = [asyncio.run(start_agent()) for _ in range(RUNS)]
    floors = [asyncio.run(start_floor()) for _ in range(RUNS)]
    floor_mib = median(one.agent_mib for one in floors)
    many = [asyncio.run(start_with_mig()) for _ in range(RUNS)]
    is_ = "a Python process that imports grpc and calls Register"
    return [
        Row(
            what="two containers: agent start -> kubelet has 8 GPUs, median",
            measured=median(one.seconds for one in served),
            unit="s",
            floor=median(one.seconds for one in floors),
            floor_is=is_,
        ),
        Row(
            what="  CPU of agent and probe until then, the least",
            measured=min(one.cpu_seconds for one in served),
            unit="s",
            floor=min(one.cpu_seconds for one in floors),
            floor_is=is_,
        ),
        Row(
            what="  memory of agent, server and probe, median",
            measured=median(one.agent_mib + one.children_mib for one in served),
            unit="MiB",
            target=75,
            floor=floor_mib,
            floor_is=is_,
        ),
        Row(what="  of which server and probe", measured=median(one.children_mib for one in served), unit="MiB"),
        Row(
            what="one container: agent start -> kubelet has 8 GPUs, median",
            measured=median(one.seconds for one in agents),
            unit="s",
            target=1.5,
            floor=median(one.seconds for one in floors),
            floor_is=is_,
        ),
        Row(
            what="  CPU of agent and probe until then, the least",
            measured=min(one.cpu_seconds for one in agents),
            unit="s",
            floor=min(one.cpu_seconds for one in floors),
            floor_is=is_,
        ),
        Row(
            what="  memory of agent and probe, resident, median",
            measured=median(one.agent_mib + one.children_mib for one in agents),
            unit="MiB",
            target=110,
            floor=floor_mib,
            floor_is=is_,
        ),
        Row(what="  of which the probe", measured=median(one.children_mib for one in agents), unit="MiB"),
        Row(
            what="agent start -> kubelet has 128 MIG ids, median",
            measured=median(one.seconds for one in many),
            unit="s",
            floor=median(one.seconds for one in floors),
            floor_is=is_,
        ),
        Row(
            what="memory with 128 MIG ids on 32 GPUs, median",
            measured=median(one.agent_mib + one.children_mib for one in many),
            unit="MiB",
            floor=floor_mib,
            floor_is=is_,
        ),
    ]
