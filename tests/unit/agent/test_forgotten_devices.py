"""`health.forgetMissingSeconds`: a missing device leaves the node after that time, never while anybody may hold it, and
whatever restarts in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
from msgspec.structs import replace
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, RecentAllocate
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.state import StateFile
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.protocol import Snapshot
from support.facts import START, gpu, gpu_id, mig_id, partition, xid
from support.stepped_node import Node

LOCAL = parse(["--node-name=n1"], {})
GPU = "nvidia.com/gpu"
FORGET = 600
POLICY: dict[str, Any] = {"health": {"forgetMissingSeconds": FORGET}}
BOTH, ONE = (gpu(0), gpu(1)), (gpu(0),)
NEVER_LISTED = Holdings(state=HoldersState.UNAVAILABLE)


class Forgetting(Node):
    """A node whose policy forgets; what it saves is in a file."""

    def __init__(self, folder: Path) -> None:
        self.file = StateFile(folder / "state.json")
        super().__init__(local=LOCAL, seen=SeenObject(exists=True, generation=1, config=POLICY))
        self.held()

    def starts(self) -> Self:
        """The agent starts with what the file has."""
        self.begin(self.file.load())
        return self

    def held(self, *ids: str) -> Self:
        holders = (Holder(namespace="ml", pod="a", container="c", resource=GPU, ids=ids, since=START),) if ids else ()
        return self.given(holdings=Holdings(state=HoldersState.SYNCED, holders=holders, taken=self.clock))

    def step(self, line: Snapshot | None = None, source: str = "") -> Self:
        super().step(line, source)
        self.file.save(self.world.state)
        return self

    @property
    def knows(self) -> set[str]:
        listed = {device.fact.id for device in self.world.known.inventory.devices}
        offered = {
            each.id for resource in (self.world.plan.resources if self.world.plan else ()) for each in resource.ids
        }
        assert offered <= listed
        return listed


@pytest.fixture
def node(tmp_path: Path) -> Forgetting:
    """GPU 1 has been missing for no time yet."""
    return Forgetting(tmp_path).line(*BOTH).line(*BOTH).line(*ONE)


def test_a_missing_gpu_that_nobody_holds_leaves_the_node_and_the_kubelets_list_in_time(node: Forgetting) -> None:
    assert node.line(*ONE, after=FORGET - 1).knows == {gpu_id(0), gpu_id(1)}
    assert node.line(*ONE, after=1).knows == {gpu_id(0)}
    assert set(node.world.known.verdicts) == {gpu_id(0)}
    assert [each.fact.id for each in node.file.load().devices] == [gpu_id(0)]


def test_without_the_policy_it_stays_for_good(node: Forgetting) -> None:
    node.given(seen=SeenObject(exists=True, generation=2, config={}))
    node.line(*ONE)
    assert node.line(*ONE, after=10**6).knows == {gpu_id(0), gpu_id(1)}


def test_one_that_comes_back_later_is_a_new_device(node: Forgetting) -> None:
    node.line(*BOTH, events=(xid(79, 1, sequence=1, after=node.clock),)).line(*ONE)
    assert node.world.known.verdicts[gpu_id(1)].reason == "Missing"
    assert node.line(*ONE, after=FORGET).knows == {gpu_id(0)}
    back = node.line(*BOTH)
    assert (back.knows, back.world.known.verdicts[gpu_id(1)].faults) == ({gpu_id(0), gpu_id(1)}, ())


def test_one_that_a_pod_holds_stays_until_the_pod_has_ended(node: Forgetting) -> None:
    node.held(gpu_id(1))
    assert node.line(*ONE, after=10 * FORGET).knows == {gpu_id(0), gpu_id(1)}
    assert node.held().line(*ONE).knows == {gpu_id(0)}


@pytest.mark.parametrize("id_", [f"{gpu_id(1)}::3", mig_id(1, 0)], ids=["a share", "a MIG device"])
def test_one_of_which_a_pod_holds_a_part_stays(tmp_path: Path, id_: str) -> None:
    cut = (gpu(0), gpu(1, partitions=(partition(1, 0),), mig_enabled=True))
    node = Forgetting(tmp_path).line(*cut).held(id_).line(*ONE)
    assert node.line(*ONE, after=10 * FORGET).knows == {gpu_id(0), gpu_id(1)}
    assert node.held().line(*ONE).knows == {gpu_id(0)}


def test_one_that_an_allocate_gave_away_unseen_stays_while_that_is_remembered(node: Forgetting) -> None:
    node.line(*ONE, after=FORGET - 20)
    given = RecentAllocate(resource=GPU, ids=(gpu_id(1),), time=node.time, monotonic=node.clock)
    node.given(recent=(given,))
    assert node.line(*ONE, after=20).knows == {gpu_id(0), gpu_id(1)}
    node.given(recent=())
    assert node.line(*ONE).knows == {gpu_id(0)}


def test_nothing_is_forgotten_before_the_first_list_of_pods(node: Forgetting) -> None:
    node.starts().given(holdings=NEVER_LISTED)
    assert node.line(*ONE, after=FORGET).line(*ONE).knows == {gpu_id(0), gpu_id(1)}
    node.given(holdings=replace(NEVER_LISTED, possible=(Offer(resource=GPU, ids=()),)))
    assert node.line(*ONE).knows == {gpu_id(0), gpu_id(1)}, "a checkpoint is no List"
    assert node.held().line(*ONE).knows == {gpu_id(0)}


def test_a_restart_goes_on_counting_where_the_agent_was(node: Forgetting) -> None:
    node.line(*ONE, after=FORGET - 60).starts()
    assert node.line(*ONE, after=59).knows == {gpu_id(0), gpu_id(1)}
    assert node.starts().line(*ONE, after=1).knows == {gpu_id(0)}


def test_a_long_stop_of_the_agent_forgets_no_gpu_that_the_next_line_has(node: Forgetting) -> None:
    """It is over its time before the first line: only a line may say that it is still gone."""
    node.line(*BOTH, events=(xid(79, 1, sequence=1, after=node.clock),)).line(*ONE)
    node.clock += 100 * FORGET
    node.starts().wait(1)
    assert node.knows == {gpu_id(0), gpu_id(1)}
    node.line(*BOTH)
    assert "Xid79" in {fault.reason for fault in node.world.known.verdicts[gpu_id(1)].faults}


def test_one_that_left_while_the_agent_was_stopped_is_missing_from_its_first_line_on(tmp_path: Path) -> None:
    node = Forgetting(tmp_path).line(*BOTH)
    node.clock += 100 * FORGET
    assert node.starts().line(*ONE).knows == {gpu_id(0), gpu_id(1)}
    assert node.line(*ONE, after=FORGET).knows == {gpu_id(0)}
