"""Which name a device gets: rules of `resources.devices`, and what is never offered."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_api.sections import OfferMatch, Partitions, ResourceRule, Resources
from nodedevices_plugin.model import resource_names
from nodedevices_plugin.offering.shape import PlanError, PlanSettings
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import GIB, gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.plans import make_plan

A100: dict[str, Any] = {"product_name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 * GIB}


def rule(name: str, **match: Any) -> ResourceRule:
    return ResourceRule(match=OfferMatch(**match), name=name)


def named(
    *devices: DeviceFact, rules: tuple[ResourceRule, ...] = (), exclude: tuple[str, ...] = (), mig: str = "none"
) -> dict[str, list[str]]:
    settings = PlanSettings(resources=Resources(devices=rules, exclude=exclude), partitions=Partitions(strategy=mig))
    found = make_plan(inventory_of(*devices), healthy(*devices), settings)
    return {resource.name: [each.id for each in resource.ids] for resource in found.resources}


def cut(number: int, *profiles: str, **facts: Any) -> DeviceFact:
    parts = tuple(partition(number, place, profile=profile) for place, profile in enumerate(profiles))
    return gpu(number, mig_enabled=True, partitions=parts, **facts)


def test_two_models_get_two_names_by_the_first_rule_or_keep_their_usual_ones() -> None:
    """NVIDIA's plugin parses such patterns and ignores them."""
    rules = (rule("nvidia.com/h100", product_name="*H100*"), rule("nvidia.com/other", product_name="*"))
    assert named(gpu(0), gpu(1, **A100), rules=rules) == {
        "nvidia.com/h100": [gpu_id(0)],
        "nvidia.com/other": [gpu_id(1)],
    }
    rules = (rule("nvidia.com/all"), rule("nvidia.com/h100", product_name="*H100*"))
    assert named(gpu(0), rules=rules) == {"nvidia.com/all": [gpu_id(0)]}
    one = (rule("nvidia.com/a100", product_name="*A100*"),)
    assert named(gpu(0), gpu(1, **A100), rules=one) == {"nvidia.com/a100": [gpu_id(1)], "nvidia.com/gpu": [gpu_id(0)]}


@cases(
    ("match", "found"),
    ({"vendor": "nvidia"}, True),
    ({"vendor": "amd"}, False),
    ({"type": "gpu"}, True),
    ({"type": "nic"}, False),
    ({"product_name": "NVIDIA H100*"}, True),
    ({"product_name": "nvidia h100*"}, False),
    ({"product_name": "H100"}, False),
    ({"min_memory": "80Gi"}, True),
    ({"min_memory": "81Gi"}, False),
    ({"ids": (gpu_id(0),)}, True),
    ({"ids": (gpu_id(1),)}, False),
    ({"ids": ()}, False),
    ({"product_name": "*H100*", "min_memory": "81Gi"}, False),
    ({"profile": "*"}, False),
)
def test_all_that_a_rule_gives_must_match(match: dict[str, Any], found: bool) -> None:
    name = "nvidia.com/special" if found else "nvidia.com/gpu"
    assert named(gpu(0), rules=(rule("nvidia.com/special", **match),)) == {name: [gpu_id(0)]}


def test_a_rule_for_a_model_swallows_no_mig_devices_and_those_in_place_of_gpus_are_named_like_gpus() -> None:
    rules = (rule("nvidia.com/h100", product_name="*H100*"),)
    assert named(gpu(0), cut(1, "1g.10gb"), rules=rules, mig="mixed") == {
        "nvidia.com/h100": [gpu_id(0)],
        "nvidia.com/mig-1g.10gb": [mig_id(1, 0)],
    }
    rules = (rule("nvidia.com/h100", product_name="*H100*"),)
    assert named(cut(0, "1g.10gb"), rules=rules, mig="single") == {"nvidia.com/h100": [mig_id(0, 0)]}


