"""Owned capacity against the world: other writers, pods bound meanwhile, lists that fail, writes that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from nodedevices_api.sections import CapacityEntry, Sections
from nodedevices_operator.concerns.budget import FIGHT_REPAIRS, FIGHT_WINDOW_SECONDS
from nodedevices_operator.concerns.capacity import CapacityConcern, claimed_names
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord
from support.cases import cases
from support.concerns import Result, run, tools
from support.opfacts import MEMORY, device, node, record

ONE = 81920
ENTRY = Sections(capacity=[CapacityEntry(name=MEMORY, sum_of="memoryMiB")])
BOTH = record(device(0), device(1))
LEFT = record(device(0), device(1, "Unhealthy", "Xid79"))


class World:
    """A Kube with the pods of one node, which remembers what was applied."""

    def __init__(self) -> None:
        self.applied: list[dict[str, str]] = []
        self.requested = 0
        self.pods_fail = 0
        self.apply_fails = 0
        self.lists = 0

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[JsonObject]:
        self.lists += 1
        assert query == {"fieldSelector": "spec.nodeName=n1"}
        if self.pods_fail:
            raise KubeError("no answer", status=self.pods_fail)
        yield {"items": [{"spec": {"containers": [{"resources": {"requests": {MEMORY: str(self.requested)}}}]}}]}

    async def apply(self, path: str, body: Any, manager: str, **_: Any) -> JsonObject:
        if self.apply_fails:
            raise KubeError("refused", status=self.apply_fails)
        self.applied.append(body.get("status", {}).get("capacity", {}))
        return {}


class Bench:
    def __init__(self) -> None:
        self.world = World()
        self.now = 0.0
        self.capacity = CapacityConcern(tools(self.world, lambda: self.now))

    async def sync(self, item: NodeDevicesRecord, shown: NodeRecord, sections: Sections = ENTRY) -> Result:
        return await run(self.capacity, item, shown, sections)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def shows(value: int) -> NodeRecord:
    return node({MEMORY: value}, owned=(MEMORY,))


async def test_what_is_right_is_not_written_and_no_pod_is_listed(bench: Bench) -> None:
    result = await bench.sync(BOTH, shows(2 * ONE))
    assert (result.reason, bench.world.applied, bench.world.lists) == ("InSync", [], 0)


async def test_a_list_of_pods_that_fails_lowers_nothing(bench: Bench) -> None:
    bench.world.pods_fail = 504
    result = await bench.sync(LEFT, shows(2 * ONE))
    assert (result.reason, bench.world.applied) == ("NotWritten", [])
    assert result.retried


async def test_a_pod_bound_while_it_was_lowered_gets_its_share_back(bench: Bench) -> None:
    result = await bench.sync(LEFT, shows(2 * ONE))
    assert bench.world.applied == [{MEMORY: str(ONE)}]
    assert result.again is not None
    bench.world.requested = ONE + 7
    result = await bench.sync(LEFT, shows(ONE))
    assert bench.world.applied[-1] == {MEMORY: str(ONE + 7)}
    assert result.reason == "Pending"


async def test_what_is_held_back_is_lowered_when_the_pods_are_gone(bench: Bench) -> None:
    bench.world.requested = 2 * ONE
    result = await bench.sync(LEFT, shows(2 * ONE))
    assert (result.reason, bench.world.applied) == ("Pending", [])
    bench.world.requested = 0
    await bench.sync(LEFT, shows(2 * ONE))
    assert bench.world.applied == [{MEMORY: str(ONE)}]


async def test_a_policy_recreated_with_less_keeps_what_pods_request(bench: Bench) -> None:
    await bench.sync(BOTH, shows(2 * ONE), Sections())
    assert bench.world.applied == [{}]  # its policy was deleted: the key goes
    bench.world.requested = ONE + 7
    result = await bench.sync(LEFT, node())
    assert bench.world.applied[-1] == {MEMORY: str(ONE + 7)}
    assert (result.reason, result.again is not None) == ("Pending", True)


async def test_a_pod_bound_while_the_policy_was_recreated_gets_its_share_back(bench: Bench) -> None:
    await bench.sync(BOTH, shows(2 * ONE), Sections())
    await bench.sync(LEFT, node())
    bench.world.requested = ONE + 7
    result = await bench.sync(LEFT, shows(ONE))
    assert (bench.world.applied[-1], result.reason) == ({MEMORY: str(ONE + 7)}, "Pending")


async def test_another_writer_is_repaired_a_few_times_and_then_named(bench: Bench) -> None:
    await bench.sync(BOTH, shows(2 * ONE))
    for _ in range(FIGHT_REPAIRS):
        assert (await bench.sync(BOTH, node({MEMORY: 5}))).reason == "InSync"
    result = await bench.sync(BOTH, node({MEMORY: 5}))
    assert (result.reason, len(bench.world.applied)) == ("Conflict", FIGHT_REPAIRS)
    assert "another writer" in result.message
    bench.now += FIGHT_WINDOW_SECONDS
    assert (await bench.sync(BOTH, node({MEMORY: 5}))).reason == "InSync"


@pytest.mark.parametrize(("status", "reason"), [(403, "Forbidden"), (503, "NotWritten")])
async def test_a_write_that_is_refused_is_shown(bench: Bench, status: int, reason: str) -> None:
    bench.world.apply_fails = status
    result = await bench.sync(BOTH, node())
    assert (result.reason, result.retried) == (reason, status != 403)


@pytest.mark.parametrize("fails", ["apply_fails", "pods_fail"])
async def test_a_name_that_a_plugin_registers_while_our_write_fails_is_the_plugins(bench: Bench, fails: str) -> None:
    setattr(bench.world, fails, 500)
    shown = (await bench.sync(BOTH, node())).shown
    assert isinstance(shown, tuple)
    setattr(bench.world, fails, 0)
    spec = {"config": {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB"}]}}
    shown_before = record(device(0), device(1), spec=spec, actions=[action("capacity", shown[1])])
    result = await bench.sync(shown_before, node({MEMORY: 8}))
    assert (result.reason, bench.world.applied) == ("Conflict", [])


OURS = {"config": {"capacity": [{"name": MEMORY, "perNode": 1}]}}


def action(name: str, reason: str, generation: int = 1) -> dict[str, Any]:
    return {"name": name, "reason": reason, "message": "", "observedGeneration": generation}


@cases(
    ("reason", "generation", "expected"),
    ("InSync", 1, {MEMORY}),
    ("Pending", 1, {MEMORY}),
    ("NotWritten", 1, set()),
    ("Forbidden", 1, set()),
    ("Conflict", 1, set()),
    ("InSync", 0, set()),
    ("Pending", 0, set()),
)
@cases("other", "InSync", "NotWritten", "Conflict", "Refused", None)
def test_the_object_itself_says_which_names_are_ours_only_for_the_generation_that_it_was_set_for(
    reason: str, generation: int, expected: set[str], other: str | None
) -> None:
    """Whatever became of another action, at this generation or before it."""
    for at in (0, 1):
        others = [] if other is None else [action("labels", other, at), action("evictions", other, at)]
        actions = [action("capacity", reason, generation), *others]
        assert claimed_names(record(spec=OURS, actions=actions)) == expected


@cases(
    ("spec", "actions"),
    pytest.param(OURS, [], id="nothing was decided"),
    pytest.param(OURS, [action("labels", "InSync")], id="of another action alone"),
    pytest.param(OURS, [action("labels", "Conflict")], id="of another action's failure"),
    pytest.param({}, [action("capacity", "InSync")], id="nothing is configured"),
    pytest.param({"config": {}}, [action("capacity", "InSync")], id="not of the configuration"),
    pytest.param({"config": {"capacity": []}}, [action("capacity", "InSync")], id="of no entry"),
)
def test_the_object_claims_no_name_for_us_that_it_does_not_say_was_written(spec: Any, actions: Any) -> None:
    assert claimed_names(record(spec=spec, actions=actions)) == frozenset()


def test_a_summary_that_is_in_sync_claims_nothing() -> None:
    """The condition may be of the actions beside a capacity that this generation has brought."""
    assert claimed_names(record(spec=OURS, conditions={"ActionsSynced": ("True", "InSync")})) == frozenset()
