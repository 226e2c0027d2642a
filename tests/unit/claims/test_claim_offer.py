"""Claims and containers of the device plugin on one node: a device goes to one of them, whatever happens meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from nodedevices_common.errors import OperationError
from nodedevices_plugin.claims.cdi_file import specification
from nodedevices_plugin.claims.devices import Prepare
from nodedevices_plugin.claims.records import Claim, ClaimError, NotNowError, Record, RecordError, with_names_of_claims
from nodedevices_plugin.host.claim_files import MAX_BYTES, ClaimFiles
from nodedevices_plugin.model import (
    DRA_DRIVER,
    AllocationError,
    Api,
    ContainerEdits,
    DeviceNode,
    Inventory,
    InventoryDevice,
    Mount,
    OfferedResource,
    Part,
    Plan,
    SchedulableId,
    device_names,
)
from nodedevices_plugin.pipeline.foreign import DeviceIndex
from nodedevices_probe.protocol import DeviceFact
from support.claim_node import BOARD, NODE, Node
from support.dra import allocated
from support.patience import PATIENCE_SECONDS

WHEN = datetime(2026, 11, 29, tzinfo=UTC)


def inventory(*indices: int) -> Inventory:
    facts = [
        DeviceFact(index=index, id=f"ACME-{index}", type="board", vendor="acme", device_nodes=(f"/dev/acme{index}",))
        for index in indices
    ]
    return Inventory(devices=tuple(InventoryDevice(fact=fact, present=True, last_seen=WHEN) for fact in facts))


def plan(api: Api, *indices: int) -> Plan:
    ids = tuple(SchedulableId(id=f"ACME-{index}", device_id=f"ACME-{index}") for index in indices)
    return Plan(resources=(OfferedResource(name=BOARD, api=api, ids=ids),))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.use(plan(Api.DRA, 0, 1), inventory(0, 1))
    return node


def test_a_device_of_a_claim_is_granted_to_no_container_and_the_other_way_round(node: Node) -> None:
    assert node.prepare("train", "board-0") == ["board-0"]
    with pytest.raises(AllocationError, match="no longer offers it"):
        node.allocate("ACME-1")
    node.use(plan(Api.DEVICE_PLUGIN, 1), inventory(0, 1))
    node.allocate("ACME-1")
    with pytest.raises(NotNowError, match="does not offer the device board-1"):
        node.prepare("late", "board-1")


def test_while_a_plan_is_made_nothing_that_it_takes_away_is_given_by_either_api(node: Node) -> None:
    assert node.withdraw(plan(Api.DEVICE_PLUGIN, 0, 1), inventory(0, 1))
    with pytest.raises(NotNowError, match="about to stop offering"):
        node.prepare("late", "board-0")
    node.use(plan(Api.DEVICE_PLUGIN, 0, 1), inventory(0, 1))
    assert node.withdraw(plan(Api.DRA, 0, 1), inventory(0, 1))
    with pytest.raises(AllocationError, match="about to stop offering"):
        node.allocate("ACME-0")


def test_a_plan_that_was_decided_before_a_claim_came_is_decided_again(node: Node) -> None:
    node.prepare("train", "board-0")
    assert not node.withdraw(plan(Api.DEVICE_PLUGIN, 0, 1), inventory(0, 1))
    assert node.withdraw(plan(Api.DRA, 0, 1), inventory(0, 1)), "the claim keeps its device in this one"


def test_a_claim_that_is_left_keeps_its_name_when_devices_are_numbered_anew(node: Node) -> None:
    node.prepare("train", "board-1")
    [record] = node.offer.records.values()
    renamed = _renumbered(inventory(0, 1))
    named = with_names_of_claims(renamed, [record])
    names = device_names(named)
    assert names["ACME-1"] == "board-1"
    assert names["ACME-0"] not in {"board-0", "board-1"}
    alone = with_names_of_claims(Inventory(devices=(renamed.devices[0],)), [record])
    assert device_names(alone)["ACME-0"] != "board-1", "the claim's device may come back"
    assert with_names_of_claims(same := inventory(0, 1), [record]) is same
    index = DeviceIndex(named)
    assert index.named(None, f"{DRA_DRIVER}/{NODE}/board-1") == Part("ACME-1")


def test_a_plan_in_which_a_device_has_another_name_is_decided_again_after_a_claim_came_for_it(node: Node) -> None:
    node.prepare("train", "board-1")
    renamed = _renumbered(inventory(0, 1))
    assert not node.withdraw(plan(Api.DRA, 0, 1), renamed)
    assert node.withdraw(plan(Api.DRA, 0, 1), with_names_of_claims(renamed, node.offer.records.values()))


def test_calls_for_one_claim_wait_for_each_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [0], [0]
    prepare = node.offer.prepare

    def slow(claim: Claim) -> Prepare:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        inside[0] -= 1
        return prepare(claim)

    monkeypatch.setattr(node.offer, "prepare", slow)
    node.stored["ml", "train"] = allocated("train", "board-0")
    calls = [Thread(target=node.claims.prepare, args=("ml", "train", "uid-train")) for _ in range(3)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert most == [1]


def test_an_unprepare_waits_for_no_prepare_that_waits_for_a_device_and_the_prepare_enters_nothing(node: Node) -> None:
    node.prepare("first", "board-0")
    node.stored["ml", "late"] = allocated("late", "board-0")
    claims, said = node.waiting(PATIENCE_SECONDS), list[str]()

    def prepare() -> None:
        try:
            claims.prepare("ml", "late", "uid-late")
        except ClaimError as error:
            said.append(str(error))

    node.read.clear()
    call = Thread(target=prepare)
    call.start()
    assert node.read.wait(PATIENCE_SECONDS)
    claims.unprepare("uid-late")
    node.claims.unprepare("uid-first")
    call.join()
    assert (said, dict(node.offer.records)) == (["the claim was unprepared meanwhile"], {})


def test_a_disk_that_is_full_for_a_moment_fails_no_prepare(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write, times = node.files.write, [0]

    def full_twice(record: Record, document: Mapping[str, Any] | None) -> None:
        times[0] += 1
        if times[0] <= 2:
            _fails()
        write(record, document)

    monkeypatch.setattr(node.files, "write", full_twice)
    node.claims = node.waiting(PATIENCE_SECONDS)
    assert node.prepare("train", "board-0") == ["board-0"]


def test_nothing_is_waited_for_once_the_kubelet_has_gone(node: Node) -> None:
    node.stored["ml", "late"] = allocated("late", "board-7")
    with pytest.raises(NotNowError, match="does not offer the device board-7"):
        node.waiting(float("inf")).prepare("ml", "late", "uid-late", called=lambda: False)


def test_a_claim_is_released_only_while_it_has_what_was_looked_at(node: Node) -> None:
    node.prepare("shared", "board-0")
    [before] = node.offer.records.values()
    node.prepare("shared", "board-1")
    node.claims.unprepare("uid-shared", record=before)
    assert [record.held for record in node.offer.records.values()] == [{"ACME-1"}]


def _renumbered(before: Inventory) -> Inventory:
    """Two devices, each with the name of the other."""
    first, second = before.devices
    return Inventory(
        devices=(
            dataclasses.replace(first, fact=_named(first.fact, "board-1")),
            dataclasses.replace(second, fact=_named(second.fact, "board-0")),
        )
    )


def _named(fact: DeviceFact, name: str) -> DeviceFact:
    return dataclasses.replace(fact, name=name)


def _fails(*_: object) -> None:
    raise OperationError("no space left on device")


@pytest.mark.parametrize("when", ["write", "edits"])
def test_a_prepare_that_fails_on_its_way_leaves_nothing_behind(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    broken: Any = node.files if when == "write" else node.offer
    monkeypatch.setattr(broken, when, _fails)
    with pytest.raises(OperationError, match="no space left"):
        node.prepare("train", "board-0")
    monkeypatch.undo()
    assert (dict(node.offer.records), list(tmp_path.rglob("*.json"))) == ({}, [])
    assert node.prepare("second", "board-0") == ["board-0"]


def test_a_claim_whose_files_cannot_be_removed_keeps_its_device(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.prepare("train", "board-0")
    monkeypatch.setattr(node.files, "remove", _fails)
    with pytest.raises(OperationError):
        node.claims.unprepare("uid-train")
    with pytest.raises(NotNowError, match="prepared for the claim ml/train"):
        node.prepare("second", "board-0")


def test_a_claim_that_was_deallocated_and_allocated_anew_has_its_new_device_alone(node: Node, tmp_path: Path) -> None:
    node.prepare("shared", "board-0")
    assert node.prepare("shared", "board-1") == ["board-1"]
    [record] = node.offer.records.values()
    assert record.held == {"ACME-1"}
    [document] = (json.loads(file.read_text()) for file in (tmp_path / "cdi").iterdir())
    nodes = [each["path"] for each in document["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/acme1"]
    assert node.prepare("second", "board-0") == ["board-0"]


def test_an_agent_that_was_killed_at_any_moment_reads_what_it_had_written(node: Node, tmp_path: Path) -> None:
    node.prepare("train", "board-0")
    [path] = (tmp_path / "claims").iterdir()
    whole = path.read_bytes()
    again = ClaimFiles(tmp_path / "claims", tmp_path / "cdi", driver=DRA_DRIVER)
    assert again.read() == node.offer.records
    assert not again.problem
    named = whole.rindex(b"}]") + 1  # all of the device is there
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        cut = ClaimFiles(tmp_path / "claims", tmp_path / "cdi", driver=DRA_DRIVER)
        found = cut.read()
        assert path.exists() is (at >= named)
        if at >= named:
            assert [(record.uid, record.held) for record in found.values()] == [("uid-train", frozenset({"ACME-0"}))]
            assert not cut.problem
        else:
            assert found == {}
            assert f"set aside as {path.name}.unreadable" in cut.problem


def test_a_record_that_is_too_large_is_damaged_whatever_is_in_it(node: Node, tmp_path: Path) -> None:
    node.prepare("train", "board-0")
    [path] = (tmp_path / "claims").iterdir()
    path.write_bytes(path.read_bytes() + b"\n" * MAX_BYTES)
    [record] = node.files.read().values()
    assert f"more than {MAX_BYTES} bytes" in record.problem
    assert record.held == {"ACME-0"}


def test_what_a_damaged_record_still_names_stays_its_claims_until_the_pod_has_ended(node: Node, tmp_path: Path) -> None:
    node.prepare("train", "board-0")
    [path] = (tmp_path / "claims").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"namespace"', b'"namesp\xffce"'))
    node.offer.restore(node.files.read())
    [record] = node.offer.records.values()
    assert record.problem.startswith("uid-train.json is damaged ('utf-8' codec can't decode")
    assert "ACME-0, which it still names, goes to no other pod" in record.problem
    with pytest.raises(NotNowError, match="prepared for the claim"):
        node.prepare("second", "board-0")
    assert node.prepare("train", "board-0") == ["board-0"], "the kubelet prepares it again"
    assert not node.files.read()["uid-train"].problem
    path.write_bytes(b"{" + path.read_bytes())
    node.offer.restore(node.files.read())
    node.claims.unprepare("uid-train")
    assert not path.exists()
    assert node.prepare("second", "board-0") == ["board-0"]


def test_a_full_disk_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ClaimFiles(tmp_path / "claims", tmp_path / "cdi", driver=DRA_DRIVER)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nodedevices_plugin.host.claim_files.update", full)
    with pytest.raises(OperationError, match=r"claims/u1.json: No space left on device"):
        files.write(Record(uid="u1", namespace="ml", name="c", prepared=()), None)


def test_a_record_that_the_disk_does_not_give_is_waited_for_and_not_set_aside(node: Node, tmp_path: Path) -> None:
    node.prepare("train", "board-0")
    (tmp_path / "claims" / "other.json").mkdir()  # reading it is an error of the file system, as EIO is
    again = ClaimFiles(tmp_path / "claims", tmp_path / "cdi", driver=DRA_DRIVER)
    with pytest.raises(OperationError, match=r"other.json: Is a directory"):
        again.read()
    assert (tmp_path / "claims" / "other.json").exists()


@pytest.mark.parametrize("uid", ["../../etc/passwd", "", "a/b", "x" * 65])
def test_a_uid_that_is_a_path_touches_no_file(node: Node, tmp_path: Path, uid: str) -> None:
    with pytest.raises(RecordError, match="is not the UID"):
        node.claims.prepare("ml", "c", uid)
    node.claims.unprepare(uid)
    assert list(tmp_path.iterdir()) == []


# --- the CDI file -----------------------------------------------------------------------------------------------------
def test_each_request_is_a_cdi_device_with_what_its_containers_need() -> None:
    spec = specification(
        "u1",
        DRA_DRIVER,
        {
            "gpu": ContainerEdits(
                envs={"A": "1"},
                devices=(DeviceNode(container_path="/dev/x", host_path="/host/dev/x"),),
                mounts=(Mount(container_path="/lib", host_path="/host/lib"),),
            ),
            "named": ContainerEdits(cdi_devices=("nvidia.com/gpu=GPU-1",)),
            "nothing": ContainerEdits(),
        },
    )
    assert spec.names == {
        "gpu": ("nodedevices.io/claim=u1-gpu",),
        "named": ("nvidia.com/gpu=GPU-1",),
        "nothing": (),
    }
    assert spec.document is not None
    assert spec.document["devices"] == [
        {
            "name": "u1-gpu",
            "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [{"path": "/dev/x", "hostPath": "/host/dev/x", "permissions": "rw"}],
                "mounts": [
                    {"hostPath": "/host/lib", "containerPath": "/lib", "options": ["ro", "nosuid", "nodev", "bind"]}
                ],
            },
        }
    ]
    assert specification("u1", DRA_DRIVER, {"nothing": ContainerEdits()}).document is None


def test_annotations_of_the_runtime_are_refused_with_what_to_set() -> None:
    with pytest.raises(ClaimError, match="set cdi-cri"):
        specification("u1", DRA_DRIVER, {"gpu": ContainerEdits(annotations={"cdi.k8s.io/x": "y"})})
