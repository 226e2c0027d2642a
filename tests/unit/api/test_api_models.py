"""The models: names, strictness, round trips, defaults."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from nodedevices_api import API_VERSION, GROUP, VERSION
from nodedevices_api.base import Model, to_dict
from nodedevices_api.defaults import with_defaults
from nodedevices_api.devicepolicy import DevicePolicy, DevicePolicySpec, DevicePolicyStatus, NodeCounts
from nodedevices_api.errors import parse
from nodedevices_api.fields import HEALTH_MESSAGE_LIMIT
from nodedevices_api.meta import Condition, LabelSelector
from nodedevices_api.nodedevices import DeviceAttributes, DeviceHealth, Holder, NodeDevices, NodeDevicesSpec, Summary
from nodedevices_api.sections import Health, Sections, SharedResource, Sharing
from nodedevices_common.conditions import MESSAGE_LIMIT
from nodedevices_common.errors import InputError
from pydantic import ValidationError
from support.cases import cases
from support.contract import FULL_NODE, FULL_POLICY, REFUSALS, UNKNOWN_KEYS, Refusal, policy
from support.there import there

NOW = datetime(2026, 11, 21, 7, 2, 11, 123456, tzinfo=UTC)


def kind_of(document: dict[str, Any]) -> type[Model]:
    return NodeDevices if document["kind"] == "NodeDevices" else DevicePolicy


def test_group_and_version_are_said_once_and_the_full_policy_sets_every_field() -> None:
    assert f"{GROUP}/{VERSION}" == API_VERSION
    spec = parse(DevicePolicy, FULL_POLICY).spec
    assert isinstance(spec, DevicePolicySpec)
    assert unset(spec, "spec") == []


@cases("document", FULL_NODE, FULL_POLICY, ids=["NodeDevices", "DevicePolicy"])
def test_a_full_example_comes_back_as_it_went_in(document: dict[str, Any]) -> None:
    model: Any = parse(kind_of(document), document)
    assert to_dict(model.status) == document.get("status", {})
    if isinstance(model, NodeDevices):
        written = to_dict(model.spec.model_copy(update={"config": None}))
        assert {**written, "config": to_dict(there(model.spec.config))} == document["spec"]
    else:
        assert to_dict(model.spec) == document["spec"]


def unset(model: Any, path: str) -> list[str]:
    """Places of a value where nothing was set."""
    if isinstance(model, Model):
        missing = [f"{path}.{name}" for name in set(type(model).model_fields) - model.model_fields_set]
        return missing + [
            hit for name in model.model_fields_set for hit in unset(getattr(model, name), f"{path}.{name}")
        ]
    return []


@cases("refusal", *REFUSALS, ids=[refusal.name for refusal in REFUSALS])
def test_what_the_api_server_refuses_is_refused_here_too(refusal: Refusal) -> None:
    with pytest.raises(InputError) as caught:
        parse(kind_of(refusal.document), refusal.document)
    # Of a CEL rule both say the same sentence; the API server says before it what stands there.
    sentence = refusal.says.rpartition(": ")[2]
    assert (refusal.ours or sentence) in str(caught.value)


@cases(("place", "document", "path"), *UNKNOWN_KEYS, ids=[place for place, _, _ in UNKNOWN_KEYS])
def test_an_unknown_key_is_an_error_that_names_its_place(place: str, document: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match="unknown key") as caught:
        parse(kind_of(document), document)
    assert f"{path}: " in str(caught.value)


def test_a_newer_status_can_be_read_python_names_are_not_accepted_and_values_are_frozen() -> None:
    document = copy.deepcopy(FULL_NODE)
    document["status"]["devices"][0]["mood"] = "calm"
    document["status"]["forecast"] = "sunny"
    assert parse(NodeDevices, document) == parse(NodeDevices, FULL_NODE)
    with pytest.raises(InputError, match="hold_down_seconds: unknown key; did you mean holdDownSeconds"):
        parse(Health, {"hold_down_seconds": 3})
    health = Health(hold_down_seconds=3)
    with pytest.raises(ValidationError, match="frozen"):
        health.hold_down_seconds = 4  # type: ignore[misc]


@cases("value", "3", 3.0, True, None)
def test_numbers_are_exact_about_their_type(value: object) -> None:
    with pytest.raises(InputError):
        parse(Health, {"holdDownSeconds": value})


# --- what is written -------------------------------------------------------------------------------------------------
def test_a_section_is_written_as_it_was_set_and_an_empty_configuration_is_not_an_absent_one() -> None:
    assert to_dict(Sections(health=Health(hold_down_seconds=30))) == {"health": {"holdDownSeconds": 30}}
    assert to_dict(Sections(health=Health(hold_down_seconds=300))) == {"health": {"holdDownSeconds": 300}}
    assert to_dict(Sections(sharing=Sharing())) == {"sharing": {}}
    assert to_dict(Sections()) == {}
    assert to_dict(NodeDevicesSpec()) == {}
    assert parse(NodeDevicesSpec, {"config": {}}).config == Sections()
    assert parse(NodeDevicesSpec, {}).config is None


def test_a_status_is_written_without_what_is_empty_but_with_zeros_that_count() -> None:
    summary = Summary(
        devices=0,
        healthy=0,
        degraded=0,
        unhealthy=0,
        unknown=0,
        held=0,
        unschedulable=0,
        model="",
        models=0,
        reason="",
        recovery_action="",
    )
    assert set(to_dict(summary)) == {
        *("devices", "healthy", "degraded", "unhealthy", "unknown", "held", "unschedulable", "model", "models"),
        *("reason", "recoveryAction"),
    }
    assert to_dict(DevicePolicyStatus()) == {}
    assert to_dict(DevicePolicyStatus(nodes=NodeCounts(selected=0, applied=0, overridden=0, failed=0))) == {
        "nodes": {"selected": 0, "applied": 0, "overridden": 0, "failed": 0}
    }


def test_sections_are_all_of_a_policy_but_its_strength_and_selector_which_it_must_have() -> None:
    spec = parse(DevicePolicySpec, FULL_POLICY["spec"])
    others = {"nodeSelector", "priority", "mode", "rollout"}
    wanted = {key: value for key, value in FULL_POLICY["spec"].items() if key not in others}
    assert to_dict(spec.sections()) == wanted
    assert type(spec.sections()) is Sections
    with pytest.raises(InputError, match="nodeSelector: missing"):
        parse(DevicePolicy, {**policy(), "spec": {"partitions": {"strategy": "none"}}})


def test_a_field_left_out_equals_its_default_and_a_plain_number_is_a_quantity() -> None:
    assert parse(Sections, {"faults": {"podCondition": "OnFault"}}) == parse(Sections, {"faults": {}})
    assert parse(SharedResource, {"name": "nvidia.com/gpu", "memoryUnit": 1024}).memory_unit == "1024"


def test_times_are_written_in_utc_and_long_texts_are_clipped() -> None:
    health = DeviceHealth(state="Healthy", since=NOW.astimezone(timezone(timedelta(hours=2))))
    holder = Holder(namespace="ml", pod="p", container="c", since=NOW)
    assert to_dict(health)["since"] == "2026-11-21T07:02:11Z"
    assert to_dict(holder)["since"] == "2026-11-21T07:02:11.123456Z"
    health = DeviceHealth(state="Unhealthy", since=NOW, message="x" * 1000)
    condition = Condition(type="Ready", status="True", reason="Because", message="ü" * 5000, last_transition_time=NOW)
    assert len(health.message) == HEALTH_MESSAGE_LIMIT
    assert health.message.endswith("…")
    assert len(condition.message) == MESSAGE_LIMIT
    assert DeviceAttributes(product_name="N" * 200).product_name == "N" * 63 + "…"


@cases("value", "2026-11-21", "2026-11-21T07:02:11", "soon", 1795244531, datetime(2026, 1, 1))  # noqa: DTZ001
def test_a_time_without_a_zone_or_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="write it as 2026-11-21T07:02:11Z"):
        parse(DeviceHealth, {"state": "Healthy", "since": value})


# --- defaults --------------------------------------------------------------------------------------------------------
def test_the_built_in_defaults_are_the_agreed_ones() -> None:
    assert to_dict(with_defaults(Sections())) == {
        "serving": {"mode": "Serve", "api": "DevicePlugin"},
        "resources": {"devices": [], "exclude": []},
        "sharing": {"strategy": "none", "renameByDefault": False, "failRequestsGreaterThanOne": False, "resources": []},
        "partitions": {"strategy": "none"},
        "injection": {"deviceListStrategies": ["envvar"], "deviceIDStrategy": "uuid", "passDeviceSpecs": False},
        "health": {"rules": [], "degraded": [], "holdDownSeconds": 300},
        "faults": {
            "podCondition": "OnFault",
            "xidNodeCondition": False,
            "taintEffect": "None",
            "evictMode": "Never",
            "evictGraceSeconds": 60,
            "evictExcludeNamespaces": [],
            "rules": [],
            "breakerPercent": 50,
        },
        "capacity": [],
        "labels": {"featureDiscovery": False, "extra": {}},
        "discovery": {},
        "expect": [],
        "idle": {},
    }


# --- selectors -------------------------------------------------------------------------------------------------------
@cases(
    ("selector", "labels", "selected"),
    ({}, {}, True),
    ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
    ({"matchLabels": {"a": "b"}}, {"a": "c"}, False),
    ({"matchLabels": {"a": ""}}, {}, False),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}, {"a": "c"}, True),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {}, False),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"}, False),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": "b"}, False),
    (
        {"matchLabels": {"x": "y"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
        {"a": "b", "x": "z"},
        False,
    ),
)
def test_a_selector_is_one_of_kubernetes(selector: dict[str, Any], labels: dict[str, str], selected: bool) -> None:
    assert parse(LabelSelector, selector).matches(labels) is selected


def test_with_mps_a_container_may_have_one_share_and_mps_fits_neither_mixed_nor_a_watcher() -> None:
    def fails(**given: Any) -> bool:
        sharing = Sharing(resources=(SharedResource(name="nvidia.com/gpu", replicas=2),), **given)
        return with_defaults(Sections(sharing=sharing)).sharing.fail_requests_greater_than_one

    assert fails(strategy="mps")
    assert not fails(strategy="mps", fail_requests_greater_than_one=False)
    assert not fails(strategy="timeSlicing")
    # Where it does not fit a node after all, such as one with MIG devices, that node says so.
    sharing = {"strategy": "mps", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}
    assert parse(DevicePolicySpec, {"nodeSelector": {}, "sharing": sharing, "partitions": {"strategy": "single"}})
    mixed = {"nodeSelector": {}, "sharing": sharing, "partitions": {"strategy": "mixed"}}
    assert parse(DevicePolicySpec, {**mixed, "serving": {"mode": "Observe"}})
    with pytest.raises(InputError, match=r"MPS is not possible with partitions\.strategy mixed"):
        parse(DevicePolicySpec, {**mixed, "serving": {"mode": "Serve"}})
