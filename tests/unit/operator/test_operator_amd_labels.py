"""The labels of AMD's node labeller, from what NodeDevices shows."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.desired.vendors.amd import AmdLabels
from support.opfacts import device, record

DRIVERS = [{"name": "amdgpu", "version": "6.12.12"}]


def gpu(index: int, *, product: str = "AMD Instinct MI300X OAM", memory: str = "196592Mi") -> dict[str, Any]:
    extra = {"deviceID": {"string": "74a1"}, "partitionProfile": {"string": "cpx_nps4"}}
    return device(
        index,
        attributes={"vendor": "amd", "productName": product, "extra": extra},
        capacity={"memory": memory, "computeUnits": "304", "simds": "1216"},
    )


def test_where_all_gpus_agree_a_label_has_the_value_and_one_of_that_value_their_number() -> None:
    assert AmdLabels().labels(record(gpu(0), gpu(1), drivers=DRIVERS)) == {
        "amd.com/gpu.driver-version": "6.12.12",
        "amd.com/gpu.vram": "192G",
        "amd.com/gpu.vram.192G": "2",
        "amd.com/gpu.cu-count": "304",
        "amd.com/gpu.cu-count.304": "2",
        "amd.com/gpu.simd-count": "1216",
        "amd.com/gpu.simd-count.1216": "2",
        "amd.com/gpu.device-id": "74a1",
        "amd.com/gpu.device-id.74a1": "2",
        "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
        "amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": "2",
        "amd.com/gpu.compute-memory-partition": "cpx_nps4",
        "amd.com/gpu.compute-memory-partition.cpx_nps4": "2",
        "beta.amd.com/gpu.vram.192G": "2",
        "beta.amd.com/gpu.cu-count.304": "2",
        "beta.amd.com/gpu.simd-count.1216": "2",
        "beta.amd.com/gpu.device-id.74a1": "2",
        "beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": "2",
        "beta.amd.com/gpu.compute-memory-partition.cpx_nps4": "2",
    }


def test_several_models_are_counted_and_none_is_called_the_nodes() -> None:
    labels = AmdLabels().labels(record(gpu(0), gpu(1, product="AMD Instinct MI210", memory="65520Mi"), drivers=DRIVERS))
    assert "amd.com/gpu.vram" not in labels
    assert (labels["amd.com/gpu.vram.192G"], labels["amd.com/gpu.vram.64G"]) == ("1", "1")


def test_a_node_without_them_has_none() -> None:
    other = device(0, attributes={"vendor": "nvidia", "productName": "NVIDIA T4"})
    assert AmdLabels().labels(record(other)) == {}


def test_what_is_no_label_is_left_out() -> None:
    labels = AmdLabels().labels(record(gpu(0, product="é" * 5), gpu(1, product="x" * 80), drivers=DRIVERS))
    assert not [name for name in labels if "product-name" in name and len(name.partition("/")[2]) > 63]
    assert all(len(value) <= 63 for value in labels.values())
