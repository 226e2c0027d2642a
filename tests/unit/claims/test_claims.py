"""What a ResourceClaim gets when the kubelet prepares it: its own devices, again after any restart, and no other's."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from nodedevices_api.withheld import HELD_IN_ANOTHER_SHAPE, UNHEALTHY
from nodedevices_plugin.claims.devices import Available, Prepare, ended, prepare
from nodedevices_plugin.claims.records import (
    Claim,
    ClaimError,
    Record,
    RecordError,
    Result,
    decode,
    encode,
    file_name,
    read_claim,
)
from nodedevices_plugin.model import DRA_DRIVER as DRIVER, Api, Blocked, OfferedResource, SchedulableId
from support.cases import cases

NODE, UID = "n1", "5c7d1b1e-9d6b-4b39-8a3e-2c8ad2f1f0aa"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def result(device: str = "gpu-0", **fields: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device} | fields


def claim(*results: Any, uid: str = UID, name: str = "c", **devices: Any) -> dict[str, Any]:
    """As the API server has it."""
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results or [result()])} | devices}},
    }


def understood(*results: Any, uid: str = UID, name: str = "c") -> Claim:
    return read_claim(claim(*results, uid=uid, name=name), uid=uid, driver=DRIVER, pool=NODE)


GPUS = OfferedResource(
    name="nvidia.com/gpu",
    api=Api.DRA,
    ids=tuple(SchedulableId(id=f"GPU-{number}", device_id=f"GPU-{number}") for number in range(4)),
)
DEVICES = {
    f"gpu-{number}": Available(part_id=schedulable.id, resource=GPUS, ids=(schedulable,))
    for number, schedulable in enumerate(GPUS.ids)
}
PRESENT = frozenset(device.part_id for device in DEVICES.values())


def prepared(wanted: Claim, *records: Record, **facts: Any) -> Prepare:
    known = {"devices": DEVICES, "present": PRESENT} | facts
    return prepare(wanted, records={record.uid: record for record in records}, **known)


# --- what a claim says ------------------------------------------------------------------------------------------------
def test_devices_of_other_drivers_and_pools_are_theirs() -> None:
    theirs = [result("nic-0", driver="dra.net"), result("gpu-0", pool="n2")]
    found = understood(*theirs, result("gpu-1", request="big/second"))
    assert found == Claim(uid=UID, namespace="ns", name="c", results=(Result(request="big", device="gpu-1"),))


def test_shares_of_administrators_are_read_and_configuration_for_others_is_not_ours() -> None:
    [found] = understood(result(adminAccess=True, shareID="s-1", consumedCapacity={"memory": "10Gi"})).results
    assert found == Result(request="gpu", device="gpu-0", admin=True, share="s-1", consumed={"memory": "10Gi"})
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}, "?"]
    assert read_claim(claim(config=config), uid=UID, driver=DRIVER, pool=NODE).results


@cases(
    ("wrong", "why"),
    (claim(uid="other"), "was deleted, and another of the same name was created"),
    (claim(result(driver="gpu.nvidia.com")), "has no device of nodedevices.io allocated on node n1"),
    (claim(*[result(f"gpu-{number}") for number in range(33)]), "33 devices allocated; a claim has at most 32"),
    (claim(result("")), "a result of its allocation has no request or no device"),
    (claim(config=[{"opaque": {"driver": DRIVER, "parameters": {}}}]), "a DevicePolicy sets how devices are shared"),
    ({"metadata": {"uid": UID}}, "has no device of nodedevices.io allocated"),
    (None, "was deleted"),
)
def test_a_claim_that_makes_no_sense_here_is_refused_and_says_why(wrong: Any, why: str) -> None:
    with pytest.raises(ClaimError, match=why):
        read_claim(wrong, uid=UID, driver=DRIVER, pool=NODE)


@given(JSON, JSON, JSON)
def test_odd_json_raises_nothing_else(one: Any, other: Any, third: Any) -> None:
    odd = [one, claim(one), claim(result(adminAccess=one, shareID=other, consumedCapacity=third)), claim(config=one)]
    for each in [*odd, {"metadata": {"uid": UID, "name": one}, "status": other}]:
        with contextlib.suppress(ClaimError):
            read_claim(each, uid=UID, driver=DRIVER, pool=NODE)
        ended(prepared(understood()).record, set(), each, driver=DRIVER, pool=NODE)


# --- what it gets -----------------------------------------------------------------------------------------------------
def test_a_claim_gets_its_devices_again_and_one_allocated_anew_is_released_first() -> None:
    first = prepared(understood(result("gpu-0"), result("gpu-1", request="other")))
    assert first.is_new
    assert first.record.held == {"GPU-0", "GPU-1"}
    again = prepared(understood(result("gpu-0"), result("gpu-1", request="other")), first.record, devices={})
    assert again == Prepare(record=first.record, is_new=False)  # whatever the plan is now
    before = prepared(understood()).record
    anew = prepared(understood(result("gpu-1")), before)
    assert anew.is_new
    assert anew.record.held == {"GPU-1"}


def test_a_device_that_is_gone_is_an_error_and_never_another_device() -> None:
    first = prepared(understood())
    with pytest.raises(ClaimError, match=r"gpu-0 \(GPU-0\), which the claim was given, is not on this node"):
        prepared(understood(), first.record, present=PRESENT - {"GPU-0"})
    with pytest.raises(ClaimError, match="is not on this node now"):
        prepared(understood(), present=PRESENT - {"GPU-0"})


def test_another_claims_device_is_refused_but_for_an_administrator() -> None:
    first = prepared(understood()).record
    with pytest.raises(ClaimError, match="gpu-0 is prepared for the claim ns/c"):
        prepared(understood(uid="b", name="d"), first)
    admin = prepared(understood(result(adminAccess=True), uid="b"), first).record
    assert admin.held == frozenset()
    with pytest.raises(ClaimError, match="is prepared for the claim"):
        prepared(understood(uid="e"), first, admin)


@cases(
    ("facts", "why"),
    ({"devices": {}}, "this node does not offer the device gpu-0"),
    ({"leaving": {"GPU-0"}}, "is about to stop offering the device gpu-0"),
    (
        {"devices": {"gpu-0": replace(DEVICES["gpu-0"], blocked=Blocked(reason=HELD_IN_ANOTHER_SHAPE, message="p"))}},
        "goes to no new pod",
    ),
)
def test_what_the_plan_does_not_give_away_no_claim_gets(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(ClaimError, match=why):
        prepared(understood(), **facts)
    with pytest.raises(ClaimError, match=why):
        prepared(understood(result(adminAccess=True)), **facts)


def test_a_claim_that_tolerates_the_taint_gets_the_device_and_none_has_one_twice() -> None:
    """The scheduler has judged the tolerations."""
    tainted = replace(DEVICES["gpu-0"], blocked=Blocked(reason=UNHEALTHY, message="Xid79"))
    assert prepared(understood(), devices={"gpu-0": tainted}).record.held == {"GPU-0"}
    with pytest.raises(ClaimError, match="has the device gpu-0 twice"):
        prepared(understood(result(), result(request="other")))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sets(st.integers(0, 3), min_size=1), st.booleans()), max_size=30))
def test_no_device_is_held_by_two_claims(calls: list[tuple[str, set[int], bool]]) -> None:
    """Prepares, repeated and allocated anew, and unprepares, in any order."""
    records: dict[str, Record] = {}
    for uid, numbers, unprepare in calls:
        if unprepare:
            records.pop(uid, None)
            continue
        try:
            done = prepared(understood(*(result(f"gpu-{number}") for number in numbers), uid=uid), *records.values())
        except ClaimError:
            continue
        records[uid] = done.record
        held = [part for record in records.values() for part in record.held]
        assert len(held) == len(set(held))


# --- records ----------------------------------------------------------------------------------------------------------
def test_a_record_is_read_as_it_was_written_whole_and_of_this_version() -> None:
    record = prepared(understood(result(consumedCapacity={"memory": "1Gi"}))).record
    content = encode(record)
    assert decode(content, uid=UID) == record
    for end in range(len(content)):
        with pytest.raises(RecordError):
            decode(content[:end], uid=UID)


@given(st.binary(max_size=64))
def test_other_bytes_are_no_record(content: bytes) -> None:
    with pytest.raises(RecordError):
        decode(content, uid=UID)


@cases(
    ("change", "why"),
    ({"version": 0}, "no version 0"),
    ({"uid": "other"}, "of another claim"),
    ({"prepared": ()}, "no device"),
)
def test_a_record_that_is_not_this_claims_is_refused(change: dict[str, Any], why: str) -> None:
    record = replace(prepared(understood()).record, **change)
    with pytest.raises(RecordError, match=why):
        decode(encode(record), uid=UID)


def _later(**change: Any) -> Record:
    """The record, as a version that came later writes it."""
    [part] = msgspec.to_builtins(prepared(understood()).record.prepared)
    whole = msgspec.to_builtins(prepared(understood()).record)
    if "result" in change:
        change = {"prepared": [part | {"result": part["result"] | change["result"]}]}
    elif "part" in change:
        change = {"prepared": [part | change["part"]]}
    return decode(msgspec.json.encode(whole | change) + b"\n", uid=UID)


@cases("change", {"version": 2}, {"later": 1}, {"part": {"later": 1, "shares": [0]}}, {"result": {"later": 1}})
def test_what_a_newer_version_wrote_holds_its_devices_and_is_not_prepared_by_this_one(change: dict[str, Any]) -> None:
    record = _later(**change)
    assert record.not_understood
    assert record.held == {"GPU-0"}
    with pytest.raises(ClaimError, match="gpu-0 is prepared for the claim ns/c"):
        prepared(understood(uid="b", name="d"), record)
    with pytest.raises(ClaimError, match="install that version again, or delete the pod"):
        prepared(understood(), record)
    assert prepared(understood(result("gpu-1")), record).record.held == {"GPU-1"}, "its pods have ended"


def test_a_newer_versions_record_that_names_no_device_in_our_way_is_still_that_claims() -> None:
    record = _later(version=2, prepared=[{"device": "GPU-0"}])
    assert record.held == frozenset()
    with pytest.raises(ClaimError, match="install that version again"):
        prepared(understood(result("gpu-1")), record)


@cases("uid", "", "..", "../x", "a/b", "a\n", "x" * 65)
def test_a_uid_that_is_a_path_names_no_file(uid: str) -> None:
    with pytest.raises(RecordError, match="not the UID"):
        file_name(uid)
    assert file_name(UID) == f"{UID}.json"


# --- claims that have ended -------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Proofs:
    shown: Any
    answer: Any


@cases(
    ("proofs", "is_over"),
    (Proofs(set(), {}), True),
    (Proofs(set(), claim(uid="other")), True),
    (Proofs(set(), claim(result(pool="n2"))), True),
    (Proofs(set(), {"metadata": {"uid": UID}}), True),
    (Proofs(set(), claim()), False),
    (Proofs(set(), None), False),
    (Proofs(None, {}), False),
    (Proofs({("ns", "c")}, {}), False),
)
def test_a_record_goes_by_two_proofs_and_never_by_one(proofs: Proofs, is_over: bool) -> None:
    record = prepared(understood()).record
    assert ended(record, proofs.shown, proofs.answer, driver=DRIVER, pool=NODE) is is_over
