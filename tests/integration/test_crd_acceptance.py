"""What a real API server takes, refuses and shows of our kinds."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_common.errors import InputError
from support.contract import FULL_NODE, FULL_POLICY, REFUSALS, UNKNOWN_KEYS, Refusal, policy
from support.kubectl import Kubectl, KubectlError

KINDS = ["nodedevices", "devicepolicies"]


def write_status(kubectl: Kubectl, document: dict[str, Any], manager: str = "agent") -> None:
    """Apply only the status, as the agent does."""
    body = {key: value for key, value in document.items() if key != "spec"}
    kubectl.apply_as(manager, body, subresource="status")


def shown(kubectl: Kubectl, kind: str, name: str) -> dict[str, Any]:
    found = kubectl.get(kind, name)
    assert found is not None
    return found


@pytest.mark.parametrize("plural", KINDS)
def test_the_crd_is_established_and_structural(admin: Kubectl, plural: str) -> None:
    crd = admin.json("get", "crd", f"{plural}.nodedevices.io")
    conditions = {one["type"]: one["status"] for one in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}  # NonStructuralSchema would stand here
    assert crd["spec"]["scope"] == "Cluster"


@pytest.mark.parametrize("document", [FULL_NODE, FULL_POLICY], ids=KINDS)
def test_a_full_example_is_kept_to_the_last_field(kubectl: Kubectl, document: dict[str, Any]) -> None:
    kubectl.create(document)
    if "status" in document:
        write_status(kubectl, document)

    kept = shown(kubectl, document["kind"], document["metadata"]["name"])
    assert kept["spec"] == document["spec"]
    assert kept.get("status") == document.get("status")


@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal.name for refusal in REFUSALS])
def test_a_wrong_spec_is_refused_with_a_reason(admin: Kubectl, refusal: Refusal) -> None:
    with pytest.raises(KubectlError) as caught:
        admin.create(refusal.document, dry=True)
    assert refusal.says in caught.value.said


@pytest.mark.parametrize(("place", "document", "path"), UNKNOWN_KEYS, ids=[place for place, _, _ in UNKNOWN_KEYS])
def test_an_unknown_key_is_refused_by_strict_validation(
    admin: Kubectl, place: str, document: dict[str, Any], path: str
) -> None:
    with pytest.raises(KubectlError, match="unknown field") as caught:
        admin.create(document, dry=True)
    assert f'"{path}"' in caught.value.said


def test_what_a_policy_leaves_out_stays_out_but_for_priority_and_mode(kubectl: Kubectl) -> None:
    kubectl.create(policy(health={"holdDownSeconds": 5}, sharing={}))

    kept = shown(kubectl, "dp", "example")["spec"]
    assert kept == {
        "nodeSelector": {},
        "priority": 0,
        "mode": "Enforce",
        "health": {"holdDownSeconds": 5},
        "sharing": {},
    }


def test_a_key_without_a_value_is_left_out_by_create_and_refused_by_a_server_side_apply(kubectl: Kubectl) -> None:
    """No rule of a schema sees it: the API server takes it out before. What reads a file refuses it by the models."""
    document = policy(health={"rules": [{"reasons": ["Xid31"], "state": "Unhealthy", "after": None}]})
    with pytest.raises(KubectlError, match=r"spec.health.rules\[0\].after: Invalid value: .*null"):
        kubectl.run("apply", "--server-side", "-f", "-", stdin=json.dumps(document))
    with pytest.raises(InputError, match=r"spec.health.rules\[0\].after: null is not allowed"):
        parse(DevicePolicy, document)
    kubectl.create(document)
    assert shown(kubectl, "dp", "example")["spec"]["health"]["rules"] == [{"reasons": ["Xid31"], "state": "Unhealthy"}]


def test_no_configuration_and_an_empty_one_are_distinguished(kubectl: Kubectl) -> None:
    node = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices"}
    kubectl.create({**node, "metadata": {"name": "unresolved"}, "spec": {}})
    kubectl.create({**node, "metadata": {"name": "resolved"}, "spec": {"config": {}}})

    assert shown(kubectl, "nd", "unresolved")["spec"] == {}
    assert shown(kubectl, "nd", "resolved")["spec"] == {"config": {}}


# --- status ----------------------------------------------------------------------------------------------------------
def test_status_is_written_through_its_subresource_only(kubectl: Kubectl) -> None:
    kubectl.create(FULL_NODE)
    assert "status" not in shown(kubectl, "nd", "gpu-a01")

    document = copy.deepcopy(FULL_NODE)
    document["spec"] = {"config": {}}
    kubectl.run("apply", "--server-side", "--subresource=status", "-f", "-", stdin=json.dumps(document))
    kept = shown(kubectl, "nd", "gpu-a01")
    assert kept["status"]["summary"]["reason"] == "Xid79"
    assert kept["spec"] == FULL_NODE["spec"]


def test_a_reason_and_an_action_of_a_newer_agent_are_taken(kubectl: Kubectl) -> None:
    document = copy.deepcopy(FULL_NODE)
    document["status"]["devices"][1]["health"].update(reason="CosmicRay", recoveryAction="Relocate")
    document["status"]["resources"][0]["sharing"] = "quantum"
    kubectl.create(document)
    write_status(kubectl, document)

    kept = shown(kubectl, "nd", "gpu-a01")["status"]
    assert kept["devices"][1]["health"]["reason"] == "CosmicRay"
    assert kept["resources"][0]["sharing"] == "quantum"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda status: status["devices"][0]["health"].update(state="Fine"), 'supported values: "Healthy", "Degraded"'),
        (lambda status: status["devices"][0]["health"].update(reason="not one word"), "should match"),
        (lambda status: status["devices"][0].update(id="GPU 0"), "should match"),
        (lambda status: status["devices"].append(status["devices"][0]), "Duplicate value"),
        (lambda status: status["summary"].update(devices="8"), "must be of type integer"),
        (lambda status: status["devices"][1]["health"].update(message="x" * 513), "Too long"),
        (lambda status: status["devices"][-1].update(holders=status["devices"][-1]["holders"] * 129), "Too many"),
        (lambda status: status["devices"][0].update(notices=status["devices"][0]["notices"] * 5), "Too many"),
        (lambda status: status["devices"][0]["notices"][0].update(code="not one word"), "should match"),
        (lambda status: status["agent"].update(startTime="yesterday"), "must be of type date-time"),
    ],
    ids=["state", "reason", "id", "device twice", "number", "message", "holders", "notices", "notice", "time"],
)
def test_even_a_status_has_its_bounds(kubectl: Kubectl, change: Any, says: str) -> None:
    document = copy.deepcopy(FULL_NODE)
    kubectl.create(document)
    current = shown(kubectl, "nd", "gpu-a01")
    change(document["status"])
    with pytest.raises(KubectlError) as caught:
        kubectl.run(
            "replace", "--subresource=status", "-f", "-", stdin=json.dumps({**current, "status": document["status"]})
        )
    assert says in caught.value.said


# --- what people see -------------------------------------------------------------------------------------------------


def columns(header: str, row: str) -> list[str]:
    """A row's cells, cut where the header's words begin."""
    starts = [
        index for index, letter in enumerate(header) if letter != " " and (index == 0 or header[index - 1] == " ")
    ]
    return [row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_the_columns_of_devicepolicies(kubectl: Kubectl) -> None:
    kubectl.create(FULL_POLICY)

    header, row = kubectl.run("get", "dp").splitlines()
    shown = "NAME PRIORITY MODE ACCEPTED SELECTED APPLIED FAILED CONFLICTED ROLLOUT STOPPED AGE"
    assert header.split() == shown.split()
    assert columns(header, row)[:3] == ["example", "100", "DryRun"]


def test_nodes_are_found_by_the_reason_of_their_worst_device(kubectl: Kubectl) -> None:
    for name, reason in (("bad", "Xid79"), ("good", "")):
        document = copy.deepcopy(FULL_NODE)
        document["metadata"]["name"] = name
        document["status"]["summary"]["reason"] = reason
        kubectl.create(document)
        write_status(kubectl, document)

    assert kubectl.run("get", "nd", "--field-selector", "status.summary.reason=Xid79", "-o", "name").split() == [
        "nodedevices.nodedevices.io/bad"
    ]


def test_one_category_lists_both_kinds(kubectl: Kubectl) -> None:
    kubectl.create(FULL_NODE)
    kubectl.create(FULL_POLICY)

    assert sorted(kubectl.run("get", "hardware", "-o", "name").split()) == [
        "devicepolicy.nodedevices.io/example",
        "nodedevices.nodedevices.io/gpu-a01",
    ]


def test_kubectl_explains_a_field(admin: Kubectl) -> None:
    said = admin.run("explain", "nd.status.devices.health.recoveryAction")
    assert "Recommended recovery action, such as RestartApp, ResetDevice or RebootNode." in said


def test_a_policy_in_effect_or_paused_cannot_become_a_dry_run_and_is_told_the_two_ways(kubectl: Kubectl) -> None:
    in_effect = policy(health={})
    kubectl.create(in_effect)
    name = in_effect["metadata"]["name"]
    for mode in ("Enforce", "Paused", "Enforce"):
        kubectl.patch("devicepolicy", name, {"spec": {"mode": mode}})
        with pytest.raises(KubectlError) as caught:
            kubectl.patch("devicepolicy", name, {"spec": {"mode": "DryRun"}})
        assert f"mode from {mode} to DryRun" in caught.value.said
        assert "set mode: Paused" in caught.value.said


@pytest.mark.parametrize("mode", ["Enforce", "Paused"])
def test_a_dry_run_becomes_a_policy_that_is_in_effect_or_is_held_before_any_node_has_it(
    kubectl: Kubectl, mode: str
) -> None:
    trial = policy(mode="DryRun", health={})
    kubectl.create(trial)
    kubectl.patch("devicepolicy", trial["metadata"]["name"], {"spec": {"mode": mode}})
    kubectl.patch("devicepolicy", trial["metadata"]["name"], {"spec": {"mode": "Enforce"}})
