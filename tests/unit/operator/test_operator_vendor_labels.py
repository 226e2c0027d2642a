"""A vendor's labels that are a file and a line of registration stand on the Node as NVIDIA's do."""

from __future__ import annotations

from typing import Any

from nodedevices_api.sections import Labels
from nodedevices_operator.desired.labels import LabelPlan, plan_labels
from nodedevices_operator.desired.vendors.registry import VENDORS
from nodedevices_operator.records.kinds import node_record
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord
from support.acme_labels import ACME_LABELS
from support.opfacts import device, record

ON = Labels(feature_discovery=True)
ACME = {
    "acme.com/driver": "3.1",
    "acme.com/fpga.count": "2",
    "acme.com/fpga.lanes": "16",
    "acme.com/fpga.shell": "x4",
    "acme.com/region.luts": "4096",
}


def gpu(index: int) -> dict[str, Any]:
    return device(index, attributes={"vendor": "nvidia", "productName": "NVIDIA T4"})


def fpga(index: int, *, lanes: int = 16) -> dict[str, Any]:
    extra = {"shell": {"string": "x4"}, "lanes": {"int": lanes}}
    region = {"id": f"R-{index}", "name": f"r-{index}", "profile": "half", "capacity": {"luts": "4096"}}
    return device(index, type="fpga", attributes={"vendor": "acme", "extra": extra}, partitions=[region])


def node_devices(*devices: dict[str, Any]) -> NodeDevicesRecord:
    drivers = [{"name": "nvidia", "version": "570.1"}, {"name": "acme", "version": "3.1"}]
    return record(*devices, drivers=drivers)


def node(labels: dict[str, str] | None = None, *, ours: bool = True) -> NodeRecord:
    """With these labels, and whether we wrote them."""
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels or {}}}}
    manager = {"manager": "nodedevices-operator-labels", "operation": "Apply", "fieldsV1": fields}
    metadata = {"name": "n1", "uid": "u1", "labels": labels or {}, "managedFields": [manager] if ours else []}
    return node_record({"metadata": metadata})


def planned(item: NodeDevicesRecord, shown: NodeRecord, *, now: int) -> LabelPlan:
    return plan_labels(ON, item, shown, now=now, vendors=(*VENDORS, ACME_LABELS))


def test_both_vendors_labels_stand_side_by_side_and_neither_writes_the_others() -> None:
    values = planned(node_devices(gpu(0), fpga(1), fpga(2)), node(), now=7).values
    stamps = {"acme.com/changed": "7", "nvidia.com/gfd.timestamp": "7"}
    assert {key: value for key, value in values.items() if key.startswith("acme.com/")} == {
        **ACME,
        "acme.com/changed": "7",
    }
    assert values["nvidia.com/gpu.count"] == "1"
    assert {key: values[key] for key in stamps} == stamps


def test_a_node_without_gpus_has_none_of_it_and_a_label_of_another_owner_is_left() -> None:
    values = planned(node_devices(fpga(1), fpga(2)), node(), now=7).values
    assert values == ACME | {"acme.com/changed": "7"}
    assert plan_labels(ON, node_devices(fpga(1)), node(), now=7).values == {}
    item = node_devices(fpga(1), fpga(2))
    plan = planned(item, node({"acme.com/fpga.count": "1"}, ours=False), now=7)
    assert plan.verdict[1] == "Conflict"
    assert "acme.com/fpga.count=1 (wanted: 2)" in plan.verdict[2]
    assert "acme.com/fpga.count" not in plan.values


def test_the_timestamp_of_each_vendor_stays_until_a_label_changes() -> None:
    first = planned(node_devices(gpu(0), fpga(1)), node(), now=7).values
    again = planned(node_devices(gpu(0), fpga(1)), node(dict(first)), now=8)
    assert again.values == first
    changed = planned(node_devices(gpu(0), fpga(1, lanes=8)), node(dict(first)), now=9).values
    assert changed["acme.com/changed"] == "9"
