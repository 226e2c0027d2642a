"""A server as the kubelet sees it, in a separate process: the agent's stages from the probe's line to the answer.

    with serving("mig-128") as offer:
        offer.call("Allocate", request)()

A line on the server's standard input changes the health of one device, back and forth, and it shows its new list; that
is how the delivery of a change is measured. The floor of every measurement is an empty unary call to this same server
(PreStartContainer with nothing in it).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import grpc
import yaml
from google.protobuf.message import Message
from msgspec.structs import replace
from nodedevices_api.sections import Injection, Packing, Partitions, Sections, SharedResource, Sharing
from nodedevices_plugin.cores.book import CoreBook
from nodedevices_plugin.granting.answers import Answers, node_containers
from nodedevices_plugin.host.cores import CoreGate
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.kubelet.server import ResourceServer, Serving, snapshot
from nodedevices_plugin.model import Blocked, Inventory, OfferedResource
from nodedevices_plugin.offering.shape import PlanSettings, make_shape
from nodedevices_plugin.pipeline import inventory
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_probe.loop import LineLoop
from nodedevices_probe.simulated.probe import ProfileSource, parse

GPU = "nvidia.com/gpu"
ILL = Blocked(reason="Unhealthy", message="Xid79")
FLOOR_IS = "an empty call to the same server"
CALL_SECONDS = 10
HELD_SECONDS = 3.0
SWITCH_SECONDS = 0.001  # as in the agent
SERVICE = "/v1beta1.DevicePlugin"


@dataclass(frozen=True)
class Case:
    """Simulated devices (docs/simulated-devices.md) and the sections of a policy."""

    devices: dict[str, object]
    sections: Sections = field(default_factory=Sections)


def machine(profile: str) -> dict[str, object]:
    return {"profile": profile}


def mig(gpus: int, each: int) -> dict[str, object]:
    """So many H100s, each with so many of the smallest MIG devices."""
    parts = [{"profile": "1g.10gb"}] * each
    return machine(f"h100 x {gpus}") | {
        "devices": [{"index": number, "migEnabled": True, "mig": parts} for number in range(gpus)]
    }


def shares(replicas: int) -> Sections:
    return Sections(sharing=Sharing(strategy="timeSlicing", resources=(SharedResource(name=GPU, replicas=replicas),)))


def by_memory(unit: str, packing: Packing = "binpack") -> Sections:
    rule = SharedResource(name=GPU, memory_unit=unit, packing=packing)
    return Sections(sharing=Sharing(strategy="memory", resources=(rule,)))


def h200s() -> dict[str, object]:
    """Eight of 141 GiB."""
    return machine("h100 x 8") | {"devices": [{"index": number, "memoryBytes": 141 << 30} for number in range(8)]}


CASES = {
    "switch-8": Case(machine("a100 x 8")),  # every pair is as near as every other
    "pairs-8": Case(machine("h100nvl x 8")),  # NVLink in pairs, two sockets: sets differ
    "pairs-16": Case(machine("h100nvl x 16")),
    "shares-8x16": Case(machine("a100 x 8"), shares(16)),
    "shares-8x64": Case(machine("a100 x 8"), shares(64)),
    "memory-1128": Case(h200s(), by_memory("1Gi")),
    "memory-4512": Case(h200s(), by_memory("256Mi")),
    "memory-8192": Case(h200s(), by_memory("141Mi")),
    "mig-128": Case(mig(32, 4), Sections(partitions=Partitions(strategy="mixed"))),
}


@dataclass(frozen=True)
class Offer:
    """What a client has: the socket, a channel to it, the ids that are offered, and the server's hand."""

    path: str
    channel: grpc.Channel
    ids: list[str]
    change: Callable[[], object]  # one device's health, back and forth
    hold: Callable[[], object] = lambda: None  # the server's event loop, by force, for HELD_SECONDS

    def call(self, method: str, request: Message) -> Callable[[], object]:
        """A blocking call, encoded beforehand; what comes back is not decoded."""
        encoded = request.SerializeToString()
        call = self.channel.unary_unary(f"{SERVICE}/{method}", request_serializer=bytes, response_deserializer=bytes)
        return lambda: call(encoded, timeout=CALL_SECONDS)

    def empty(self) -> Callable[[], object]:
        """The floor."""
        return self.call("PreStartContainer", api.PreStartContainerRequest())

    def watch(self) -> Iterator[bytes]:
        """ListAndWatch, message by message, not decoded. Close it when done."""
        stream = self.channel.unary_stream(
            f"{SERVICE}/ListAndWatch", request_serializer=bytes, response_deserializer=bytes
        )(b"", timeout=60)
        try:
            yield from stream
        finally:
            stream.cancel()


