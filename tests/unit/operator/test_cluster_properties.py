"""What a cluster says of its devices to a hub of clusters."""

from __future__ import annotations

import json
from typing import Any

from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.reconcile.whole_objects import MOST, OTHER, cluster_properties, properties
from support.cases import cases
from support.fakekube import FakeKube
from support.opfacts import device, holder, record

H100 = "NVIDIA H100 80GB HBM3"


def shown(*records: Any) -> dict[str, dict[str, int]]:
    return {name: json.loads(value) for name, value in cluster_properties(records).items()}


def product(index: int, name: str, *health: str, **more: Any) -> dict[str, Any]:
    return device(index, *health, attributes={"productName": name}, **more)


def test_devices_of_all_nodes_are_counted_by_product_as_what_they_are() -> None:
    one = record(product(0, H100, holders=[holder()]), product(1, H100, "Unhealthy", "Xid79"))
    other = record(product(0, H100), product(1, "NVIDIA L4"))
    assert shown(one, other) == {
        "gpu.nvidia-h100-80gb-hbm3.nodedevices.io": {"total": 3, "healthy": 2, "held": 1},
        "gpu.nvidia-l4.nodedevices.io": {"total": 1, "healthy": 1, "held": 0},
    }
    cut = {"id": "MIG-0", "profile": "1g.10gb", "holders": [holder()]}
    [counts] = shown(record(product(0, H100, partitions=[cut]))).values()
    assert counts == {"total": 1, "healthy": 1, "held": 1}
    assert shown(record(product(0, H100, "Unhealthy", "Missing"))) == {}
    silent = record(product(0, H100), conditions={"Stale": ("True", "HeartbeatOverdue")})
    [counts] = shown(silent).values()
    assert counts == {"total": 1, "healthy": 0, "held": 0}


def test_devices_count_by_a_product_that_kubernetes_takes_by_type_or_as_other() -> None:
    assert list(shown(record(device(0), device(1, type="")))) == ["gpu.nodedevices.io", OTHER]
    many = [record(*(product(index, f"Card {number}") for index in range(2))) for number in range(MOST + 1)]
    few = record(product(0, "Rare"), *(device(index, type="") for index in range(1, 8)))
    found = shown(*many, few)
    assert len(found) == MOST
    assert found[OTHER] == {"total": 2 * 2 + 1 + 7, "healthy": 2 * 2 + 1 + 7, "held": 0}
    assert sum(each["total"] for each in found.values()) == 2 * (MOST + 1) + 8
    odd = record(product(0, "  (Tësla) V100-" + "x" * 100))
    [name] = shown(odd)
    assert name == f"gpu.t-sla-v100-{'x' * 51}.nodedevices.io"


@cases(("served", "found"), (("v1beta1", "v1alpha1"), "v1beta1"), (("v1alpha1",), "v1alpha1"), ((), ""))
async def test_the_newest_version_of_the_api_that_is_served_is_used(served: tuple[str, ...], found: str) -> None:
    kube = FakeKube()
    paths = {f"/apis/about.k8s.io/{version}/clusterproperties" for version in served}
    kube.fails = lambda _verb, path: None if path in paths else KubeError(f"LIST {path}: 404", status=404)
    assert await properties(kube) == (found, [])
