"""A device of another kind than the rest takes no other out of service: while the agent runs, and after it was started
again."""

from __future__ import annotations

import pytest
from nodedevices_plugin.model import Holder
from nodedevices_probe.amd.attributes import PROFILE
from nodedevices_probe.protocol import Attribute, DeviceFact, Partition
from support.facts import START, gpu, mig_id, partition
from support.probed_node import Node, said
from support.stepped_node import Node as Stepped

AMD = "amd.com/gpu"


def amd(number: int, kind: str) -> DeviceFact:
    bus_id = f"0000:{number + 16:02x}:00.0"
    cut = range(8) if kind == "cpx_nps1" else ()
    return DeviceFact(
        id=bus_id,
        index=number,
        type="gpu",
        vendor="amd",
        pci_bus_id=bus_id,
        partitions=tuple(Partition(id=f"{bus_id}-xcp-{part}", profile=kind, index=part) for part in cut),
        extra={PROFILE: Attribute(string=kind)},
    )


def cut(number: int, *profiles: str) -> DeviceFact:
    parts = (partition(number, at, profile=each, start=at, size=1) for at, each in enumerate(profiles))
    return gpu(number, mig_enabled=True, partitions=tuple(parts))


# --- AMD --------------------------------------------------------------------------------------------------------------
def test_amds_other_gpus_are_offered_while_a_pod_holds_a_partition_of_one_that_was_made_whole() -> None:
    node = Stepped(*(amd(number, "cpx_nps1") for number in range(3))).now()
    assert len(node.offers[AMD]) == 24
    notebook = Holder(
        namespace="ml", pod="notebook", container="c", resource=AMD, ids=("0000:10:00.0-xcp-3",), since=START
    )
    node.now(None, notebook)
    node.devices = tuple(amd(number, "spx_nps1") for number in range(3))
    assert node.now(None, notebook).offers == {AMD: ["0000:11:00.0", "0000:12:00.0"]}
    assert node.world.config.reason == "WaitingForHolders"
    assert node.now().offers == {AMD: ["0000:10:00.0", "0000:11:00.0", "0000:12:00.0"]}


def test_of_amds_gpus_in_several_modes_those_of_the_one_that_most_have_stay_offered() -> None:
    node = Stepped(*(amd(number, "spx_nps1") for number in range(3))).now()
    node.devices = (amd(0, "spx_nps1"), amd(1, "cpx_nps1"), amd(2, "spx_nps1"))
    assert node.now().offers == {AMD: ["0000:10:00.0", "0000:12:00.0"]}
    assert "in several partitions (cpx_nps1, spx_nps1); use mixed" in node.world.config.message


def test_two_gpus_that_are_cut_under_strategy_single_leave_six_whole_ones_in_service() -> None:
    node = Node(said("nvml"))
    node.sees(generation=1, config={"partitions": {"strategy": "single"}}, config_hash="ab")
    whole = tuple(gpu(number) for number in range(8))
    node.line("nvml", *whole)
    node.line("nvml", *whole[:6], cut(6, "3g.40gb", "3g.40gb"), cut(7, "1g.10gb", "1g.10gb"))
    assert node.offered == [gpu(number).id for number in range(6)]
    assert "GPU 0 is not in MIG mode and others are" in node.world.config.message
    assert node.restart().line("nvml", *whole[:6], cut(6, "3g.40gb"), cut(7, "1g.10gb")).offered == node.offered


# --- a restart --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "odd",
    [gpu(1, mig_enabled=False), gpu(1, mig_enabled=True), cut(1, "3g.40gb", "3g.40gb")],
    ids=["not in MIG mode", "without MIG devices", "cut otherwise"],
)
def test_with_one_gpu_that_does_not_fit_the_strategy_a_restart_changes_nothing(odd: DeviceFact) -> None:
    both = (cut(0, "1g.10gb", "1g.10gb"), cut(1, "1g.10gb", "1g.10gb"), cut(2, "1g.10gb", "1g.10gb"))
    node = Node(said("nvml"))
    node.sees(generation=1, config={"partitions": {"strategy": "single"}}, config_hash="ab")
    node.line("nvml", *both)
    assert len(node.offered) == 6
    after = (both[0], odd, both[2])
    node.line("nvml", *after).line("nvml", *after)
    kept = [mig_id(number, part) for number in (0, 2) for part in (0, 1)]
    assert (node.offered, node.world.config.reason) == (kept, "ConfigInvalid")
    again = node.restart()
    again.line("nvml", *after).line("nvml", *after)
    assert (again.offered, again.world.config.reason) == (kept, "ConfigInvalid")
    assert len(again.line("nvml", *both).offered) == 6
