"""What NVML says of a GPU while well-known kinds of work use it, a reading every 10 s.

The numbers are made up, by what is known of such work: a context of CUDA takes some 500 MiB of an H100, utilisation is
that of the second before, and a reading in a pause is 0 %. No trace is a recording.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_probe.protocol import Readings

SECONDS = 10.0  # between two readings, at most
GIB = 1 << 30
MINUTE, HOUR = 60, 3600


def reading(percent: int | None, *, processes: int | None = None, gib: float = 0.0) -> Readings:
    """One reading. `processes` None: the probe does not see those of other containers, as in a pod."""
    return Readings(
        recovery_action="None",
        remap_pending=False,
        remap_failure=False,
        utilization_percent=percent,
        processes=processes,
        memory_allocated_bytes=None if percent is None else int(gib * GIB),
    )


def lasting(seconds: float, *cycle: Readings) -> Iterator[Readings]:
    """These readings one after the other, again and again, for so long."""
    for number in range(int(seconds / SECONDS)):
        yield cycle[number % len(cycle)]


def training(hours: float) -> Iterator[Readings]:
    """Two hours of steps between checkpoints, each of which takes ten minutes to a slow store; memory stays. It starts
    with five minutes of loading data on the CPU, before it makes a context."""
    steps = [reading(percent, processes=1, gib=71) for percent in (98, 100, 97, 0, 99, 100)]
    yield from lasting(5 * MINUTE, reading(0, processes=0))
    left = hours * HOUR
    while left > 0:
        yield from lasting(2 * HOUR, *steps)
        yield from lasting(10 * MINUTE, reading(0, processes=1, gib=71))
        left -= 2 * HOUR + 10 * MINUTE


def notebook() -> Iterator[Readings]:
    """A cell of a minute every twenty minutes, then lunch with the kernel open for an hour, then work again."""
    cell, thinking = reading(63, processes=1, gib=9), reading(0, processes=1, gib=9)
    for _ in range(2):
        yield from lasting(MINUTE, cell)
        yield from lasting(19 * MINUTE, thinking)
    yield from lasting(HOUR, thinking)
    for _ in range(2):
        yield from lasting(MINUTE, cell)
        yield from lasting(19 * MINUTE, thinking)


def stuck_nccl(hours: float) -> Iterator[Readings]:
    """A rank that waits for another one which is gone: its kernel spins, at 100 %."""
    yield from lasting(MINUTE, reading(95, processes=1, gib=60))
    yield from lasting(hours * HOUR, reading(100, processes=1, gib=60))


def inference_night(quiet_hours: float) -> Iterator[Readings]:
    """Requests all the time in the evening, none for hours, and again in the morning."""
    yield from lasting(10 * MINUTE, *(reading(percent, processes=1, gib=66) for percent in (3, 12, 0, 7)))
    yield from lasting(quiet_hours * HOUR, reading(0, processes=1, gib=66))
    yield from lasting(10 * MINUTE, *(reading(percent, processes=1, gib=66) for percent in (3, 12, 0, 7)))


def inference_by_day(hours: float) -> Iterator[Readings]:
    """A request of a second every four minutes: most readings are 0 %, and no half hour is without one."""
    yield from lasting(hours * HOUR, reading(41, processes=1, gib=66), *[reading(0, processes=1, gib=66)] * 23)
