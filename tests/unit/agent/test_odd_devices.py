"""A device of another kind than the rest takes no other out of service: while the agent runs, and after it was started
again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodedevices_plugin.model import Holder
from nodedevices_plugin.sharing.daemons import MpsFacts
from nodedevices_probe.amd import PROFILE
from nodedevices_probe.protocol import Attribute, DeviceFact, Partition
from support.cases import cases
from support.daemons import answers
from support.facts import GIB, START, gpu, gpu_id, mig_id, partition
from support.local import at_once
from support.probed_node import Node, said
from support.stepped_node import Node as Stepped

AMD, GPU = "amd.com/gpu", "nvidia.com/gpu"


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


def test_a_missing_gpu_that_does_not_fit_strategy_single_stops_no_step_where_rules_are_looked_at() -> None:
    node = Node(said("nvml"))
    node.line("nvml", gpu(0), gpu(1), cut(2, "1g.10gb"))
    node.line("nvml", gpu(0), gpu(1))
    rule = {"match": {"productName": "*H100*"}, "name": GPU}
    config = {"partitions": {"strategy": "single"}, "resources": {"devices": [rule]}}
    node.sees(generation=1, config=config, config_hash="ab").line("nvml", gpu(0), gpu(1))
    assert node.offered == [gpu(0).id, gpu(1).id]
    assert node.world.config.reason == "Applied"
    node.sees(generation=2, config=config | {"resources": {"exclude": ["GPU-9"]}}, config_hash="cd")
    node.line("nvml", gpu(0), gpu(1))
    assert [note.entry for note in node.world.config.unmatched] == ["exclude[0] GPU-9"]


# --- a restart --------------------------------------------------------------------------------------------------------
@cases(
    "odd",
    gpu(1, mig_enabled=False),
    gpu(1, mig_enabled=True),
    cut(1, "3g.40gb", "3g.40gb"),
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


# --- sharing ----------------------------------------------------------------------------------------------------------
BIG = tuple(gpu(number, compute_capability="9.0") for number in range(2))
SMALL = gpu(2, memory_bytes=16 * GIB, product_name="Tesla P100", compute_capability="6.0")
MEMORY = "nodedevices.io/gpu-memory"
OTHER_MODEL = gpu(2, product_name="Tesla T4", compute_capability="9.0")
SOME = {"devices": [device.id for device in BIG]}


def sharing(strategy: str, **rule: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": strategy, "resources": [{"name": GPU, **rule}]}}


def with_mps(*devices: DeviceFact) -> Stepped:
    local = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
    daemon = MpsFacts(statuses=answers({(GPU, 2): "", (GPU, 25): ""}))
    return Stepped(*devices, local=local, mps=daemon)


@cases(
    ("config", "odd", "resource", "said_of_it"),
    (sharing("memory", memoryUnit="20Gi"), SMALL, MEMORY, "has 16Gi of memory"),
    (sharing("mps", replicas=40), SMALL, GPU, "takes 16 MPS clients at most"),
    (sharing("mps", replicas=4, **SOME), OTHER_MODEL, GPU, "need names of their own"),
    (sharing("memory", memoryUnit="6Mi"), replace(BIG[0], id=gpu_id(2), index=2), MEMORY, "would exceed 3 MiB"),
    ids=["too small", "takes fewer clients", "of another model", "too many ids"],
)
def test_a_gpu_that_does_not_fit_the_sharing_in_effect_is_left_out_and_no_restart_takes_the_others_along(
    config: dict[str, Any], odd: DeviceFact, resource: str, said_of_it: str
) -> None:
    node = with_mps(*BIG).now(config).now(config)
    offered = node.offers[resource]
    assert offered
    node.devices = (*BIG, odd)
    for each in (node, node.restarted(), node.restarted()):
        each.given(mps=node.inputs.mps).now(config).now(config)
        assert (each.offers[resource], each.config) == (offered, "ConfigInvalid")
        assert said_of_it in each.world.config.message


def test_a_gpu_of_which_the_name_is_another_resources_is_left_out_and_no_restart_takes_the_others_along() -> None:
    rule = {"match": {"productName": "Tesla T4"}, "name": "example.com/shared"}
    config = sharing("timeSlicing", replicas=2, rename="example.com/shared") | {"resources": {"devices": [rule]}}
    node = Stepped(*BIG).now(config)
    node.devices = (*BIG, OTHER_MODEL)
    for each in (node, node.restarted()):
        assert len(each.now(config).now(config).offers["example.com/shared"]) == 4
        assert "another resource of this node has that name" in each.world.config.message


# --- devices that are gone --------------------------------------------------------------------------------------------
@cases("restarts", False, True)
def test_a_gpu_that_is_gone_and_was_in_mig_mode_leaves_the_others_in_service(restarts: bool) -> None:
    single = {"partitions": {"strategy": "single"}}
    node = Stepped(*(cut(number, "1g.10gb", "1g.10gb") for number in range(8))).now(single)
    node.devices = node.devices[1:]
    assert node.now(single).counts == {GPU: (14, 14)}
    node.devices = tuple(gpu(number) for number in range(1, 8))
    if restarts:
        node = node.restarted()
    assert node.now(single).now(single).counts == {GPU: (7, 7)}
    assert node.config == "Applied"


@cases(
    ("config", "offered"),
    (sharing("memory", memoryUnit="20Gi"), {MEMORY: 4}),
    (sharing("mps", replicas=40), {GPU: 40}),
)
def test_a_policy_is_in_effect_though_a_gone_gpu_does_not_fit(config: dict[str, Any], offered: dict[str, int]) -> None:
    node = with_mps(SMALL).now({})
    node.devices = BIG[:1]
    node.now({}).now(config).now(config)
    assert ({name: len(ids) for name, ids in node.offers.items()}, node.config) == (offered, "Applied")


def test_what_a_pod_holds_of_a_gpu_that_is_gone_and_does_not_fit_stays_listed_unhealthy() -> None:
    holder = Holder(namespace="ml", pod="train", container="c", resource=GPU, ids=(SMALL.id,), since=START)
    config = sharing("memory", memoryUnit="20Gi")
    node = Stepped(SMALL).now({}).now({}, holder)
    node.devices = BIG[:1]
    node.now({}, holder).now(config, holder)
    retained = {each.name: [(one.id, one.healthy) for one in each.retained] for each in node.plan.resources}
    assert retained[GPU] == [(SMALL.id, False)]
    assert len(node.offers[MEMORY]) == 4
