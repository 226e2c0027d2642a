"""Which held devices are shown as not used: by readings of well-known kinds of work, by the whole step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_api.nodedevices import Holder as Shown
from nodedevices_plugin.model import Holder, HoldersState, Holdings
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.idle import MAX_NAMESPACES
from nodedevices_plugin.pipeline.state import StateFile
from nodedevices_probe.protocol import Partition, Readings
from support import traces
from support.facts import START, gpu, gpu_id, mig_id
from support.stepped_node import NOBODY, Node, report_of
from support.traces import MINUTE, lasting, reading

AFTER = 600
ASKS = {"idle": {"afterSeconds": AFTER}}
HALF_AN_HOUR = {"idle": {"afterSeconds": 1800}}
LONG = 2 * AFTER
GPU = "nvidia.com/gpu"
UNUSED, LOADED, BUSY = reading(0, processes=0), reading(0, processes=1, gib=1), reading(50, processes=1, gib=1)


def holder(node: Node, *ids: str, pod: str = "train", namespace: str = "ml", **more: Any) -> Holder:
    known: dict[str, Any] = {"resource": GPU, "ids": ids or (gpu_id(0),), "since": node.time, "uid": "uid-1"}
    return Holder(namespace=namespace, pod=pod, container="main", **{**known, **more})


def held(node: Node, *holders: Holder) -> Node:
    """The kubelet lists these holders from now on."""
    return node.given(holdings=replace(NOBODY, holders=holders, taken=node.clock))


def watching(*readings: Readings, config: dict[str, Any] | None = None, **node: Any) -> Node:
    """A node that looked for unused devices before any container had one."""
    made = Node(*(gpu(index, readings=each) for index, each in enumerate(readings or (UNUSED,))), **node)
    return made.given(seen=SeenObject(exists=True, generation=1, config=config or ASKS)).line().line()


def working(*readings: Readings, **node: Any) -> Node:
    """The same with a container that has just got the first device."""
    made = watching(*readings, **node)
    return held(made, holder(made)).wait()


def shown(node: Node, index: int = 0) -> Shown:
    [found] = report_of(node.world, node.time).devices[index].holders
    return found


def read(node: Node, readings: Iterable[Readings], *, seconds: float = traces.SECONDS) -> Node:
    for each in readings:
        node.line(gpu(0, readings=each), after=seconds)
    return node


@dataclass(frozen=True)
class Period:
    word: str
    since: datetime
    told: datetime  # when it was shown
    until: datetime


def periods(node: Node, trace: Iterable[Readings]) -> list[Period]:
    """Every period in which the device is shown as unused. `writes` counts how often the report changed."""
    found: list[Period] = []
    before = reported(node)
    for number, each in enumerate(trace):
        known = node.world.uses
        read(node, [each])
        use = node.world.uses.devices[gpu_id(0)]  # type: ignore[union-attr]
        word, since = use.word, use.since
        if word:
            assert since is not None
            if found and (found[-1].word, found[-1].since) == (word, since):
                found[-1] = dataclasses.replace(found[-1], until=node.time)
            else:
                found.append(Period(word, since, node.time, node.time))
        if number % 60 == 0 or (known is not None and known.devices[gpu_id(0)].word != word):  # reports take their time
            after = reported(node)
            writes.append(after != before)
            before = after
    return found


writes: list[bool] = []  # by `periods`: whether the report was another one


@pytest.fixture(autouse=True)
def _no_writes() -> None:
    writes.clear()


def reported(node: Node) -> object:
    made = report_of(node.world, node.time)
    return made.summary, made.devices


# --- known kinds of work ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "trace",
    [traces.training(2), traces.stuck_nccl(1), traces.inference_by_day(1)],
    ids=["training with checkpoints of ten minutes", "a job stuck in NCCL", "an inference server with few requests"],
)
def test_work_is_never_shown_as_idle(trace: Iterable[Readings]) -> None:
    assert periods(working(config=HALF_AN_HOUR), trace) == []
    assert not any(writes)


def test_a_notebook_is_idle_over_lunch_and_an_inference_server_until_the_first_request() -> None:
    node = working(config=HALF_AN_HOUR)
    [lunch] = periods(node, traces.notebook())
    assert lunch.word == "Idle"
    assert lunch.told - lunch.since == timedelta(minutes=30)
    # From the last cell on: 19 minutes of thinking, then an hour.
    assert lunch.until - lunch.since == timedelta(minutes=19, hours=1) - timedelta(seconds=traces.SECONDS)
    assert writes.count(True) == 2  # when it begins, and when it ends
    [night] = periods(working(config=HALF_AN_HOUR), traces.inference_night(1))
    assert (night.word, night.until - night.since) == ("Idle", timedelta(hours=1) - timedelta(seconds=traces.SECONDS))
    assert writes.count(True) == 4


# --- the three words --------------------------------------------------------------------------------------------------
def test_a_device_on_which_no_process_ever_was_is_never_used_since_it_is_held() -> None:
    node = working()
    since = node.time
    [found] = periods(node, lasting(LONG, UNUSED))
    assert (found.word, found.since) == ("NeverUsed", since)
    assert report_of(node.world, node.time).summary.idle == 1  # type: ignore[union-attr]


def test_a_process_that_comes_makes_it_used_and_idle_only_after_the_same_time_again() -> None:
    found = periods(working(), [*lasting(LONG, UNUSED), *lasting(2 * LONG, LOADED)])
    assert [each.word for each in found] == ["NeverUsed", "Idle"]
    assert found[1].told - found[0].until > timedelta(seconds=AFTER)


def test_memory_without_a_process_is_memory_only_unless_processes_of_others_are_not_seen() -> None:
    [found] = periods(working(), [*lasting(MINUTE, BUSY), *lasting(LONG, reading(0, processes=0, gib=30))])
    assert found.word == "MemoryOnly"
    [found] = periods(working(), lasting(LONG, reading(0, gib=0.5)))
    assert found.word == "MemoryOnly"
    [never] = periods(working(), lasting(LONG, reading(0, gib=0.01)))
    assert never.word == "NeverUsed"


def test_the_word_stays_while_it_is_unused_and_one_percent_is_work() -> None:
    changing = [*lasting(LONG, LOADED), *lasting(LONG, reading(0, processes=0, gib=30)), *lasting(LONG, UNUSED)]
    [found] = periods(working(), changing)
    assert found.word == "Idle"
    assert writes.count(True) == 1
    assert periods(working(), lasting(LONG, reading(1, processes=1, gib=1))) == []


def test_what_a_device_did_for_the_container_before_or_silence_begin_the_time_anew() -> None:
    node = working()
    read(node, lasting(MINUTE, BUSY))
    held(node, holder(node, pod="next"))
    read(node, [BUSY], seconds=3)  # a line may repeat a reading of up to ten seconds before
    [found] = periods(node, lasting(LONG, UNUSED))
    assert found.word == "NeverUsed"
    node = working()
    read(node, [*lasting(MINUTE, BUSY), *lasting(AFTER - 60, LOADED)])
    read(node, [LOADED], seconds=20)
    [found] = periods(node, lasting(LONG, LOADED))
    assert found.told - node.time < timedelta(0)
    assert found.told - found.since == timedelta(seconds=AFTER)


# --- what is not known ------------------------------------------------------------------------------------------------


def test_a_word_is_taken_back_when_nothing_is_heard_or_the_pod_is_another() -> None:
    node = working()
    read(node, lasting(LONG, UNUSED))
    assert shown(node).idle == "NeverUsed"
    node.wait(20)
    assert shown(node).idle is None
    node = working()
    read(node, lasting(LONG, UNUSED))
    assert shown(node).idle == "NeverUsed"
    held(node, holder(node)).wait()
    assert shown(node).idle is None


def test_a_driver_that_does_not_say_how_busy_it_is_is_unknown_and_not_idle() -> None:
    node = working(reading(None))
    read(node, lasting(AFTER - 10, reading(None)))
    assert shown(node).idle is None
    read(node, lasting(MINUTE, reading(None)))
    assert (shown(node).idle, shown(node).idle_since) == ("Unknown", None)
    assert report_of(node.world, node.time).summary.idle == 0  # type: ignore[union-attr]
    read(node, [BUSY])
    assert shown(node).idle is None


def test_one_share_a_partition_and_a_nic_have_no_word_of_their_own() -> None:
    node = watching()
    read(held(node, holder(node, f"{gpu_id(0)}::1")), lasting(LONG, UNUSED))
    assert shown(node).idle == "Unknown"
    part = Partition(id=mig_id(0, 1), profile="1g.10gb", index=0)
    node = Node(gpu(0, mig_enabled=True, partitions=(part,), readings=reading(None)))
    node.given(seen=SeenObject(exists=True, generation=1, config=ASKS)).line().line()
    held(node, holder(node, part.id)).line()
    assert report_of(node.world, node.time).devices[1].holders[0].idle == "Unknown"
    node = watching()
    node.devices = (gpu(0, type="nic", readings=Readings()),)
    held(node.line(), holder(node, resource="example.com/rdma")).line().wait(2 * AFTER)
    assert shown(node).idle is None


def test_a_container_that_was_there_before_anything_was_observed_is_idle_and_not_never_used() -> None:
    node = Node(gpu(0, readings=UNUSED))
    node.given(seen=SeenObject(exists=True, generation=1, config=ASKS))
    held(node, holder(node)).line().line()
    [found] = periods(node, lasting(LONG, UNUSED))
    assert found.word == "Idle"


def test_while_the_holders_are_not_known_nothing_is_idle_and_those_of_before_stay() -> None:
    node = watching()
    node.given(holdings=Holdings(state=HoldersState.UNAVAILABLE)).line()
    assert node.world.uses is None
    node = working()
    lost = replace(node.inputs.holdings, state=HoldersState.UNAVAILABLE)
    [found] = periods(node.given(holdings=lost), lasting(LONG, UNUSED))
    assert found.word == "NeverUsed"


def test_whatever_says_how_busy_it_is_has_a_word() -> None:
    node = watching()
    node.devices = (gpu(0, type="npu", readings=UNUSED),)
    held(node.line(), holder(node)).line()
    for _ in lasting(LONG, UNUSED):
        node.line(after=traces.SECONDS)
    assert shown(node).idle == "NeverUsed"


def test_a_container_with_all_cores_has_its_device_alone_and_one_that_shared_it_may_have_used_it() -> None:
    node = watching()
    cores = [f"{gpu_id(0)}::core.{number}" for number in range(100)]
    [found] = periods(held(node, holder(node, *cores)).wait(), lasting(LONG, UNUSED))
    assert found.word == "NeverUsed"
    node = watching()
    both = holder(node), holder(node, pod="other")
    read(held(node, *both).wait(), lasting(MINUTE, BUSY))
    [found] = periods(held(node, both[0]).wait(), lasting(LONG, UNUSED))
    assert found.word == "Idle"


# --- restarts and policies --------------------------------------------------------------------------------------------
def again(node: Node, **more: Any) -> Node:
    """The agent starts again, with what it saved, and its first List shows the same container."""
    made = node.restarted()
    made.given(seen=SeenObject(exists=True, generation=1, config=ASKS))
    made.given(holdings=Holdings(state=HoldersState.UNAVAILABLE)).line(gpu(0, readings=UNUSED))  # before the first List
    return held(made, holder(made, **more)).line(gpu(0, readings=UNUSED))


@pytest.mark.parametrize("uid", ["uid-2", ""], ids=["another pod", "it is not known"])
def test_a_pod_that_was_made_again_under_its_name_meanwhile_may_have_used_it(uid: str) -> None:
    made = again(read(working(), lasting(LONG, UNUSED)), uid=uid)
    began = made.time
    [found] = periods(made, lasting(LONG, UNUSED))
    assert found.word == "Idle"
    assert found.since >= began


def test_whether_it_was_used_survives_a_restart_of_the_agent() -> None:
    node = working()
    since = node.time
    made = again(read(node, lasting(LONG, UNUSED)))
    assert shown(made).idle is None  # what happened meanwhile is not known
    [found] = periods(made, lasting(LONG, UNUSED))
    assert (found.word, found.since) == ("NeverUsed", since)
    node = working()
    [found] = periods(again(read(node, lasting(MINUTE, BUSY))), lasting(LONG, UNUSED))
    assert found.word == "Idle"


def test_what_the_state_file_keeps_is_read_again(tmp_path: Any) -> None:
    node = read(working(), lasting(MINUTE, BUSY))
    file = StateFile(tmp_path / "state.json")
    file.save(node.world.state)
    assert file.load().tenures == node.world.state.tenures
    assert node.world.state.tenures[gpu_id(0)].used


def test_without_a_policy_nothing_is_shown_and_a_clock_that_is_set_ends_nothing() -> None:
    node = working(config={"idle": {}})
    read(node, lasting(LONG, UNUSED))
    assert (shown(node).idle, report_of(node.world, node.time).summary.idle) == (None, None)  # type: ignore[union-attr]
    assert node.world.state.tenures == {}
    node = read(working(), lasting(LONG, UNUSED))
    since = shown(node).idle_since
    node.ahead = 7200.0
    read(node, [UNUSED])
    assert (shown(node).idle, shown(node).idle_since) == ("NeverUsed", since + timedelta(hours=2))  # type: ignore[operator]


def test_a_clock_that_begins_in_1970_moves_no_time_of_before() -> None:
    node = read(working(), lasting(LONG, UNUSED))
    since = shown(node).idle_since
    made = Node(*node.devices, state=node.world.state, clock=5.0)
    made.ahead = -START.timestamp()
    made.begin(node.world.state)
    made.given(seen=SeenObject(exists=True, generation=1, config=ASKS))
    made.given(holdings=Holdings(state=HoldersState.UNAVAILABLE)).line(gpu(0, readings=UNUSED))
    held(made, holder(made)).line(gpu(0, readings=UNUSED))
    made.ahead = 86400.0  # it is set
    read(made, lasting(LONG, UNUSED))
    assert (shown(made).idle, shown(made).idle_since) == ("NeverUsed", since)


# --- sums -------------------------------------------------------------------------------------------------------------
def test_hours_held_and_unused_are_summed_by_namespace() -> None:
    node = watching(UNUSED, UNUSED)
    held(node, holder(node), holder(node, gpu_id(1), namespace="web", pod="api")).wait()
    for _ in lasting(2 * LONG, UNUSED):
        node.line(gpu(0, readings=UNUSED), gpu(1, readings=BUSY), after=traces.SECONDS)
    sums = node.world.uses.namespaces  # type: ignore[union-attr]
    assert sums["web"].unused == 0
    assert sums["ml"].held == sums["web"].held == pytest.approx(2 * LONG, abs=10)
    assert sums["ml"].unused == pytest.approx(2 * LONG, abs=10)


def test_of_many_namespaces_that_came_and_went_the_newest_and_those_that_hold_a_device_are_kept() -> None:
    node = watching(UNUSED, UNUSED)
    stays = holder(node, gpu_id(1), namespace="web")
    for number in range(MAX_NAMESPACES + 2):
        held(node, stays, holder(node, namespace=f"ns-{number}")).wait().wait(1.0)
    sums = node.world.uses.namespaces  # type: ignore[union-attr]
    assert len(sums) == MAX_NAMESPACES
    assert sums.keys() >= {"web", f"ns-{MAX_NAMESPACES + 1}"}
    assert "ns-0" not in sums
