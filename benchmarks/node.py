"""The running agent, one container: at rest, in a flood of XIDs, and while its configuration changes.

The flood is 10,000 XIDs a second of eight GPUs, of an application's kind, through the real `nvml` probe (pynvml, the C
library of the tests). Its floor is the same agent without the flood. What changes every second is how containers get
their devices (`deviceListStrategy`): a step that gives every id another answer, and takes none away. CPU is of a core,
user and system time; the kubelet's calls are made one at a time, each after an empty call, which is their floor.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import yaml
from support.held_loop import plugins_socket
from support.kubelet import StandInKubelet
from support.nvml_library import compiled, compiler
from support.running_agent import replace_file

from benchmarks.allocate import both
from benchmarks.offer import GPU, Offer, allocate, prefer
from benchmarks.process import cpu_seconds, free_port
from benchmarks.start import EIGHT, agent_of, children, mig_devices, resident_mib
from benchmarks.table import NotHere, Row

REST_SECONDS = 60.0
FLOOD_SECONDS = 30.0
CHANGES_SECONDS = 20.0
CHANGE_EVERY_SECONDS = 1.0
CALL_EVERY_SECONDS = 0.02  # a kubelet that admits pods, and leaves the agent most of the core
SETTLE_SECONDS = 5.0
LONGEST_SECONDS = 120.0  # until the agent has counted them all
XIDS_PER_SECOND = 10_000
MIG = "nvidia.com/mig-1g.10gb"
MIG_IDS = 128
STRATEGIES = ("envvar", "volume-mounts")
EMPTY = "an empty call to the same agent at the same time"


@dataclass(frozen=True)
class Use:
    """Of the agent's process and of its children, in one stretch of time."""

    agent_cpu: float  # of a core
    children_cpu: float
    mib_before: float
    mib_after: float


def measure() -> list[Row]:
    return asyncio.run(rows())


async def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as name:
        folder = Path(name)
        return [*await at_rest(folder), *await in_a_flood(folder), *await while_it_changes(folder)]


async def at_rest(folder: Path) -> list[Row]:
    """With a pod for each of 128 MIG ids, beside eight GPUs that nobody holds."""
    async with StandInKubelet() as kubelet, agent_of(kubelet, EIGHT) as agent:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        floor = await used(agent.pid, REST_SECONDS)
    async with StandInKubelet() as kubelet, agent_of(kubelet, mig_devices(folder, MIG_IDS)) as agent:
        await kubelet.until(lambda: kubelet.allocatable(MIG) == MIG_IDS)
        for number in range(MIG_IDS):
            await kubelet.allocate(MIG, 1, pod=f"pod-{number}")
        use = await used(agent.pid, REST_SECONDS)
        half = MIG_IDS // 2
        empty, took, preferred = await called(calls(kubelet, MIG), half, CHANGES_SECONDS)
    what = f"{MIG_IDS} MIG ids with a holder each, at rest"
    return [
        *compared(what, use, floor, "eight GPUs without holders, at rest"),
        *both(f"{what}: Allocate", took, empty, floor_is=EMPTY),
        *both(f"{what}: GetPreferredAllocation, {half} ids", preferred, empty, floor_is=EMPTY),
    ]


async def in_a_flood(folder: Path) -> list[Row]:
    by = compiler()
    if by is None:
        raise NotHere("no C compiler: the stand-in for libnvidia-ml.so.1 cannot be built")
    library = compiled(folder / "nvml", by)
    state = folder / "state"
    state.write_text("count=8\n")
    environment = {"LD_LIBRARY_PATH": str(library.parent), "NVML_STATE": str(state)}
    port = free_port()
    flags = ("--probe", "nvml", "--http-address", f"127.0.0.1:{port}")
    async with StandInKubelet() as kubelet, agent_of(kubelet, flags, more=environment) as agent:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        floor = await used(agent.pid, FLOOD_SECONDS)
        total = int(XIDS_PER_SECOND * (SETTLE_SECONDS + FLOOD_SECONDS))
        replace_file(state, f"count=8\nflood={XIDS_PER_SECOND}\nflood_total={total}\n")
        began = time.monotonic()
        use, (empty, took, preferred) = await asyncio.gather(
            used(agent.pid, FLOOD_SECONDS), called(calls(kubelet, GPU), 4, SETTLE_SECONDS + FLOOD_SECONDS)
        )
        while (counted := await asyncio.to_thread(xids, port)) < total and time.monotonic() < began + LONGEST_SECONDS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        until_counted = time.monotonic() - began
        if kubelet.allocatable(GPU) != 8:
            raise RuntimeError("XIDs of an application took GPUs out of service")
    what = f"{XIDS_PER_SECOND} XIDs a second"
    return [
        Row(
            what=f"{what}: counted by the agent, of {total}",
            measured=counted,
            unit="XIDs",
            floor=total,
            floor_is="as many as there were",
        ),
        Row(
            what=f"{what}: until all were counted",
            measured=until_counted,
            unit="s",
            floor=SETTLE_SECONDS + FLOOD_SECONDS,
            floor_is="until all had happened",
        ),
        *compared(what, use, floor, "the same without XIDs"),
        *both(f"{what}: Allocate", took, empty, floor_is=EMPTY),
        *both(f"{what}: GetPreferredAllocation, 4 of 8", preferred, empty, floor_is=EMPTY),
    ]


