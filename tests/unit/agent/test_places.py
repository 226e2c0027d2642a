"""A place has one device: what may be one thing by two ids goes to no two pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from nodedevices_plugin.model import Holder, HoldersState, Holdings, RecentAllocate
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact, Partition
from support.cases import cases
from support.facts import CONFIRMED, START, gpu, gpu_id, mig_id, partition
from support.local import at_once
from support.probed_node import CONFIG, RDMA, Node, nic, said
from support.stepped_node import Node as Stepped
from support.trees import mi300x

OLD, NEW, NEXT = gpu_id(7), gpu_id(8), gpu_id(1)
GPU = "nvidia.com/gpu"
RDMA_CM = "/dev/infiniband/rdma_cm"
CONTROL = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"})
BOTH = said("one=/opt/one", "two=/opt/two")


def at(slot: int, uuid: str, **facts: Any) -> DeviceFact:
    return gpu(slot, id=uuid, pci_bus_id=f"0000:{slot + 1:02x}:00.0", device_nodes=(f"/dev/nvidia{slot}",), **facts)


def train(*ids: str) -> Holder:
    return Holder(namespace="ml", pod="train", container="main", resource=GPU, ids=ids, since=START)


def replaced(config: dict[str, Any], *now: DeviceFact) -> Stepped:
    """A pod holds the GPU that was in slot 0, where another one is by now."""
    node = Stepped(at(0, OLD), at(1, NEXT), existing=CONTROL).now(config).now(config, train(OLD))
    node.devices = now or (at(0, NEW), at(1, NEXT))
    return node.now(config, train(OLD))


# --- replaced in its slot ---------------------------------------------------------------------------------------------
@cases(
    "injection",
    {"deviceIDStrategy": "index"},
    {"passDeviceSpecs": True},
    {"deviceListStrategies": ["driver-directory"]},
)
def test_a_gpu_in_the_slot_of_one_that_a_pod_holds_goes_to_no_other_pod(injection: dict[str, Any]) -> None:
    node = replaced({"injection": injection})
    assert node.offers == {GPU: [NEXT]}
    [problem] = node.world.known.inventory.problems
    assert (problem.code, f"({NEW}): not offered until no pod holds {OLD}" in problem.message) == ("SamePlace", True)


def test_a_gpu_in_a_pods_place_is_offered_once_that_pod_has_ended_and_others_at_once() -> None:
    node = replaced({})
    assert node.now({}).offers == {GPU: [NEW, NEXT]}
    assert node.world.known.inventory.problems == ()
    moved = gpu(0, id=NEXT, pci_bus_id="0000:02:00.0", device_nodes=("/dev/nvidia0",))
    node = replaced({}, moved, at(1, NEW))
    assert node.offers == {GPU: [NEW]}


def test_an_index_alone_is_a_place_only_where_containers_are_given_indices() -> None:
    def offers(config: dict[str, Any]) -> list[str]:
        node = Stepped(gpu(0, id=OLD)).now(config).now(config, train(OLD))
        node.devices = (gpu(0, id=NEW),)
        return node.now(config, train(OLD)).offers[GPU]

    assert offers({}) == [NEW]
    assert offers({"injection": {"deviceIDStrategy": "index"}}) == []


@cases("shared", "/dev/kfd", "/dev/infiniband/rdma_cm", "/dev/vfio/vfio")
def test_a_device_node_that_any_number_of_devices_need_is_no_place(shared: str) -> None:
    def with_it(slot: int, uuid: str) -> DeviceFact:
        return gpu(slot, id=uuid, device_nodes=(shared, f"/dev/dri/renderD{slot}"))

    node = Stepped(with_it(0, OLD)).now({}).now({}, train(OLD))
    node.devices = (with_it(1, NEW),)
    assert node.now({}, train(OLD)).offers == {GPU: [NEW]}


def test_while_nobody_knows_who_holds_what_a_replaced_gpu_waits() -> None:
    node = Node(said("one=/opt/one")).line("one", at(0, OLD)).line("one", at(0, NEW))
    assert node.offered == [NEW]
    again = node.restart()
    again.given(holdings=Holdings(state=HoldersState.UNAVAILABLE))
    again.wait(10, one=(at(0, NEW),))
    assert again.offered == []


def confirmed_while_held() -> Node:
    """A person said that the GPU is removed whose place a new one has, while a pod has it."""
    node = Node(said("one=/opt/one")).line("one", at(0, OLD)).held(GPU, OLD).line("one", at(0, NEW))
    node.sees(confirm=f"{OLD}=removed@{CONFIRMED}")
    return node.line("one", at(0, NEW)).wait(10, one=(at(0, NEW),))


def test_a_removal_waits_for_the_pod_that_holds_the_gpu_and_counts_no_more_once_the_gpu_is_back() -> None:
    node = confirmed_while_held()
    assert (OLD in node.devices, node.offered) == (True, [])
    assert list(node.world.confirm_waits) == [f"{OLD}=removed: remembered; listed until no pod holds it"]
    node = confirmed_while_held().line("one", at(0, OLD)).line("one", at(0, NEW))
    assert node.world.confirm_waits == ()
    assert OLD in node.held(GPU).devices


def test_a_removal_is_acted_on_when_that_pod_has_ended_though_the_agent_was_restarted() -> None:
    node = confirmed_while_held().held(GPU)
    assert (node.devices, node.offered) == ([NEW], [NEW])
    assert node.world.confirm_waits == ()
    before = confirmed_while_held()
    node = before.restart()
    node.sees(confirm="")  # the person has tidied up
    node.line("one", at(0, NEW))
    assert (OLD in node.devices, node.offered) == (True, [])
    assert node.held(GPU).devices == [NEW]


def test_while_nobody_knows_who_holds_what_a_removal_is_remembered() -> None:
    before = Node(said("one=/opt/one")).line("one", at(0, OLD)).held(GPU, OLD).line("one", at(0, NEW))
    node, known = before.restart(), before.inputs.holdings
    node.given(holdings=Holdings(state=HoldersState.UNAVAILABLE))
    node.sees(confirm=f"{OLD}=removed@{CONFIRMED}")
    node.wait(10, one=(at(0, NEW),))
    node.given(holdings=known)
    assert (OLD in node.line("one", at(0, NEW)).devices, node.offered) == (True, [])
    assert node.held(GPU).devices == [NEW]


def test_the_kubelets_checkpoint_is_asked_for_while_a_place_or_a_device_waits_for_its_holder() -> None:
    """The entry of a pod that has ended may stand in it, and nothing else would make the kubelet write it again."""
    node = Node(said("one=/opt/one")).line("one", at(0, OLD)).held(GPU, OLD)
    assert not node.world.waits_for_holders
    node.line("one", at(0, NEW))
    assert (node.world.config.reason, node.world.waits_for_holders) == ("Applied", True)
    assert not node.held(GPU).world.waits_for_holders
    # Its removal is confirmed, or its probe was taken away; nothing is in its place.
    node = Node(said("one=/opt/one")).line("one", at(0, OLD), at(1, NEXT)).held(GPU, OLD).line("one", at(1, NEXT))
    assert not node.world.waits_for_holders
    node.sees(confirm=f"{OLD}=removed@{CONFIRMED}")
    assert node.line("one", at(1, NEXT)).world.waits_for_holders
    assert not node.held(GPU).world.waits_for_holders


# --- the device of a pod has another place now -----------------------------------------------------------------------
@cache
def amd(*, gpus: int, cut: bool = False) -> tuple[DeviceFact, ...]:
    with TemporaryDirectory() as folder:
        mi300x(Path(folder), gpus=gpus, **({"compute": "CPX", "memory": "NPS1"} if cut else {}))
        return AmdSource(system=System(Path(folder))).poll().devices


@dataclass(frozen=True)
class Renumbered:
    """A pod holds `held`; then the devices have other places, and what is no longer `offered` has one of the pod's."""

    before: tuple[DeviceFact, ...]
    after: tuple[DeviceFact, ...]
    resource: str
    held: str
    withheld: tuple[str, ...]
    flags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def first_gpu_did_not_come_back(*flags: str) -> Renumbered:
    before = tuple(gpu(n, minor=n, device_nodes=(f"/dev/nvidia{n}",)) for n in range(4))
    after = tuple(
        dataclasses.replace(each, index=n, minor=n, device_nodes=(f"/dev/nvidia{n}",))
        for n, each in enumerate(before[1:])
    )
    return Renumbered(before, after, GPU, gpu_id(1), (gpu_id(2),), flags)