@cases("profile", "1g.*", "1g.10gb.me", "1g.10gb?me")
def test_mig_devices_are_named_by_profile(profile: str) -> None:
    rules = (rule("nvidia.com/small", profile=profile),)
    assert named(cut(0, "1g.10gb+me", "3g.40gb"), rules=rules, mig="mixed") == {
        "nvidia.com/mig-3g.40gb": [mig_id(0, 1)],
        "nvidia.com/small": [mig_id(0, 0)],
    }


def test_mig_devices_that_differ_only_in_what_they_have_besides_have_names_of_their_own() -> None:
    assert named(cut(0, "1g.10gb", "1g.10gb+me", "1g.10gb-me", "1g.10gb+gfx"), mig="mixed") == {
        "nvidia.com/mig-1g.10gb": [mig_id(0, 0)],
        "nvidia.com/mig-1g.10gb.me": [mig_id(0, 1)],
        "nvidia.com/mig-1g.10gb-me": [mig_id(0, 2)],
        "nvidia.com/mig-1g.10gb.gfx": [mig_id(0, 3)],
    }


def test_a_rule_may_want_mig_devices_of_one_gpu_or_of_some_size() -> None:
    two = (cut(0, "1g.10gb"), cut(1, "1g.10gb"))
    assert named(*two, rules=(rule("x.io/one", profile="*", ids=(gpu_id(1),)),), mig="mixed") == {
        "nvidia.com/mig-1g.10gb": [mig_id(0, 0)],
        "x.io/one": [mig_id(1, 0)],
    }
    assert list(named(*two, rules=(rule("x.io/big", profile="*", min_memory="11Gi"),), mig="mixed")) == [
        "nvidia.com/mig-1g.10gb"
    ]


def test_a_compute_instance_is_offered_under_a_rules_name_and_an_excluded_mig_device_alone_is_not() -> None:
    """NVIDIA's plugin ends when a compute instance is smaller than its GPU instance."""
    small = partition(0, 0, profile="1c.3g.40gb")
    odd = gpu(0, mig_enabled=True, partitions=(small,))
    assert named(odd, mig="mixed") == {}
    assert named(odd, rules=(rule("x.io/part", profile="1c.*"),), mig="mixed") == {"x.io/part": [mig_id(0, 0)]}
    assert named(cut(0, "1g.10gb", "1g.10gb"), exclude=(mig_id(0, 0),), mig="mixed") == {
        "nvidia.com/mig-1g.10gb": [mig_id(0, 1)]
    }


@cases("exclude", gpu_id(0), "GPU-*0")
def test_an_excluded_gpu_is_not_offered_and_takes_its_mig_devices_along(exclude: str) -> None:
    assert named(gpu(0), gpu(1), exclude=(exclude,)) == {"nvidia.com/gpu": [gpu_id(1)]}
    assert named(cut(0, "1g.10gb"), gpu(1), exclude=(exclude,), mig="mixed") == {"nvidia.com/gpu": [gpu_id(1)]}


def test_a_name_that_the_kubelet_or_the_nodes_status_could_not_take_is_refused_where_it_stands() -> None:
    with pytest.raises(PlanError, match=r"resources\.devices\[1\]\.name: x\.io/g+: 64 characters .*63 are the most"):
        resource_names.check("resources.devices[1].name", f"x.io/{'g' * 64}")
    with pytest.raises(PlanError, match=r"245 characters; 244 are the most"):
        resource_names.check("resources.devices[0].name", f"{'a' * 241}/gpu")


@cases(
    "name",
    "kubernetes.io/gpu",
    "x.kubernetes.io/gpu",
    "mykubernetes.io/gpu",  # as IsPrefixedNativeResource has it: anywhere in the name
    "requests.nvidia.com/gpu",
)
def test_a_name_that_kubernetes_keeps_to_itself_is_refused_where_it_stands(name: str) -> None:
    with pytest.raises(PlanError, match=rf"resources\.devices\[0\]\.name: {name}: no kubelet takes a name"):
        resource_names.check("resources.devices[0].name", name)
