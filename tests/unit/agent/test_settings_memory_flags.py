"""Sharing by memory from flags, variables and file: what they say, which of them counts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_api.sections import SharedResource
from nodedevices_plugin.model import PlanError
from nodedevices_plugin.pipeline.active import plan_settings
from nodedevices_plugin.pipeline.requesting import RequestedConfig, request_config
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.settings.effective import Effective
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.settings.file import parse as parse_file
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.settings.problems import ConfigError
from support.facts import GIB, gpu, healthy, inventory_of
from support.plans import make_plan

GPU = "nvidia.com/gpu"


def requested(
    *flags: str, variables: dict[str, str] | None = None, file: str = "", policy: dict[str, Any] | None = None
) -> RequestedConfig:
    local = parse(["--node-name=n1", *flags], variables or {})
    outcome = FileOutcome(config=parse_file(file.encode())) if file else FileOutcome()
    return request_config(local, outcome, SeenSpec(config=policy, config_hash="1") if policy is not None else None)


def effective(*flags: str, **rest: Any) -> Effective:
    found = requested(*flags, **rest).effective
    assert found is not None
    return found


def rule(*flags: str, **rest: Any) -> SharedResource:
    sharing = effective(*flags, **rest).sections.sharing
    assert sharing.strategy == "memory"
    [found] = sharing.resources
    return found


def refused(*flags: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(["--node-name=n1", *flags], {})
    return caught.value.problems


@pytest.mark.parametrize(("unit", "means"), [("GiB", "1Gi"), ("MiB", "1Mi"), ("512Mi", "512Mi"), ("2Gi", "2Gi")])
def test_a_unit_is_written_as_for_aliyuns_plugin_or_as_a_quantity(unit: str, means: str) -> None:
    assert rule(f"--memory-unit={unit}") == SharedResource(name=GPU, memory_unit=means)


def test_flags_say_what_an_entry_of_a_policy_does() -> None:
    flags = ("--memory-unit=1Gi", "--memory-reserve=512Mi", "--memory-resource=example.com/memory")
    assert rule(*flags, "--memory-packing=spread", "--memory-devices=0,GPU-1*,0") == SharedResource(
        name=GPU,
        rename="example.com/memory",
        memory_unit="1Gi",
        memory_reserve="512Mi",
        packing="spread",
        devices=("0", "GPU-1*"),
    )


def test_another_makers_name_brings_its_unit() -> None:
    assert rule("--memory-resource=tencent.com/vcuda-memory").memory_unit == "256Mi"


def test_what_is_shared_has_the_domain_of_usual_names() -> None:
    assert rule("--memory-unit=GiB", "--resource-prefix=example.com").name == "example.com/gpu"


def test_without_these_flags_nothing_is_shared() -> None:
    assert effective("--memory-unit=").sections.sharing.strategy == "none"


def test_a_flag_counts_more_than_a_variable_and_a_variable_more_than_the_file() -> None:
    file = "sharing: {memory: {resources: [{name: gpu, memoryUnit: 4Gi, packing: spread}]}}"
    variables = {"NODEDEVICES_MEMORY_UNIT": "2Gi", "NODEDEVICES_MEMORY_DEVICES": "1,2"}
    assert rule(file=file).memory_unit == "4Gi"
    by_variables = rule(file=file, variables=variables)
    assert (by_variables.memory_unit, by_variables.devices, by_variables.packing) == ("2Gi", ("1", "2"), None)
    by_both = rule("--memory-unit=1Gi", file=file, variables=variables)
    assert (by_both.memory_unit, by_both.devices) == ("1Gi", ("1", "2"))


def test_a_policys_section_replaces_that_of_the_flags_as_a_whole() -> None:
    policy = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 4}]}}
    assert effective("--memory-unit=GiB", policy=policy).sections.sharing.strategy == "timeSlicing"
    other = {"partitions": {"strategy": "mixed"}}
    assert effective("--memory-unit=GiB", policy=other).sections.sharing.strategy == "memory"


@pytest.mark.parametrize("kind", ["timeSlicing", "mps"])
def test_a_flag_beside_a_file_that_shares_in_another_way_is_refused_and_names_both(kind: str) -> None:
    file = f"sharing: {{{kind}: {{resources: [{{name: gpu, replicas: 4}}]}}}}"
    found = requested("--memory-unit=GiB", file=file)
    assert found.effective is None
    assert (found.source, found.field) == ("file", f"sharing.{kind}")
    assert f"sharing.{kind}: --memory-unit (NODEDEVICES_MEMORY_UNIT) is given, and shares by memory; leave out one" in (
        found.error or ""
    )


def test_notes_on_what_matches_nothing_are_about_the_flags_where_these_replace_the_file() -> None:
    file = "sharing: {memory: {resources: [{name: gpu, memoryUnit: 4Gi}]}}\nresources: {gpus: []}"
    assert requested(file=file).from_file == {"sharing", "resources"}
    assert requested("--memory-unit=GiB", file=file).from_file == {"resources"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--memory-unit=GB"], "--memory-unit: 'GB' is not allowed; give GiB, MiB, or a quantity of whole MiB"),
        (["--memory-unit=1500k"], "--memory-unit: '1500k' is not allowed; give GiB, MiB, or"),
        (["--memory-reserve=1Gi"], "--memory-unit: missing, with --memory-reserve; give GiB, MiB, or"),
        (["--memory-unit=GiB", "--memory-reserve=lots"], '--memory-reserve: "lots" is not allowed; write an amount'),
        (["--memory-unit=GiB", "--memory-resource=memory"], "--memory-resource: memory: not a resource name;"),
        (["--memory-unit=GiB", "--memory-packing=tight"], "--memory-packing: 'tight' is not allowed; give binpack or"),
        (["--memory-unit=GiB", "--memory-devices=0,a$"], '--memory-devices[1]: "a$" is not allowed; write a name, or'),
        (["--memory-unit=GiB", f"--memory-devices={','.join(map(str, range(65)))}"], "--memory-devices: "),
    ],
)
def test_a_flag_that_cannot_be_is_refused_with_what_would_be_right(flags: list[str], says: str) -> None:
    found = refused(*flags)
    assert any(each.startswith(says) for each in found), found


@pytest.mark.parametrize(
    "given",
    [
        {"flags": ("--memory-unit=MiB",)},
        {"flags": (), "variables": {"NODEDEVICES_MEMORY_UNIT": "MiB"}},
        {"flags": (), "file": "sharing: {memory: {resources: [{name: gpu, memoryUnit: 1Mi}]}}"},
    ],
    ids=["flag", "variable", "file"],
)
def test_a_unit_whose_list_the_kubelet_would_not_read_is_refused_with_the_next_that_fits(given: dict[str, Any]) -> None:
    cards = [gpu(number, memory_bytes=141 * GIB) for number in range(8)]
    config = effective(*given.pop("flags"), **given)
    with pytest.raises(PlanError) as found:
        make_plan(inventory_of(*cards), healthy(*cards), plan_settings(config))
    assert str(found.value).startswith(f"sharing.resources[{GPU}].memoryUnit: 1Mi: gives 1155072 shares")
    assert "give 32Mi" in str(found.value)
    [resource] = make_plan(
        inventory_of(*cards), healthy(*cards), plan_settings(effective("--memory-unit=32Mi"))
    ).resources
    assert len(resource.ids) == 36096
