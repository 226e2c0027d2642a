"""What of a configuration matches nothing on a node is reported: a name with a typo would share nothing."""

from __future__ import annotations

from typing import Any

from nodedevices_api.defaults import with_defaults
from nodedevices_api.sections import Sections
from nodedevices_plugin.model import Inventory
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.offering.unmatched import unmatched, unmatched_capacity, unmatched_cordons, unmatched_rules
from nodedevices_plugin.settings.file import parse
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import gpu, gpu_id, inventory_of, mig_id, partition

H100 = "NVIDIA H100 80GB HBM3"
CUT = gpu(0, mig_enabled=True, partitions=(partition(0, 0, profile="1g.10gb"),))


def notes(*devices: DeviceFact, **sections: Any) -> list[str]:
    """Of sections as a policy gives them."""
    inventory = inventory_of(*devices) if devices else inventory_of(gpu(0))
    found = unmatched(inventory, PlanSettings.from_sections(Sections.model_validate(sections)))
    return [each.text for each in found]


def notes_of_file(text: str) -> list[str]:
    """Of NVIDIA's configuration file."""
    config = parse(text.encode())
    settings = PlanSettings.from_sections(Sections(resources=config.resources, sharing=config.sharing))
    return [each.text for each in unmatched(inventory_of(gpu(0)), settings, frozenset({"resources", "sharing"}))]