def allocate(ids: Sequence[str]) -> api.AllocateRequest:
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])


def prefer(available: Sequence[str], size: int) -> api.PreferredAllocationRequest:
    wanted = api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
    return api.PreferredAllocationRequest(container_requests=[wanted])


def timed(calls: dict[str, Callable[[], object]], *, rounds: int, warm_up: int = 100) -> dict[str, list[float]]:
    """Milliseconds. The calls are made in turn, so that whatever else the machine does falls on all of them alike."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warm_up + rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if number >= warm_up:
                took[name].append((time.perf_counter() - began) * 1000)
    return took


@contextlib.contextmanager
def serving(case: str) -> Iterator[Offer]:
    """The server's process, gone after the block."""
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.offer", folder, case]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            say = process.stdin.write
            try:
                path = process.stdout.readline().decode().strip()
                if not path:
                    raise RuntimeError(f"{' '.join(command)} ended before it served")
                with grpc.insecure_channel(f"unix:{path}") as channel:
                    offer = Offer(path, channel, [], lambda: say(b"\n") and None, lambda: say(b"hold\n") and None)
                    watching = offer.watch()
                    offered = api.ListAndWatchResponse.FromString(next(watching)).devices
                    watching.close()  # type: ignore[attr-defined]  # a generator
                    yield dataclasses.replace(offer, ids=[each.ID for each in offered])
            finally:
                process.kill()


# --- the server's process -------------------------------------------------------------------------------------------
def offered(case: Case) -> tuple[OfferedResource, Answers]:
    """The agent's stages, from a probe's line to what answers the kubelet."""
    lines: list[bytes] = []
    state = parse(yaml.safe_dump(case.devices).encode(), node="bench")
    LineLoop(source=ProfileSource(state=state), write=lines.append).once()
    now = datetime.now(UTC)
    devices = inventory.update(Inventory(), parse_line(lines[0]), now=now, monotonic=time.monotonic())
    plan = make_shape(devices, PlanSettings.from_sections(case.sections))
    answers = Answers(recent=RecentAllocations())
    answers.use(plan, devices, node_containers(devices, case.sections.injection or Injection()))
    [resource] = plan.resources
    return resource, answers


def with_one_ill(resource: OfferedResource) -> OfferedResource:
    first = resource.ids[0].device_id
    ids = tuple(replace(each, blocked=ILL if each.device_id == first else None) for each in resource.ids)
    return replace(resource, ids=ids)


async def _never(*_: object) -> NoReturn:
    raise NotImplementedError


async def serve(folder: Path, case: Case) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    resource, answers = offered(case)
    states = [with_one_ill(resource), resource]
    recent = RecentAllocations()
    observe = AgentMetrics(facts=lambda: None, probes=dict).kubelet_called
    shown = snapshot(resource)
    gate = CoreGate(CoreBook(), holdings=_never, write=_never)  # no computing power is shared: it never waits
    serving = Serving(
        folder=folder, offer=answers, recent=recent, observe=observe, on_allocated=lambda: None, gate=gate
    )
    server = ResourceServer(resource.name, shown, serving)
    server.socket.start()
    print(server.socket.path, flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        if line == b"hold\n":
            free = time.monotonic() + HELD_SECONDS
            while time.monotonic() < free:
                pass
            continue
        server.show(snapshot(states[0]))
        states.reverse()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), CASES[sys.argv[2]]))
