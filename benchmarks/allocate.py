"""Allocate and GetPreferredAllocation through gRPC, as the kubelet calls them: one at a time, over a unix socket.

GetPreferredAllocation's target for 4 of 8, 2.27 ms, is what NVIDIA's plugin v0.20.0 takes on the same kind of machine.
For preferred allocation every size is measured, with all GPUs free and with a fragmented half of them; what is shown is
the size that took longest. Sixteen callers at once are more than a kubelet ever is: it admits one pod after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median

import grpc.aio
from support.held_loop import plugins_socket

from benchmarks import start
from benchmarks.offer import (
    CALL_SECONDS,
    FLOOR_IS,
    GPU,
    HELD_SECONDS,
    SERVICE,
    Offer,
    allocate,
    prefer,
    serving,
    timed,
)
from benchmarks.table import Row, percentile

CALLS = ("Allocate", "GetPreferredAllocation")
ROUNDS = 2000
ROUNDS_EACH_SIZE = 150
ROUNDS_HELD = 500
SETTLE_SECONDS = 0.2  # until the loop is held
BURST = 2000
CALLERS = 16
ROUNDS_EACH_CALLER = 100
TARGET_MS = 5.0
PREFERRED_TARGET_MS = 2.27


def measure() -> list[Row]:
    """Milliseconds."""
    rows = []
    with serving("switch-8") as offer:
        rows += one_at_a_time(offer, preferred_target=PREFERRED_TARGET_MS)
        rows += together(offer)
    with serving("mig-128") as offer:
        rows += while_held(offer)
    with serving("shares-8x16") as offer:
        rows += one_at_a_time(offer, preferred_target=None)
    for case in ("memory-1128", "memory-4512", "memory-8192"):
        with serving(case) as offer:
            rows += by_memory(offer)
    for case, name in (("switch-8", "8 behind a switch"), ("pairs-8", "8 in pairs"), ("pairs-16", "16 in pairs")):
        with serving(case) as offer:
            rows += every_size(offer, f"{name}, all free", offer.ids)
            rows += every_size(offer, f"{name}, every third taken", [x for at, x in enumerate(offer.ids) if at % 3])
    return [*rows, *in_the_agent()]


def in_the_agent() -> list[Row]:
    """The running agent, with its loop and everything that an Allocate sets off there: a burst of a kubelet that admits
    pod after pod, and one of empty calls."""
    floor, took = asyncio.run(bursts())
    what = f"Allocate in the running agent, {BURST} in a row"
    return both(what, took, floor, floor_is="as many empty calls to the same agent")


async def bursts() -> tuple[list[float], list[float]]:
    """Milliseconds of every call: the empty ones, and Allocate."""
    async with start.running() as kubelet:
        path = plugins_socket(kubelet)
        ids = sorted(kubelet.views[GPU].healthy)
        with grpc.insecure_channel(f"unix:{path}") as channel:
            offer = Offer(str(path), channel, ids, lambda: None)
            empty, one = offer.empty(), offer.call("Allocate", allocate(ids[:1]))
            floor = await asyncio.to_thread(timed, {"": empty}, rounds=BURST)
            took = await asyncio.to_thread(timed, {"": one}, rounds=BURST)
    return floor[""], took[""]


def while_held(offer: Offer) -> list[Row]:
    """The server's event loop computes for seconds, and does nothing else: the answers, beside empty calls meanwhile,
    and an empty call meanwhile beside one with an idle loop."""
    calls = {
        "an empty call": offer.empty(),
        "Allocate": offer.call("Allocate", allocate(offer.ids[:1])),
        "GetPreferredAllocation": offer.call("GetPreferredAllocation", prefer(offer.ids, len(offer.ids) // 2)),
    }
    idle = timed({"": offer.empty()}, rounds=ROUNDS_HELD)[""]
    offer.hold()
    time.sleep(SETTLE_SECONDS)
    took: dict[str, list[float]] = {name: [] for name in calls}
    until = time.monotonic() + HELD_SECONDS - 2 * SETTLE_SECONDS
    while time.monotonic() < until:
        for name, found in timed(calls, rounds=1, warm_up=0).items():
            took[name] += found
    empty = took.pop("an empty call")
    held = "while the event loop is held"
    rows = both(f"an empty call {held}", empty, idle, p99_target=None, floor_is="the same with an idle event loop")
    for name, found in took.items():
        rows += both(f"{name} {held}", found, empty, floor_is=f"an empty call {held}")
    return rows


def one_at_a_time(offer: Offer, *, preferred_target: float | None) -> list[Row]:
    count = len(offer.ids)
    allocated, preferred = f"Allocate, {count} of {count} ids", f"GetPreferredAllocation, {count // 2} of {count} ids"
    took = timed(
        {
            "floor": offer.empty(),
            allocated: offer.call("Allocate", allocate(offer.ids)),
            preferred: offer.call("GetPreferredAllocation", prefer(offer.ids, count // 2)),
        },
        rounds=ROUNDS,
    )
    return [
        *both(allocated, took[allocated], took["floor"]),
        *both(preferred, took[preferred], took["floor"], p50_target=preferred_target),
    ]


def by_memory(offer: Offer) -> list[Row]:
    """An eighth of a GPU, where every share is free; Allocate gets shares of one GPU, or it refuses."""
    size = len(offer.ids) // 64
    allocated, preferred = (f"{call}, {size} of {len(offer.ids)} shares of memory" for call in CALLS)
    took = timed(
        {
            "floor": offer.empty(),
            allocated: offer.call("Allocate", allocate(offer.ids[:size])),
            preferred: offer.call("GetPreferredAllocation", prefer(offer.ids, size)),
        },
        rounds=ROUNDS_EACH_SIZE,
    )
    return [row for what in (allocated, preferred) for row in both(what, took[what], took["floor"])]


def every_size(offer: Offer, name: str, available: Sequence[str]) -> list[Row]:
    """The slowest size of 1 to all."""
    calls = {
        str(size): offer.call("GetPreferredAllocation", prefer(available, size))
        for size in range(1, len(available) + 1)
    }
    took = timed({"floor": offer.empty(), **calls}, rounds=ROUNDS_EACH_SIZE, warm_up=20)
    floor = took.pop("floor")
    slowest = max(took, key=lambda size: median(took[size]))
    what = f"preferred of {name}: slowest of 1-{len(available)} is {slowest}"
    return both(what, took[slowest], floor)


def together(offer: Offer) -> list[Row]:
    """Sixteen callers at once, each requests one GPU again and again; the floor is the same with empty calls."""
    request = allocate(offer.ids[:1]).SerializeToString()
    floor = asyncio.run(callers(offer.path, "PreStartContainer", b""))
    took = asyncio.run(callers(offer.path, "Allocate", request))
    what, floor_is = f"Allocate, {CALLERS} callers at once", f"{CALLERS} callers, empty calls"
    return both(what, took, floor, p99_target=None, floor_is=floor_is)


async def callers(path: str, method: str, request: bytes) -> list[float]:
    """Milliseconds of every call."""
    took: list[float] = []
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(f"{SERVICE}/{method}", request_serializer=bytes, response_deserializer=bytes)

        async def again_and_again() -> None:
            for _ in range(ROUNDS_EACH_CALLER):
                began = time.perf_counter()
                await call(request, timeout=CALL_SECONDS)
                took.append((time.perf_counter() - began) * 1000)

        await call(request, timeout=CALL_SECONDS)
        await asyncio.gather(*(again_and_again() for _ in range(CALLERS)))
    return took


def both(
    what: str,
    took: Sequence[float],
    floor: Sequence[float],
    *,
    p50_target: float | None = None,
    p99_target: float | None = TARGET_MS,
    floor_is: str = FLOOR_IS,
) -> list[Row]:
    """p50 and p99."""
    return [
        Row(
            what=f"{what}, p50", measured=median(took), unit="ms", target=p50_target,
            floor=median(floor), floor_is=floor_is,
        ),
        Row(
            what=f"{what}, p99", measured=percentile(took, 99), unit="ms", target=p99_target,
            floor=percentile(floor, 99), floor_is=floor_is,
        ),
    ]  # fmt: skip
