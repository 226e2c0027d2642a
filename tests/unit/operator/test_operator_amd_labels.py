"""The labels of AMD's node labeller, from what NodeDevices shows."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.desired.vendors import amd
from support.opfacts import device, feature_labels, health, record

DRIVERS = [{"name": "amdgpu", "version": "6.12.12"}]


def gpu(
    index: int,
    *,
    product: str = "AMD Instinct MI300X OAM",
    memory: str = "196592Mi",
    profile: str = "spx_nps1",
    parts: int = 0,
) -> dict[str, Any]:
    extra = {
        "deviceID": {"string": "74a1"},
        "partitionProfile": {"string": profile},
        "partitionable": {"bool": True},
        "memoryPartitionable": {"bool": False},
    }
    partition = {"profile": profile, "capacity": {"memory": "24574Mi", "computeUnits": "38", "simds": "152"}}
    return device(
        index,
        attributes={"vendor": "amd", "productName": product, "extra": extra},
        capacity={"memory": memory, "computeUnits": "304", "simds": "1216"},
        partitions=[
            {"id": f"GPU-{index}-xcp-{part}", "name": f"gpu-{index}-xcp-{part}"} | partition for part in range(parts)
        ],
    )


def test_where_all_gpus_agree_a_label_has_the_value_and_one_of_that_value_their_number() -> None:
    values = {
        "vram": "192G",
        "cu-count": "304",
        "simd-count": "1216",
        "device-id": "74a1",
        "product-name": "AMD_Instinct_MI300X_OAM",
        "compute-memory-partition": "spx_nps1",
    }
    expected = {
        "amd.com/gpu.driver-version": "6.12.12",
        "amd.com/gpu.compute-partitioning-supported": "true",
        "amd.com/gpu.memory-partitioning-supported": "false",
    }
    for prefix in ("amd.com/gpu", "beta.amd.com/gpu"):
        expected |= {f"{prefix}.{kind}": value for kind, value in values.items()}
        expected |= {f"{prefix}.{kind}.{value}": "2" for kind, value in values.items()}
    assert amd.labels(record(gpu(0), gpu(1), drivers=DRIVERS)) == expected


def test_of_a_gpu_that_is_cut_every_partition_counts_with_its_own_size() -> None:
    cut = [gpu(index, profile="cpx_nps4", parts=8) for index in (0, 1)]
    labels = amd.labels(record(*cut, drivers=DRIVERS))
    counted = {"vram.24G": "16", "cu-count.38": "16", "simd-count.152": "16", "compute-memory-partition.cpx_nps4": "16"}
    assert {kind: labels.get(f"beta.amd.com/gpu.{kind}") for kind in counted} == counted
    assert labels["amd.com/gpu.vram"] == "24G"
    assert labels["amd.com/gpu.device-id.74a1"] == "2", "there is one model in a GPU, however it is cut"


def test_several_models_are_counted_and_odd_or_no_gpus_of_amd_have_no_labels() -> None:
    labels = amd.labels(record(gpu(0), gpu(1, product="AMD Instinct MI210", memory="65520Mi"), drivers=DRIVERS))
    assert "amd.com/gpu.vram" not in labels
    assert (labels["amd.com/gpu.vram.192G"], labels["amd.com/gpu.vram.64G"]) == ("1", "1")
    other = device(0, attributes={"vendor": "nvidia", "productName": "NVIDIA T4"})
    assert amd.labels(record(other)) == {}
    labels = amd.labels(record(gpu(0, product="é" * 5), gpu(1, product="x" * 80), drivers=DRIVERS))
    assert not [name for name in labels if "product-name" in name and len(name.partition("/")[2]) > 63]
    assert all(len(value) <= 63 for value in labels.values())


GONE = {"health": health("Unhealthy", "Missing")}


def test_a_gpu_or_a_partition_that_is_missing_does_not_count() -> None:
    cut = gpu(1, profile="cpx_nps4", parts=8)
    cut["partitions"][0] |= GONE
    labels = amd.labels(record(gpu(0, profile="cpx_nps4", parts=8) | GONE, cut))
    assert {kind: labels[f"amd.com/gpu.{kind}"] for kind in ("device-id.74a1", "vram.24G")} == {
        "device-id.74a1": "1",
        "vram.24G": "7",
    }


def test_missing_gpus_say_what_they_were_and_a_node_gets_these_labels_and_no_other() -> None:
    labels = amd.labels(record(gpu(0, profile="cpx_nps4", parts=8) | GONE))
    said = ("device-id", "device-id.74a1", "vram", "vram.24G")
    assert [labels[f"amd.com/gpu.{kind}"] for kind in said] == ["74a1", "0", "24G", "0"]
    # AMD's labeller writes no timestamp.
    found = record(gpu(0), gpu(1), drivers=DRIVERS)
    assert feature_labels(found) == amd.labels(found)
