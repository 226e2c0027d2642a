"""gpu_config.json, as Google's device plugin has it: what it means here, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nodedevices_common.errors import InputError
from nodedevices_plugin.settings.effective import Effective, resolve, to_saved
from nodedevices_plugin.settings.file import parse as parse_file
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.vendors.nvidia.gpu_config import FILE, GpuConfig, parse
from pydantic import TypeAdapter
from support.cases import cases
from support.local import restored

GPU = "nvidia.com/gpu"


def read(document: Any) -> GpuConfig:
    return parse(json.dumps(document).encode())


def shared(strategy: str, clients: int) -> dict[str, Any]:
    return {"GPUSharingStrategy": strategy, "MaxSharedClientsPerGPU": clients}


def effective(document: Any, *arguments: str, config_file: str = "", spec: dict[str, Any] | None = None) -> Effective:
    """The configuration of a node with this gpu_config.json."""
    local = parse_flags(["--standalone", "--node-name=n", "--devices-dir=/etc/nvidia", *arguments], {})
    file = parse_file(config_file.encode()) if config_file else None
    return resolve(local, file, spec, {FILE.name: read(document)})


@cases(
    "document",
    {},
    {"GPUPartitionSize": "", "MaxTimeSharedClientsPerGPU": 0, "GPUSharingConfig": shared("", 0)},
    {"GPUSharingConfig": None, "GPUPartitionSize": None, "HealthCriticalXid": None},
    {"GPUSharingConfig": shared("time-sharing", 1)},
)
def test_a_file_without_sharing_sets_nothing(document: Any) -> None:
    assert read(document).sections() == {}


@cases(("theirs", "ours"), ("time-sharing", "timeSlicing"), ("mps", "mps"))
def test_sharing_is_so_many_shares_of_each_gpu_one_for_a_container(theirs: str, ours: str) -> None:
    sharing = effective({"GPUSharingConfig": shared(theirs, 4)}).sections.sharing
    assert (sharing.strategy, sharing.fail_requests_greater_than_one) == (ours, True)
    assert [(rule.name, rule.replicas, rule.devices) for rule in sharing.resources] == [(GPU, 4, None)]


@cases("more", {}, {"GPUSharingConfig": shared("time-sharing", 3)})
def test_the_deprecated_key_means_time_sharing_and_may_say_the_same_beside_the_new_one(more: dict[str, Any]) -> None:
    assert read({"MaxTimeSharedClientsPerGPU": 3, **more}) == GpuConfig(strategy="time-sharing", clients=3)


def test_partition_sizes_and_critical_xids_are_read_as_googles_plugin_reads_them() -> None:
    found = effective({"GPUPartitionSize": "1g.5gb", "GPUSharingConfig": shared("time-sharing", 2)}).sections
    assert (found.partitions.strategy, found.sharing.strategy) == ("single", "timeSlicing")
    (rule,) = effective({"HealthCriticalXid": [79, 48, 79]}).sections.health.rules
    assert (rule.reasons, rule.state) == (("Xid48", "Xid79"), "Unhealthy")
    local = parse_flags(["--standalone", "--node-name=n"], {"XID_CONFIG": "48, 63", "DP_ENABLE_HEALTHCHECKS": "74"})
    (rule,) = resolve(local, None, None).sections.health.rules
    assert (rule.reasons, rule.state) == (("Xid48", "Xid63", "Xid74"), "Unhealthy")


def test_what_it_says_is_part_of_the_shape_and_replaced_by_a_flag_a_file_or_a_policy() -> None:
    document = {"GPUPartitionSize": "1g.5gb", "GPUSharingConfig": shared("time-sharing", 2)}
    flag = effective(document, "--mig-strategy=none").sections
    assert (flag.partitions.strategy, flag.sharing.strategy) == ("none", "timeSlicing")
    slices = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 8}]}}"
    assert effective(document, config_file=slices).sections.sharing.resources[0].replicas == 8
    policy = effective(document, spec={"sharing": {"strategy": "none"}}).sections
    assert (policy.partitions.strategy, policy.sharing.strategy) == ("single", "none")
    before = effective({"GPUSharingConfig": shared("time-sharing", 2)})
    after = effective({"GPUSharingConfig": shared("time-sharing", 3)})
    assert not before.has_shape_of(after)
    assert restored(to_saved(before)) == before
    assert TypeAdapter(FILE.type).validate_python({}) == GpuConfig()


# gpuPartitionSizeMaxCount in pkg/gpu/nvidia/mig/mig.go of container-engine-accelerators (992db812).
SIZES = (
    "1g.5gb 2g.10gb 3g.20gb 7g.40gb 1g.10gb 2g.20gb 3g.40gb 7g.80gb 1g.20gb 1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb "
    "7g.141gb 1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb 1g.24gb "
    "1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me 4g.96gb 4g.96gb+gfx"
)


@cases("size", *SIZES.split())
def test_every_size_that_googles_plugin_knows_is_one(size: str) -> None:
    assert effective({"GPUPartitionSize": size}).sections.partitions.strategy == "single"


def test_every_key_is_read_in_any_case_and_named_where_it_is_wrong() -> None:
    assert effective({"GPUFractionDivisor": 8}) == effective({})
    with pytest.raises(InputError) as refused:
        read({"GPUPartitionSize": "x", "Other": 1, "GPUSharingConfig": {"GPUSharingStrategy": 7}})
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "Other",
        "GPUSharingConfig.GPUSharingStrategy",
        "GPUPartitionSize",
    ]
    usual = {"GPUSharingConfig": shared("time-sharing", 3)}
    other = {"gpusharingconfig": {key.lower(): value for key, value in shared("time-sharing", 3).items()}}
    assert parse(json.dumps(other).encode()) == parse(json.dumps(usual).encode())


@cases(
    ("document", "says"),
    ({"GPUFractionDivisor": "8"}, "GPUFractionDivisor: '8' is not allowed; give a number from 0"),
    ([], r"\[\] is not an object with GPUSharingConfig, .*HealthCriticalXid"),
    ({"GPUSharing": {}}, "GPUSharing: unknown key; did you mean GPUSharingConfig?"),
    ({"GPUSharingConfig": {}, "gpuSharingConfig": {}}, "GPUSharingConfig: there twice, written in two ways"),
    ({"GPUSharingConfig": []}, r"GPUSharingConfig: \[\] is not allowed; give keys and values"),
    ({"GPUSharingConfig": {"Strategy": "mps"}}, r"GPUSharingConfig\.Strategy: unknown key"),
    (
        {"GPUSharingConfig": shared("timeslicing", 2)},
        r"GPUSharingStrategy: 'timeslicing': it is not known; give time-sh",
    ),
    (
        {"GPUSharingConfig": shared("mps", -1)},
        r"MaxSharedClientsPerGPU: -1 is not allowed; give a number from 0 to 16384",
    ),
    ({"GPUSharingConfig": shared("mps", 16385)}, r"16385 is not allowed; give a number"),
    ({"GPUSharingConfig": {"GPUSharingStrategy": "mps", "MaxSharedClientsPerGPU": "4"}}, "'4' is not allowed"),
    (
        {"GPUSharingConfig": {"GPUSharingStrategy": "mps", "MaxSharedClientsPerGPU": True}},
        "True is not allowed; give a number",
    ),
    ({"GPUSharingConfig": {"GPUSharingStrategy": "mps"}}, r"MaxSharedClientsPerGPU: missing, with .*Strategy mps"),
    ({"GPUSharingConfig": {"MaxSharedClientsPerGPU": 4}}, r"GPUSharingStrategy: missing, with .*PerGPU 4; give time"),
    (
        {"MaxTimeSharedClientsPerGPU": 3, "GPUSharingConfig": shared("mps", 3)},
        r"MaxTimeSharedClientsPerGPU: 3, and GPUSharingConfig has mps, 3; leave this deprecated key out",
    ),
    (
        {"GPUPartitionSize": "1g.5gb", "GPUSharingConfig": shared("mps", 3)},
        r"GPUSharingStrategy: mps, with GPUPartitionSize 1g\.5gb: MPS cannot share MIG devices",
    ),
    ({"GPUPartitionSize": "seven"}, r"GPUPartitionSize: 'seven': it is not the size of a MIG device; .*1g\.10gb"),
    ({"GPUPartitionSize": 1}, "GPUPartitionSize: 1 is not allowed; give text"),
    ({"HealthCriticalXid": "48,63"}, 'HealthCriticalXid: "48,63" is not allowed; give a list'),
    ({"HealthCriticalXid": [0]}, r"HealthCriticalXid\[0\]: 0 is not allowed; give a number from 1"),
    ({"HealthCriticalXid": [[48]]}, r"HealthCriticalXid\[0\]: \[48\] is not allowed; give a number from 1"),
    ({"HealthCriticalXid": list(range(1, 70))}, "give a list of at most 64 XIDs"),
)
def test_what_is_wrong_is_refused_with_the_key_the_value_and_what_would_be_right(document: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(document)


@cases(
    ("raw", "says"),
    (b"", "not JSON: Expecting value"),
    (b"GPUPartitionSize: 1g.5gb", "not JSON"),
    (b"\xff{}", "not UTF-8"),
    (b"[" * 10_000, "not JSON"),
    (b'{"HealthCriticalXid": [' + b"9" * 5000 + b"]}", "not JSON|give a list"),
    (
        b'{"GPUPartitionSize": "1g.5gb", "GPUPartitionSize": ""}',
        "the key 'GPUPartitionSize' is given twice in one object; leave one out",
    ),
    (b" " * 70_000 + b"{}", "70002 bytes; 65536 are the most"),
)
def test_a_hostile_file_is_refused_with_one_sentence(raw: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        parse(raw)
    assert len(str(refused.value)) < 400