def shared(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": "timeSlicing", "resources": list(resources)}


def test_names_and_devices_that_this_node_does_not_offer_are_named_with_what_it_does() -> None:
    found = notes(sharing=shared({"name": "nvidia.com/gpuu", "replicas": 2}, {"name": "nvidia.com/gpu", "replicas": 2}))
    assert found == [
        "sharing.resources[0].name nvidia.com/gpuu: no such resource on this node; offered: nvidia.com/gpu"
    ]
    found = notes(CUT, partitions={"strategy": "mixed"}, sharing=shared({"name": "nvidia.com/gpu", "replicas": 2}))
    assert found == [
        "sharing.resources[0].name nvidia.com/gpu: no such resource on this node; offered: nvidia.com/mig-1g.10gb"
    ]
    entry = {"name": "nvidia.com/gpu", "devices": ["7", "9"], "replicas": 2}
    assert notes(sharing=shared(entry)) == [
        f"sharing.resources[0].devices 7, 9: nvidia.com/gpu has no such device on this node; there are: 0 ({gpu_id(0)})"
    ]
    assert notes(sharing=shared(entry | {"devices": ["0"]})) == []
    entry = {"name": "nvidia.com/gpu", "devices": ["0", "99"], "replicas": 2}
    here = f"nvidia.com/gpu has no such device on this node; there are: 0 ({gpu_id(0)})"
    assert notes(sharing=shared(entry)) == [f"sharing.resources[0].devices[1] 99: {here}"]


@cases("kind", "timeSlicing", "mps")
def test_the_place_in_nvidias_file(kind: str) -> None:
    found = notes_of_file(f"sharing: {{{kind}: {{resources: [{{name: gpuu, replicas: 2}}]}}}}")
    assert found == [
        f"sharing.{kind}.resources[0].name nvidia.com/gpuu: no such resource on this node; offered: nvidia.com/gpu"
    ]


@cases("devices", {}, {"devices": ["*"]})
def test_a_gpu_without_memory_of_its_own_that_is_to_be_shared_by_memory(devices: dict[str, Any]) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#1115: a GB10 uses the machine's memory, and NVML has none of it."""
    gb10 = gpu(0, product_name="NVIDIA GB10", memory_bytes=0)
    rule = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi", **devices}
    by_memory = {"strategy": "memory", "resources": [rule]}
    note = (
        f"sharing.resources[0].name nvidia.com/gpu: the driver reports no memory for 0 ({gpu_id(0)}), so no shares of "
        "it are offered; use timeSlicing for it"
    )
    assert notes(gb10, sharing=by_memory) == [note]
    assert notes(gb10, gpu(1), sharing=by_memory) == [note], "the other one has shares"
    assert notes(gb10, sharing=shared({"name": "nvidia.com/gpu", "replicas": 4})) == []


def capacities(*entries: dict[str, Any], devices: tuple[DeviceFact, ...] = (gpu(0),)) -> list[str]:
    sections = Sections.model_validate({"capacity": list(entries)})
    return [each.text for each in unmatched_capacity(inventory_of(*devices), sections.capacity or ())]


def test_a_capacity_that_counts_no_device_of_the_node() -> None:
    a100 = {"name": "example.com/a100", "type": "gpu", "productName": "*A100*", "perDevice": 1}
    every = {"name": "example.com/gpus", "perDevice": 1}
    h100 = {"name": "example.com/h100", "productName": "*H100*", "perDevice": 1}
    assert capacities(every, a100, h100) == [
        (
            "capacity[1] productName *A100*, type gpu: example.com/a100 counts no device on this node; "
            f"there are: {H100} of type gpu"
        )
    ]
    assert capacities(a100, devices=()) == [], "a node without devices has no notes"


def rules(*devices: DeviceFact, **sections: Any) -> list[str]:
    parsed = with_defaults(Sections.model_validate(sections))
    return [each.text for each in unmatched_rules(inventory_of(*devices), parsed)]


def test_a_rule_of_health_or_faults_about_no_device_of_the_node() -> None:
    nics = {"match": {"type": "nic"}}
    health = {"rules": [{"reasons": ["*"], "state": "Ignored"}, {"reasons": ["*"], "state": "Ignored", **nics}]}
    faults = {"rules": [nics, {"reasons": ["Xid79"]}, {"match": {"productName": "nvidia*"}}]}
    none = "the rule applies to no device on this node; there are:"
    alike = f"case matters: {H100} differs only in case"
    assert rules(gpu(0), health=health, faults=faults) == [
        f"health.rules[1].match type nic: {none} {H100} of type gpu",
        f"faults.rules[0].match type nic: {none} {H100} of type gpu",
        f"faults.rules[2].match productName nvidia*: {none} {H100}; {alike}",
    ]
    assert rules(health=health, faults=faults) == [], "a node without devices has no notes"


def test_a_capacity_that_missed_by_its_case() -> None:
    small = gpu(0, product_name="NVIDIA L4")
    near = {"name": "example.com/x", "productName": "*l4", "perDevice": 1}
    assert capacities(near, devices=(small,)) == [
        (
            "capacity[0] productName *l4: example.com/x counts no device on this node; there are: NVIDIA L4; "
            "case matters: NVIDIA L4 differs only in case"
        ),
    ]


def test_a_pattern_that_matches_nothing_or_is_left_nothing_is_named() -> None:
    rule = {"match": {"vendor": "nvidia", "productName": "*A100*"}, "name": "nvidia.com/a100"}
    found = notes(resources={"devices": [rule]})
    assert found == [
        f"resources.devices[0].match productName *A100*, vendor nvidia: no such device on this node; there are: {H100}"
    ]
    every, some = ({"match": {"productName": each}, "name": "nvidia.com/x"} for each in ("*", "*H100*"))
    found = notes(resources={"devices": [every, some]})
    assert found == [
        "resources.devices[1].match productName *H100*: an earlier entry already matches all of its devices"
    ]


def test_an_amount_of_memory_is_reported_with_what_the_devices_have() -> None:
    l4 = gpu(0, product_name="NVIDIA L4", memory_bytes=23034 << 20)
    big = {"match": {"minMemory": "24Gi"}, "name": "nvidia.com/big"}
    assert notes(l4, resources={"devices": [big]}) == [
        "resources.devices[0].match minMemory 24Gi: no such device on this node; there are: NVIDIA L4 with 23034Mi"
    ]
    h100s = {"match": {"productName": "*H100*"}, "name": "nvidia.com/h100"}
    (reported,) = notes(l4, gpu(1), resources={"devices": [h100s, big]})
    assert reported == (
        "resources.devices[1].match minMemory 24Gi: an earlier entry already matches all of its devices; "
        "of the others there are: NVIDIA L4 with 23034Mi"
    )


@cases(
    ("match", "near"),
    ({"productName": "nvidia h100*"}, H100),
    ({"vendor": "NVIDIA", "minMemory": "1Gi"}, f"{H100} with 81920Mi"),
    ({"ids": [gpu_id(0).lower()]}, f"{H100} {gpu_id(0)}"),
)
def test_a_match_that_differs_in_case_only_is_named(match: dict[str, Any], near: str) -> None:
    found = notes(resources={"devices": [{"match": match, "name": "nvidia.com/x"}]})
    assert found[0].endswith(f"; case matters: {near} differs only in case")


def test_a_name_that_differs_in_case_and_a_profile_that_is_not_offered_are_named() -> None:
    entry = {"name": "nvidia.com/gpu", "devices": [gpu_id(0).lower()], "replicas": 2}
    found = notes(sharing=shared({"name": "nvidia.com/GPU", "replicas": 2}, entry))
    assert found[0].endswith("; case matters: nvidia.com/gpu differs only in case")
    assert found[1].endswith(f"; case matters: {gpu_id(0)} differs only in case")
    rule = {"match": {"profile": "2g.*"}, "name": "nvidia.com/small"}
    assert "see partitions.strategy" in notes(resources={"devices": [rule]})[0]
    found = notes(CUT, partitions={"strategy": "mixed"}, resources={"devices": [rule]})
    assert found == ["resources.devices[0].match profile 2g.*: no such device on this node; there are: 1g.10gb"]


def test_the_file_counts_its_two_lists_of_patterns_apart() -> None:
    found = notes_of_file(
        "resources: {mig: [{pattern: 9g.1gb, name: a}], gpus: [{pattern: '*H100*', name: b}, {pattern: A1, name: c}]}"
    )
    assert [each.partition(":")[0] for each in found] == [
        "resources.mig[0].pattern 9g.1gb",
        "resources.gpus[1].pattern A1",
    ]


@cases(
    "sections",
    {},
    {"sharing": {"strategy": "none"}},
    {"sharing": shared({"name": "nvidia.com/gpu", "replicas": 2})},
    {"resources": {"exclude": [gpu_id(0), "GPU-*"]}},
    {"serving": {"mode": "Observe"}, "resources": {"exclude": ["GPU-nope"]}},
    {"serving": {"mode": "Observe"}, "sharing": shared({"name": "nvidia.com/gpuu", "replicas": 2})},
)
def test_what_matches_or_has_no_effect_is_not_reported(sections: dict[str, Any]) -> None:
    assert notes(**sections) == []


def test_an_excluded_id_that_no_device_has_is_named_and_a_name_or_index_answered_with_the_id() -> None:
    assert notes(resources={"exclude": ["GPU-nope", gpu_id(0)]}) == [
        f"resources.exclude[0] GPU-nope: no device on this node has such an id; there are: {gpu_id(0)}"
    ]
    assert notes(CUT, resources={"exclude": [mig_id(0, 0)]}) == []
    found = notes(gpu(0, minor=3), resources={"exclude": ["gpu-3", "0"]})
    assert found == [
        f"resources.exclude[0] gpu-3: no device on this node has such an id; did you mean {gpu_id(0)}?",
        f"resources.exclude[1] 0: no device on this node has such an id; did you mean {gpu_id(0)}?",
    ]


@cases(
    ("name", "meant"),
    ("nvidia3", gpu_id(0)),
    ("nvidia3/vgpu2", gpu_id(0)),
    ("nvidia3/gi8", mig_id(0, 1)),
    ("nvidia3/gi8/vgpu0", mig_id(0, 1)),
)
def test_googles_ids_in_exclude_and_cordons_are_answered_with_the_id_that_lasts(name: str, meant: str) -> None:
    cut = gpu(0, minor=3, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1)))
    says = f"no device on this node has such an id; did you mean {meant}?"
    assert notes(cut, resources={"exclude": [name]}) == [f"resources.exclude[0] {name}: {says}"]
    assert [each.text for each in unmatched_cordons(inventory_of(cut), [name])] == [f"unschedulable[{name}]: {says}"]


def test_a_node_without_devices_has_nothing_to_match_and_long_lists_are_cut() -> None:
    sections = Sections.model_validate({"sharing": shared({"name": "nvidia.com/gpuu", "replicas": 2})})
    assert unmatched(Inventory(), PlanSettings.from_sections(sections)) == ()
    section = shared({"name": "nvidia.com/gpu.shared", "replicas": 2}) | {"renameByDefault": True}
    assert "offered: nvidia.com/gpu" in notes(sharing=section)[0]
    found = notes(
        *(gpu(number) for number in range(12)),
        sharing=shared({"name": "nvidia.com/gpu", "devices": [mig_id(0, 0)], "replicas": 2}),
    )
    assert found[0].endswith("and 4 more")