def first_amd_gpu_did_not_come_back() -> Renumbered:
    before = amd(gpus=4)
    after = tuple(
        dataclasses.replace(each, index=n, device_nodes=before[n].device_nodes) for n, each in enumerate(before[1:])
    )
    return Renumbered(before, after, "amd.com/gpu", before[1].id, (before[2].id,), ("--probe=amd",))


def another_gpus_partition_has_the_nodes_of_one() -> Renumbered:
    first, second = amd(gpus=2, cut=True)
    parts = list(second.partitions)
    parts[3] = dataclasses.replace(parts[3], device_nodes=first.partitions[5].device_nodes)
    extra = {name: each for name, each in first.extra.items() if name != "partitionProfile"}
    after = (dataclasses.replace(first, partitions=(), extra=extra), replace(second, partitions=tuple(parts)))
    held = first.partitions[5].id
    return Renumbered((first, second), after, "amd.com/gpu", held, (parts[3].id,), ("--probe=amd",))


def nics_changed_places() -> Renumbered:
    first, second, third = (nic(n, device_nodes=(f"/dev/infiniband/uverbs{n}", RDMA_CM)) for n in range(3))
    after = (
        dataclasses.replace(first, device_nodes=second.device_nodes),
        dataclasses.replace(second, device_nodes=first.device_nodes),
        third,
    )
    return Renumbered((first, second, third), after, RDMA, first.id, (second.id,), ("--probe=nic",), CONFIG)


