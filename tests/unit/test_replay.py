"""Failures of a published fleet, far more often than there, on a few nodes for some days: what is shown of each.

`make bench` plays a year of all of it (benchmarks/replay.py). The last tests show that the judge sees what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from nodedevices_common.conditions import ConditionRecord
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState, Verdict
from nodedevices_probe.protocol import Snapshot
from support.cases import cases
from support.facts import START
from support.replay.agents import Agent, Judged, Shown, Whole
from support.replay.hardware import Machine
from support.replay.kinds import KINDS, PUBLISHED_DAYS, PUBLISHED_GPUS
from support.replay.run import Lines, Replay

OFTEN = 3000.0  # times the published rate
KIND = {each.name: each for each in KINDS}
HEALTHY = Verdict(state=HealthState.HEALTHY, reason="", message="", since=START, offered=True)


def played(
    *kinds: str,
    seed: int = 1,
    nodes: int = 4,
    days: float = 1.0,
    lines: Lines | None = None,
    agents: Callable[[int], Agent] | None = None,
    whole_every: int = 2,
) -> Replay:
    chosen = [KIND[each] for each in kinds] or KINDS
    often = OFTEN * sum(each.count for each in KINDS) / sum(each.count for each in chosen)
    replay = Replay(
        nodes=nodes,
        days=days,
        factor=often,
        seed=seed,
        whole_every=whole_every,
        json_every=5,
        lines=lines,
        agents=agents,
        kinds=chosen,
    )
    replay.run()
    return replay


def complaints(replay: Replay) -> list[str]:
    return [str(each) for each in replay.oracle.complaints]


def total(replay: Replay, what: str) -> int:
    return sum(getattr(row, what) for row in replay.oracle.rows.values())


def test_the_published_table_is_whole() -> None:
    assert sum(each.count for each in KINDS) == 419
    assert sum(each.per_second(PUBLISHED_GPUS, 1.0) for each in KINDS) * PUBLISHED_DAYS * 86_400 == pytest.approx(419)


def test_no_failure_is_missed_and_nothing_is_shown_that_did_not_happen() -> None:
    replay = played()
    assert complaints(replay) == []
    assert total(replay, "missed") == 0
    assert total(replay, "seen") > 30
    finished = sum(total(replay, each) for each in ("seen", "invisible", "unshown"))
    assert finished + replay.unfinished == total(replay, "injected")


def test_what_no_device_shows_is_counted_and_changes_nothing() -> None:
    replay = played("Silent data corruption")
    assert total(replay, "invisible") == total(replay, "injected") > 20
    assert all(each == HEALTHY for node in replay.nodes for each in without_times(node.agent).values())


def test_a_workloads_own_error_is_a_notice_and_takes_no_device_away() -> None:
    offered: list[bool] = []

    def seen(machine: Machine, line: Snapshot) -> Snapshot:
        offered.extend(each.offered for each in replay_agents[machine.number].verdicts.values())
        return line

    replay_agents = [Judged() for _ in range(4)]
    replay = played("Software bug", lines=seen, agents=replay_agents.__getitem__)
    assert complaints(replay) == []
    assert total(replay, "seen") > 20
    assert all(offered)


def test_what_is_remembered_of_a_node_stays_small() -> None:
    tally = played(nodes=2).tally
    assert tally.faults <= 16
    assert tally.notices <= 16
    assert 0 < tally.state_bytes < 64 * 1024


def test_a_seed_is_the_same_failures_each_time() -> None:
    def counts(seed: int) -> list[tuple[str, int, list[float]]]:
        rows = played(seed=seed, days=0.2, whole_every=4).oracle.rows
        return [(name, each.injected, list(each.delays)) for name, each in rows.items()]

    assert counts(4) == counts(4) != counts(5)


# --- the judge -------------------------------------------------------------------------------------------------------
def test_a_table_that_shows_a_fault_too_late_not_at_all_or_without_one_is_told() -> None:
    replay = played("GPU system processor", lines=lambda _, line: replace(line, events=()), agents=lambda _: Judged())
    assert any("new pods get it" in each for each in complaints(replay))

    def well(_: Machine, line: Snapshot) -> Snapshot:
        linked = (replace(each, readings=replace(each.readings, conditions=())) for each in line.devices)
        return replace(line, devices=tuple(linked))

    replay = played("Network switch or cable", lines=well, agents=lambda _: Judged())
    assert total(replay, "missed") > 0
    assert total(replay, "seen") == 0
    assert total(played("GPU HBM3 memory", agents=lambda _: Forgetful()), "missed") > 0
    replay = played("Silent data corruption", "NIC", agents=lambda _: Anxious())
    assert any("(not injured): a fault is shown that it has not" in each for each in complaints(replay))


class Forgetful(Judged):
    """It calls every device healthy."""

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        return dict.fromkeys(super().verdicts, HEALTHY)


class Anxious(Judged):
    """It calls a device faulty that has nothing."""

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        found = dict(super().verdicts)
        id_ = next(iter(found), None)
        bad = replace(HEALTHY, state=HealthState.UNHEALTHY, reason="Xid79", offered=False)
        return found if id_ is None else {**found, id_: bad}


@cases(("seconds", "said"), (0, "new pods get it"), (900, "(not injured): a fault is shown that it has not"))
def test_a_hold_down_that_is_too_short_or_too_long_is_told(seconds: int, said: str) -> None:
    rules = HealthRules(hold_down_seconds=seconds)
    replay = played("GPU HBM3 memory", "GPU SRAM memory", agents=lambda _: Judged(rules))
    assert any(said in each for each in complaints(replay))


class Unmarked(Whole):
    """The operator's part with another answer."""

    def _act(self, now: str) -> None:
        super()._act(now)
        assert self.shown is not None
        self.shown = self.changed(self.shown)

    def changed(self, shown: Shown) -> Shown:
        return replace(shown, pods={}, evicted=frozenset())


class MarkedTooMany(Unmarked):
    def changed(self, shown: Shown) -> Shown:
        fault = ConditionRecord(type="nodedevices.io/DeviceHealthy", status="False", reason="Xid79")
        return replace(shown, pods=dict.fromkeys(self.pods, fault), evicted=frozenset(self.pods))


class Untainted(Unmarked):
    def changed(self, shown: Shown) -> Shown:
        return replace(shown, tainted=False, node=replace(shown.node, status="True"))


@cases(
    ("kind", "said"),
    (
        Unmarked,
        ("holds what is Unhealthy, and its condition is None", "holds what is Unhealthy, and is not to be evicted"),
    ),
    (
        MarkedTooMany,
        (
            "holds only what is well, and its condition is",
            "is to be evicted, and nothing that it holds is Unhealthy",
        ),
    ),
    (Untainted, ("has what is Unhealthy; its condition is True, not tainted",)),
)
def test_a_mark_that_is_missing_or_one_too_many_is_told(kind: type[Unmarked], said: tuple[str, ...]) -> None:
    told = complaints(played("GPU system processor", days=0.25, agents=lambda number: kind(f"node-{number}", number)))
    assert [text for text in said if not any(text in each for each in told)] == []


def without_times(agent: Agent) -> dict[str, Verdict]:
    return {id_: replace(each, since=START) for id_, each in agent.verdicts.items()}