async def while_it_changes(folder: Path) -> list[Row]:
    file = folder / "config.yaml"
    found = []
    for what, devices, resource, count in (
        ("8 GPUs", EIGHT, GPU, 8),
        (f"{MIG_IDS} MIG ids", mig_devices(folder, MIG_IDS), MIG, MIG_IDS),
    ):
        write_configuration(file, STRATEGIES[0])
        flags = (*devices, "--config-file", str(file))
        async with StandInKubelet() as kubelet, agent_of(kubelet, flags) as agent:
            await kubelet.until(lambda: kubelet.allocatable(resource) == count)  # noqa: B023  awaited here
            async with changing(file):
                use, (empty, took, preferred) = await asyncio.gather(
                    used(agent.pid, CHANGES_SECONDS),
                    called(calls(kubelet, resource), count // 2, SETTLE_SECONDS + CHANGES_SECONDS),
                )
        found += [
            Row(
                what=f"{what}, a change every second: CPU of the agent",
                measured=use.agent_cpu * 100,
                unit="% of a core",
            ),
            *both(f"{what}, a change every second: Allocate", took, empty, floor_is=EMPTY),
            *both(f"{what}, a change every second: GetPreferredAllocation", preferred, empty, floor_is=EMPTY),
        ]
    return found


def xids(port: int) -> float:
    """So many has the agent counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("nodedevices_xids_total{"))


def compared(what: str, use: Use, floor: Use, floor_is: str) -> list[Row]:
    return [
        Row(
            what=f"{what}: CPU of the agent",
            measured=use.agent_cpu * 100,
            unit="% of a core",
            floor=floor.agent_cpu * 100,
            floor_is=floor_is,
        ),
        Row(
            what=f"{what}: CPU of the probe",
            measured=use.children_cpu * 100,
            unit="% of a core",
            floor=floor.children_cpu * 100,
            floor_is=floor_is,
        ),
        Row(
            what=f"{what}: memory of both, after",
            measured=use.mib_after,
            unit="MiB",
            floor=use.mib_before,
            floor_is="before",
        ),
    ]


async def used(pid: int, seconds: float) -> Use:
    """From when it has settled, for so long."""

    def now() -> tuple[float, float]:
        return cpu_seconds(pid), sum(map(cpu_seconds, children(pid)))

    def mib() -> float:
        return resident_mib(pid) + sum(map(resident_mib, children(pid)))

    await asyncio.sleep(SETTLE_SECONDS)
    began, before, mib_before = time.monotonic(), now(), mib()
    await asyncio.sleep(seconds)
    after, took = now(), time.monotonic() - began
    return Use((after[0] - before[0]) / took, (after[1] - before[1]) / took, mib_before, mib())


@contextlib.contextmanager
def opened(path: Path, ids: Sequence[str]) -> Iterator[Offer]:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        yield Offer(str(path), channel, list(ids), lambda: None)


def calls(kubelet: StandInKubelet, resource: str) -> Callable[[], contextlib.AbstractContextManager[Offer]]:
    """What opens a client of the socket of the only resource."""
    path, ids = plugins_socket(kubelet), sorted(kubelet.views[resource].healthy)
    return lambda: opened(path, ids)


async def called(
    client: Callable[[], contextlib.AbstractContextManager[Offer]], size: int, seconds: float
) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of empty calls, Allocates and preferred allocations, made in turn for so long, in a thread."""

    def again_and_again() -> tuple[list[float], list[float], list[float]]:
        empty: list[float] = []
        took: list[float] = []
        preferred: list[float] = []
        with client() as offer:
            made = (
                (offer.empty(), empty),
                (offer.call("Allocate", allocate(offer.ids[:1])), took),
                (offer.call("GetPreferredAllocation", prefer(offer.ids, size)), preferred),
            )
            for call, _ in made:  # the connection is made, the topology known
                call()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for call, into in made:
                    began = time.perf_counter()
                    call()
                    into.append((time.perf_counter() - began) * 1000)
                    time.sleep(CALL_EVERY_SECONDS)
        return empty, took, preferred

    return await asyncio.to_thread(again_and_again)


@contextlib.asynccontextmanager
async def changing(file: Path) -> AsyncIterator[None]:
    """A change every second, during the block."""

    async def change() -> None:
        number = 0
        while True:
            number += 1
            await asyncio.sleep(CHANGE_EVERY_SECONDS)
            write_configuration(file, STRATEGIES[number % len(STRATEGIES)])

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def write_configuration(file: Path, strategy: str) -> None:
    replace_file(file, yaml.safe_dump({"version": "v1", "flags": {"plugin": {"deviceListStrategy": strategy}}}))