STORIES = [
    pytest.param(first_gpu_did_not_come_back, id="NVIDIA"),
    pytest.param(lambda: first_gpu_did_not_come_back("--pass-device-specs=true"), id="NVIDIA with device nodes"),
    pytest.param(lambda: first_gpu_did_not_come_back("--device-id-strategy=index"), id="NVIDIA by index"),
    pytest.param(first_amd_gpu_did_not_come_back, id="AMD"),
    pytest.param(another_gpus_partition_has_the_nodes_of_one, id="partitions of AMD"),
    pytest.param(nics_changed_places, id="NICs"),
]


def started(story: Renumbered) -> Stepped:
    return Stepped(*story.before, local=at_once(["--node-name=n1", *story.flags], {}))


def holder(story: Renumbered) -> Holder:
    return Holder(
        namespace="ml", pod="train", container="main", resource=story.resource, ids=(story.held,), since=START
    )


def healthy(node: Stepped, story: Renumbered) -> set[str]:
    return set(node.offers.get(story.resource, ()))


@cases("restarts", "never", "before", "after")
@cases("story", *STORIES)
def test_what_has_a_place_that_a_pod_was_given_goes_to_no_new_pod(
    story: Callable[[], Renumbered], restarts: str
) -> None:
    told, config = story(), dict(story().config)
    node = started(told).now(config).now(config, holder(told))
    offered = healthy(node, told)
    node = node.restarted() if restarts == "before" else node
    node.devices = told.after
    node.now(config, holder(told))
    node = node.restarted() if restarts == "after" else node
    node.devices = told.after
    node.now(config, holder(told))
    others = {id_ for id_ in offered - {told.held} if id_ in {part for each in told.after for part in ids_of(each)}}
    assert others - healthy(node, told) == set(told.withheld)
    assert set(told.withheld) <= healthy(node.now(config), told), "the pod has ended"


def ids_of(fact: DeviceFact) -> set[str]:
    return {fact.id, *(part.id for part in fact.partitions)}


def test_while_nobody_knows_who_holds_what_every_device_counts_as_held_where_it_was() -> None:
    story = first_gpu_did_not_come_back()
    node = started(story).now({}).now({}, holder(story)).restarted()
    node.devices = story.after
    node.given(holdings=Holdings(state=HoldersState.UNAVAILABLE), existing=CONTROL).sees(config={})
    assert node.line().line().wait(10).offers[GPU] == []
    assert node.now({}, holder(story)).offers[GPU] == [gpu_id(1), gpu_id(3)]


def test_a_pod_that_follows_another_is_given_what_the_device_has_by_then() -> None:
    """And the place of before is free, though the id was held at every List."""
    story = first_gpu_did_not_come_back()
    node = started(story).now({}).now({}, holder(story))
    node.devices = story.after
    assert node.now({}, holder(story)).offers[GPU] == [gpu_id(1), gpu_id(3)]
    again = RecentAllocate(resource=GPU, ids=(gpu_id(1),), time=node.time, monotonic=node.clock)
    assert node.given(recent=(again,)).now({}, holder(story)).offers[GPU] == [gpu_id(1), gpu_id(2), gpu_id(3)]
    assert node.world.state.given == {}, "as it is now"


def test_the_device_that_a_claim_was_given_is_held_though_another_has_its_name_now() -> None:
    """A DRA driver numbers devices; the pod has what the number was when its claim was prepared, or what it is now."""
    story = first_gpu_did_not_come_back()
    claim = "gpu.nvidia.com/n1/gpu-1"
    pod = Holder(namespace="ml", pod="train", container="main", claim="gpu", ids=(claim,), since=START)
    node = started(story).now({}).now({}, pod)
    node.devices = story.after
    for each in (node.now({}, pod), node.restarted()):
        each.devices = story.after
        assert each.now({}, pod).offers[GPU] == [gpu_id(3)]
        assert [one.ids for one in each.world.holdings.holders] == [(gpu_id(1),)]


