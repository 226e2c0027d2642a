"""How fast the agent is there, and how much memory it and its probe keep: the real command, a stand-in kubelet.

The floor is the least that a device plugin in Python can be: an interpreter that imports grpc and calls Register.
Once with eight GPUs and once with 128 MIG devices. Memory is resident (VmRSS) of the agent's process and, beside it, of
all its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml
from support.kubelet import StandInKubelet

from benchmarks.offer import GPU, mig
from benchmarks.process import cpu_seconds
from benchmarks.table import Row

RUNS = 5
EIGHT = ("--simulated-profile", "h100 x 8")
SETTLE_SECONDS = 3.0
DEADLINE_SECONDS = 30.0
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
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    direct = [int(one) for one in listed]
    return direct + [below for one in direct for below in children(one)]


@contextlib.asynccontextmanager
async def agent_of(kubelet: StandInKubelet, devices: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """`nodedevices-agent` with simulated devices and no API server, ended after the block."""
    agent = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("nodedevices-agent"),
        *("--standalone", "--node-name", "bench", "--probe", "simulated", *devices),
        *("--device-plugin-dir", str(kubelet.plugin_folder), "--http-address", "off", "--health-address", "off"),
        *("--pod-resources-socket", str(kubelet.pod_resources_socket)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
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


async def start_with_mig() -> Start:
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as folder:
        file = Path(folder) / "devices.yaml"
        file.write_text(yaml.safe_dump(mig(32, 4)))
        devices = ("--simulated-file", str(file), "--mig-strategy", "mixed")
        return await start_agent(devices, resource="nvidia.com/mig-1g.10gb", count=128)


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
    agents = [asyncio.run(start_agent()) for _ in range(RUNS)]
    floors = [asyncio.run(start_floor()) for _ in range(RUNS)]
    floor_mib = median(one.agent_mib for one in floors)
    many = [asyncio.run(start_with_mig()) for _ in range(RUNS)]
    is_ = "a Python process that imports grpc and calls Register"
    return [
        Row(
            what="agent start -> kubelet has 8 GPUs, median",
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
            what="memory of agent and probe, resident, median",
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
