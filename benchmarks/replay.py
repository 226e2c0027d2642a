"""A year of a fleet of 16,384 GPUs (tests/support/replay): failures at the rates of a published run times 100, by kind
and seeded, as probe lines through the agent's verdicts, and on some nodes through its whole step and what the operator
decides. Judged against what was done to each device, by code that shares nothing with what decides.

In virtual time, without I/O; each core plays its part of the fleet, as no node depends on one of another rack. The
floor of a line is that the agent reads it; that of the memory is what it was after a month, when every node has had
its first failures.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median

from support.replay.kinds import GPUS
from support.replay.oracle import Complaint, Row as Counts
from support.replay.run import Replay, Tally

from benchmarks.process import cpu_seconds, memory_mib
from benchmarks.table import Row

NODES_BY_DEFAULT = 2048
DAYS, FACTOR, SEED = 365.0, 100.0, 20261126
WHOLE_EVERY, JSON_EVERY = 64, 50  # nodes, lines
SHOWN = 20  # complaints of a part


@dataclass(frozen=True, kw_only=True)
class Played:
    """A part of the fleet, at the end. `memory`: MiB, by month."""

    kinds: Mapping[str, Counts]
    complaints: Sequence[Complaint]
    wrong: int
    named_after_earlier: int
    tally: Tally
    memory: Mapping[int, float]
    cpu_seconds: float


def measure(nodes: int = NODES_BY_DEFAULT, days: float = DAYS) -> list[Row]:
    parts = min(os.cpu_count() or 1, nodes)
    sizes = [nodes // parts + (number < nodes % parts) for number in range(parts)]
    with ProcessPoolExecutor(parts) as pool:
        played = list(pool.map(partial(play, days=days), range(parts), sizes))
    complaints = [each for part in played for each in part.complaints]
    print(by_kind(played), *complaints[:SHOWN], sep="\n", end="\n\n", flush=True)
    return rows(played, f"{nodes * GPUS:,} GPUs for {days:g} days, {FACTOR:g} times the published rates")


def play(number: int, nodes: int, days: float) -> Played:
    """One part, with its own seed; says each month how far it is."""
    own, memory = os.getpid(), dict[int, float]()
    replay = Replay(
        nodes=nodes, days=days, factor=FACTOR, seed=SEED + number, whole_every=WHOLE_EVERY, json_every=JSON_EVERY
    )
    oracle = replay.oracle
    gc.collect()
    gc.freeze()  # as the operator does

    def month(reached: int) -> None:
        memory[reached] = memory_mib(own)
        missed = sum(it.missed for it in oracle.rows.values())
        print(
            f"  part {number + 1}, month {reached}: {replay.tally.lines:,} lines, {missed} missed, "
            f"{oracle.count} wrong, {memory[reached]:.0f} MiB, {cpu_seconds(own):.0f} s of CPU",
            flush=True,
        )

    replay.run(month)
    month(len(memory) + 1)
    return Played(
        kinds=oracle.rows,
        complaints=oracle.complaints[:SHOWN],
        wrong=oracle.count,
        named_after_earlier=oracle.named_after_earlier,
        tally=replay.tally,
        memory=memory,
        cpu_seconds=cpu_seconds(own),
    )


def rows(played: Sequence[Played], name: str) -> list[Row]:
    lines, parsed = sum(it.tally.lines for it in played), sum(it.tally.parsed for it in played)
    reading = sum(it.tally.reading_seconds for it in played)
    memory = Counter[int]()
    for part in played:
        memory.update(part.memory)
    after = [
        Row(what=f"  memory after {month} months", measured=memory[month], unit="MiB", floor=memory[1],
            floor_is="the same after a month")
        for month in (6, 12)
    ]  # fmt: skip
    return [
        Row(what=f"{name}: missed", measured=sum(each.missed for it in played for each in it.kinds.values()),
            unit="failures", target=0),
        Row(what="  shown otherwise than it was", measured=sum(it.wrong for it in played), unit="times", target=0),
        Row(what="  named after an earlier fault that is over",
            measured=sum(it.named_after_earlier for it in played), unit="lines"),
        Row(what="  lines", measured=lines / 1000, unit="thousand"),
        Row(what="  CPU, with the fleet and the judge", measured=sum(it.cpu_seconds for it in played), unit="s"),
        Row(what="  CPU of a line", measured=1e6 * sum(it.tally.seconds for it in played) / lines, unit="us",
            floor=1e6 * reading / max(parsed, 1), floor_is="the line is read"),
        Row(what="  memory after a month, all parts", measured=memory[1], unit="MiB"),
        *after,
        Row(what="  the largest state file", measured=max(it.tally.state_bytes for it in played) / 1024, unit="KiB"),
        Row(what="  the most faults of a device", measured=max(it.tally.faults for it in played), unit="faults"),
    ]  # fmt: skip


def by_kind(played: Iterable[Played]) -> str:
    """The kinds, the most frequent first, as Markdown."""
    found: dict[str, Counts] = {}
    for part in played:
        for kind, more in part.kinds.items():
            found.setdefault(kind, Counts()).add(more)
    lines = [
        "| cause | injected | seen | missed | wrong | over before a line | nothing shows | median, s | slowest, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, it in sorted(found.items(), key=lambda item: -item[1].injected):
        delays = [f"{median(it.delays):.1f}", f"{max(it.delays):.1f}"] if it.delays else ["", ""]
        counts = (it.injected, it.seen, it.missed, it.wrong, it.unshown, it.invisible)
        lines.append(f"| {' | '.join([kind, *(f'{each:,}' for each in counts), *delays])} |")
    return "\n".join(lines)