def test_a_mig_device_made_in_the_place_of_one_that_a_pod_holds_goes_to_no_other_pod() -> None:
    """By its capability nodes, though their memory slices are others."""

    def with_mig(*parts: Partition) -> DeviceFact:
        return gpu(0, mig_enabled=True, minor=0, device_nodes=("/dev/nvidia0",), partitions=parts)

    def part(number: int, gi: int) -> Partition:
        caps = f"/dev/nvidia-caps/nvidia-cap{gi}", f"/dev/nvidia-caps/nvidia-cap{gi + 1}"
        return dataclasses.replace(partition(0, number, start=number, size=1), device_nodes=caps)

    config, name = {"partitions": {"strategy": "mixed"}}, "nvidia.com/mig-1g.10gb"
    node = Stepped(with_mig(part(0, 12), part(1, 21))).now(config)
    held = Holder(namespace="ml", pod="train", container="main", resource=name, ids=(mig_id(0, 0),), since=START)
    node.now(config, held)
    node.devices = (with_mig(part(1, 21), part(2, 12), part(3, 30)),)
    assert node.now(config, held).offers[name] == [mig_id(0, 1), mig_id(0, 3)]


# --- two probes at one place ------------------------------------------------------------------------------------------
CARD = nic(0, id="CARD", pci_bus_id="", device_nodes=("/dev/card0", "/dev/common"))


def other(*nodes: str, pci: str = "", **facts: Any) -> DeviceFact:
    return nic(**{"index": 5, "id": "OTHER", "pci_bus_id": pci, "device_nodes": nodes, **facts})


@cases(
    ("first", "second"),
    (CARD, other("/dev/card0")),
    (nic(0, id="CARD"), other(pci="0000:3b:00.0")),
    ids=["one device node", "one PCI address"],
)
def test_of_two_devices_at_one_place_the_first_is_offered(first: DeviceFact, second: DeviceFact) -> None:
    node = Node(BOTH).line("one", first).line("two", second)
    assert node.offered == ["CARD"]
    [problem] = node.problems
    assert problem.startswith("SamePlace: nic-5 (OTHER): not offered: CARD is at the same place, by another probe;")
    assert Node(BOTH).line("two", second).line("one", first).offered == ["CARD"], "whichever reports first"


@cases("spelled", "00000000:3B:00.0", "3b:00.0", "0000:3B:00.0")
def test_a_pci_address_is_one_place_however_a_probe_spells_it(spelled: str) -> None:
    node = Node(BOTH).line("one", nic(0, id="CARD")).line("two", other(pci=spelled))
    assert node.offered == ["CARD"]
    after = Node(said("one=/opt/one")).line("one", nic(0, id="CARD")).held(RDMA, "CARD")
    after.uses(said("two=/opt/two")).wait(60, two=(other(pci=spelled),))
    assert after.offered == [], "a pod holds it under the id of a probe that was taken away"


def test_the_second_probes_keeps_the_place_that_it_had_and_while_a_pod_holds_it_both_are_withheld() -> None:
    node = Node(said("two=/opt/two")).line("two", other("/dev/card0"))
    assert node.offered == ["OTHER"]
    node.uses(BOTH).line("one", CARD).line("two", other("/dev/card0"))
    assert node.offered == ["OTHER"], "the kubelet may be handing it out"
    assert not node.world.waits_for_holders, "no pod's end would change it"
    node.held("example.com/rdma", "OTHER").line("two", other("/dev/card0"))
    assert "CARD" not in node.offered
    assert node.held("example.com/rdma", "OTHER", "CARD").world.waits_for_holders, (
        "one is back when the other's pod has ended"
    )


def test_a_device_in_no_resource_and_a_node_of_several_devices_are_in_nobodys_way() -> None:
    """As every NIC that no file names."""
    unused = nic(0, id="CARD", vendor="none", type="port", pci_bus_id="", device_nodes=("/dev/card0",))
    node = Node(BOTH).line("one", unused).line("two", other("/dev/card0"))
    assert (node.offered, node.problems) == (["OTHER"], [])
    second = nic(1, id="SECOND", pci_bus_id="", device_nodes=("/dev/card1", "/dev/common"))
    node = Node(BOTH).line("one", CARD, second).line("two", other("/dev/common"))
    assert (sorted(node.offered), node.problems) == (["CARD", "OTHER", "SECOND"], [])
