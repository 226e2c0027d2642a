"""Labels of a Node on its NodeDevices: those that people select by, as the Node has them; a person's own stay."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.desired.labels import MOST_LABELS, plan_object_labels
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import node_devices_record
from structlog.testing import capture_logs
from support.cases import cases
from support.fakekube import FakeKube, settle
from support.opfacts import device, node_devices, raw_node, record
from support.whole_operator import ITEM, NODE, started

NOTHING = record()


def shown(labels: dict[str, str], **owners: list[str]) -> Any:
    """A NodeDevices with these labels, and which manager has which."""
    raw = node_devices()
    raw["metadata"]["labels"] = labels
    raw["metadata"]["managedFields"] = [
        {
            "manager": names.OBJECT_LABELS if manager == "ours" else manager,
            "operation": "Apply" if manager == "ours" else "Update",
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in keys}}},
        }
        for manager, keys in owners.items()
    ]
    return node_devices_record(raw)


@cases(
    "key",
    "pool",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "node.kubernetes.io/instance-type",
    "node-role.kubernetes.io/gpu",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "agentpool",
    "notnvidia.com/x",
)
def test_what_people_select_nodes_by_is_copied(key: str) -> None:
    assert plan_object_labels({key: "x"}, NOTHING)[0] == {key: "x"}


@cases(
    "key",
    "nvidia.com/gpu.product",
    "amd.com/gpu.family",
    "beta.amd.com/gpu.family.AI",
    "gpu.intel.com/family",
    "feature.node.kubernetes.io/cpu-model.id",
    "nodedevices.io/config",
    "app.kubernetes.io/instance",
)
def test_what_says_which_hardware_a_node_has_or_what_deployed_it_is_left_out(key: str) -> None:
    assert plan_object_labels({key: "x"}, NOTHING)[0] == {}


def test_of_very_many_labels_the_same_are_copied_each_time_whatever_people_set() -> None:
    many = {f"k{number:03}": "x" for number in range(MOST_LABELS + 2)}
    for labels in (many, dict(reversed(many.items()))):
        values, cut = plan_object_labels(labels, NOTHING)
        assert sorted(values) == sorted(many)[:MOST_LABELS]
        assert cut == ("k064", "k065")
    many = {f"k{number:03}": "x" for number in range(MOST_LABELS + 1)}
    values, cut = plan_object_labels(many, shown({"k000": "mine"}, kubectl=["k000"]))
    assert (len(values), cut) == (MOST_LABELS - 1, ("k064",))


async def test_a_node_with_too_many_labels_is_logged_once_until_that_changes() -> None:
    kube = FakeKube()
    kube.put(ITEM, node_devices(device(0)))
    with capture_logs() as logs:
        manager = Manager(kube, OperatorMetrics())
        for more in (1, 1, 2, 0):
            kube.put(NODE, raw_node(labels={f"k{number:03}": "x" for number in range(MOST_LABELS + more)}))
            await manager.relister.once()
            await settle(manager)
    found = [(each["left_out"], each["keys"]) for each in logs if "left_out" in each]
    assert found == [(1, "k064"), (2, "k064, k065")]


def test_a_label_is_given_up_to_who_owns_it_or_stays_where_nobody_knows() -> None:
    for value in ("mine", "x"):
        assert plan_object_labels({"pool": "x"}, shown({"pool": value}, kubectl=["pool"]))[0] == {}
    assert plan_object_labels({"pool": "x"}, shown({"pool": "x"}, ours=["pool"], kubectl=["pool"]))[0] == {}
    assert plan_object_labels({"pool": "x"}, shown({"pool": "y"}))[0] == {}


async def test_labels_follow_the_node_and_nothing_is_written_where_nothing_changed() -> None:
    kube = FakeKube()
    kube.put(NODE, raw_node(labels={"pool": "x", "nvidia.com/gpu.count": "8"}))
    kube.put(ITEM, node_devices(device(0)))

    async def reconciled() -> tuple[dict[str, str], int]:
        kube.writes.clear()
        await started(kube)
        wrote = [body for _, path, body in kube.writes if path == ITEM and "spec" not in body]
        return kube.objects[ITEM]["metadata"].get("labels", {}), len(wrote)

    assert await reconciled() == ({"pool": "x"}, 1)
    assert await reconciled() == ({"pool": "x"}, 0)
    kube.put(NODE, raw_node(labels={"tier": "gold"}))
    assert await reconciled() == ({"tier": "gold"}, 1)
    kube.put(NODE, raw_node())
    assert await reconciled() == ({}, 1)
