"""Messages for people: the place, the value, what would be right."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_api.devicepolicy import DevicePolicy, DevicePolicySpec
from nodedevices_api.errors import explain, parse
from nodedevices_api.sections import Health, Sections
from nodedevices_common.errors import InputError
from pydantic import TypeAdapter, ValidationError
from support.cases import cases

RESOURCE = {"name": "nvidia.com/gpu", "replicas": 4}
RULE = {"reasons": ["Xid31"], "state": "Unhealthy"}


@cases(
    ("spec", "message"),
    ({"sharing": {"strategey": "none"}}, "spec.sharing.strategey: unknown key; did you mean strategy?"),
    ({"sharing": {"STRATEGY": "none"}}, "spec.sharing.STRATEGY: unknown key; did you mean strategy?"),
    ({"partitions": {"x": 1}}, "spec.partitions.x: unknown key; known are strategy"),
    (
        {"sharing": {"strategy": "timeSlicing", "resources": [{**RESOURCE, "replicas": 0}]}},
        "spec.sharing.resources[0].replicas: 0 is not allowed; give 2 or more",
    ),
    (
        {"sharing": {"strategy": "timeSlicing", "resources": [{**RESOURCE, "replica": 2}]}},
        "spec.sharing.resources[0].replica: unknown key; did you mean replicas?",
    ),
    ({"sharing": {"resources": RESOURCE}}, "spec.sharing.resources: "),
    ({"sharing": []}, "spec.sharing: [] is not allowed; give keys and values"),
    (
        {"partitions": {"strategy": "both"}},
        'spec.partitions.strategy: "both" is not allowed; choose none, single or mixed',
    ),
    ({"health": {"holdDownSeconds": "5m"}}, 'spec.health.holdDownSeconds: "5m" is not allowed; give a whole number'),
    ({"labels": {"featureDiscovery": 1}}, "spec.labels.featureDiscovery: 1 is not allowed; give true or false"),
    ({"labels": {"extra": {"a": 1}}}, "spec.labels.extra.a: 1 is not allowed; give text, in quotes"),
    ({"labels": {"extra": {"a b": "c"}}}, 'spec.labels.extra.a b: "a b" is not allowed; write a label key'),
    (
        {"capacity": [{"name": "gpu", "perNode": 1}]},
        'spec.capacity[0].name: "gpu" is not allowed; write a domain and a name of at most 63 characters, such as ',
    ),
    (
        {"faults": {"taintEffect": "NoExecute"}},
        "spec.faults: NoExecute or an eviction needs a budget; give budget.maxUnavailable or budget.perHour",
    ),
    ({"faults": {"taint": {}}}, "spec.faults.taint: unknown key; it is now taintEffect, such as NoSchedule"),
    ({"faults": {"event": False}}, "spec.faults.event: unknown key; Events are always written; leave it out"),
    ({"faults": {"nodeCondition": False}}, "spec.faults.nodeCondition: unknown key; the Node always has the conditio"),
    ({"faults": {"rules": [{"evict": {}}]}}, "spec.faults.rules[0].evict: unknown key; it is now evictMode, such as"),
    (
        {"sharing": {"strategy": "timeSlicing", "resources": [RESOURCE | {"match": {"productName": "NVIDIA L4"}}]}},
        "spec.sharing.resources[0].match: unknown key; give these devices a name of their own in the section ",
    ),
    (
        {"faults": {"rules": [{"match": {"near": "nic"}}]}},
        "spec.faults.rules[0].match.near: unknown key; only resources.devices has it; choose productName (such as ",
    ),
    (
        {"health": {"rules": [RULE | {"match": {"vendor": "nvidia"}}]}},
        "spec.health.rules[0].match.vendor: unknown key; only resources.devices has it; choose productName (such as ",
    ),
    (
        {"sharing": {"strategy": "memory", "resources": [{"name": "a.b/c", "coreResource": "tencent.com/vcuda-core"}]}},
        "spec.sharing.resources[0].coreResource: unknown key; rename tencent.com/vcuda-memory brings tencent.com",
    ),
    (
        {"capacity": [{"name": "a.b/c", "perDevice": 1, "match": {"type": "nic"}}]},
        "spec.capacity[0].match: unknown key; write productName and type in the entry itself",
    ),
    (
        {"capacity": [{"name": "a.b/c", "perDevice": 1, "scope": "all"}]},
        "spec.capacity[0].scope: unknown key; perDevice and sumOf count devices that new pods can get; perNode is ",
    ),
    ({"nodeSelector": None, "partitions": {}}, "spec.nodeSelector: null is not allowed; give keys and values"),
    ({"idle": None, "health": {}}, "spec.idle: null is not allowed; give it a value, or leave it out"),
    ({"idle": {"afterSeconds": None}}, "spec.idle.afterSeconds: null is not allowed; give it a value, or leave it out"),
    ({"health": {"rules": [RULE | {"after": None}]}}, "spec.health.rules[0].after: null is not allowed; give it a "),
    ({"health": {"rules": [RULE, RULE | {"match": None}]}}, "spec.health.rules[1].match: null is not allowed; "),
    ({"paused": True, "health": {}}, "spec.paused: unknown key; it is now mode: Paused"),
    ({"idle": {"event": True}}, "spec.idle.event: unknown key; with afterSeconds the pod has both; leave it out"),
    ({"idle": {"afterSeconds": 0}}, "spec.idle.afterSeconds: 0 is not allowed; give 60 or more"),
    ({"idle": {"afterSeconds": 10**18}}, "spec.idle.afterSeconds: 1000000000000000000 is not allowed; give 604800 "),
)
def test_a_message_names_the_place_the_value_and_what_would_be_right(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(DevicePolicySpec, {"nodeSelector": {}, **spec}, "spec")
    assert [problem for problem in caught.value.problems if problem.startswith(message)], caught.value.problems


def test_every_problem_is_reported_at_once_and_null_in_what_the_server_writes_is_none() -> None:
    metadata = {"name": "p", "creationTimestamp": None}
    assert parse(DevicePolicy, {"metadata": metadata, "spec": {"nodeSelector": {}, "health": {}}}).metadata.name == "p"
    with pytest.raises(InputError) as caught:
        parse(Sections, {"partitions": {"strategy": "both"}, "health": {"holdDownSeconds": -1}, "sharin": {}})
    assert len(caught.value.problems) == 3
    assert str(caught.value) == "; ".join(caught.value.problems)


def test_hostile_long_or_odd_values_get_a_short_answer() -> None:
    with pytest.raises(InputError) as caught:
        parse(Sections, {f"{'x' * 10_000}{n}": "y" * 10_000 for n in range(1000)})
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 980 more problems"
    assert len(str(caught.value)) < 10_000
    with pytest.raises(InputError) as caught:
        parse(Sections, {"partitions": "z" * 10_000})
    assert len(str(caught.value)) < 200
    with pytest.raises(InputError, match=r"partitions: \{1, 2\} is not allowed"):
        parse(Sections, {"partitions": {1, 2}})


def test_other_validations_can_be_explained_and_unknown_errors_keep_pydantics_words() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, Health]).validate_python({"a": {"holdDown": 3}})
    assert explain(caught.value, where="file.yaml") == ["file.yaml.a.holdDown: unknown key"]
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(bytes).validate_python(3)
    assert explain(caught.value, where="here") == ["here: 3: Input should be a valid bytes"]
