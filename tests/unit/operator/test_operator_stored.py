"""A stored configuration of another version: what is understood counts, and what is not takes nothing back."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from nodedevices_operator.desired.configuration import resolve, understood
from nodedevices_operator.records import names
from nodedevices_operator.records.objects import PolicyRef
from support.cases import cases
from support.fakekube import FakeKube, settle
from support.opfacts import SINCE, device, health, policy, raw_policy
from support.whole_operator import ITEM, NODE, arrive, condition, one_node, started, verdict, with_status

POLICY = f"{names.POLICIES}/all"
SLOTS, TIER = "example.com/slots", "example.com/tier"
SECTIONS: dict[str, Any] = {
    "health": {"holdDownSeconds": 600},
    "faults": {"taintEffect": "NoSchedule"},
    "idle": {"afterSeconds": 1800},
    "capacity": [{"name": SLOTS, "perNode": 4}],
    "labels": {"extra": {TIER: "gold"}},
}


# --- what is understood ----------------------------------------------------------------------------------------------
def test_what_this_version_writes_is_understood_whole() -> None:
    found = understood(SECTIONS)
    assert (found.partly, found.problems, found.misfit) == (frozenset(), (), "")
    assert found.sections.capacity[0].per_node == 4


def test_what_is_not_known_costs_itself_or_its_section_and_no_other() -> None:
    found = understood(SECTIONS | {"health": {"holdDownSeconds": 600, "later": 7}})
    assert (found.partly, found.sections.health.hold_down_seconds) == (frozenset({"health"}), 600)
    assert found.problems[0].startswith("config.health.later: unknown key")
    assert found.sections.labels.extra == {TIER: "gold"}
    found = understood(SECTIONS | {"health": {"holdDownSeconds": 600, "later": 7, "sooner": 8}})
    assert (found.partly, found.sections.health.hold_down_seconds) == (frozenset({"health"}), 600)
    assert [line.partition(": ")[0] for line in found.problems] == ["config.health.later", "config.health.sooner"]
    found = understood(SECTIONS | {"later": {"x": 1}})
    assert (found.partly, len(found.problems)) == (frozenset(), 1)
    assert found.sections.faults.taint_effect == "NoSchedule"
    found = understood(SECTIONS | {"health": {"holdDownSeconds": "soon"}})
    assert found.partly == {"health"}
    assert found.sections.capacity[0].per_node == 4


# --- the merge -------------------------------------------------------------------------------------------------------
def test_beside_a_section_of_a_newer_version_another_policy_takes_effect() -> None:
    newer: dict[str, Any] = {"health": {"holdDownSeconds": 600, "later": 7}}
    before = (newer, (PolicyRef("all", 1, 0, ("health",)),))
    found = resolve({}, [policy("all", **newer), policy("other", labels={"extra": {TIER: "gold"}})], *before)
    assert found.config == newer | {"labels": {"extra": {TIER: "gold"}}}
    assert found.reason == "PolicyInvalid"
    assert "config.health.later: unknown key" in found.message
    assert not found.outcomes["other"].failed


# --- the whole operator ----------------------------------------------------------------------------------------------
def on_node(kube: FakeKube) -> tuple[Any, ...]:
    """What the policy has put on the Node."""
    node = kube.objects[NODE]
    taints = [taint["value"] for taint in node["spec"].get("taints", ())]
    return taints, node["metadata"]["labels"].get(TIER), node["status"]["capacity"].get(SLOTS)


@pytest.fixture
async def kube() -> FakeKube:
    """A node with a fault that has all that the policy puts there."""
    made = one_node(device(0, health=health("Unhealthy", "Xid79")))
    made.put(POLICY, raw_policy("all", **SECTIONS))
    await started(made)
    assert on_node(made) == (["Xid79"], "gold", "4")
    return made


def of_a_newer_version(kube: FakeKube, section: str) -> None:
    with_key(kube, section, "later", 7)


def with_key(kube: FakeKube, section: str, key: str, value: object) -> None:
    for path, config in ((POLICY, kube.objects[POLICY]["spec"]), (ITEM, kube.objects[ITEM]["spec"]["config"])):
        there = copy.deepcopy(config[section])
        (there[0] if isinstance(there, list) else there)[key] = value
        config[section] = there
        kube.put(path, kube.objects[path])


@pytest.mark.parametrize("section", sorted(SECTIONS))
async def test_after_a_downgrade_a_field_that_is_not_known_takes_nothing_from_the_node(
    kube: FakeKube, section: str
) -> None:
    before = on_node(kube)
    of_a_newer_version(kube, section)
    await started(kube)
    assert on_node(kube) == before
    assert verdict(kube, ITEM, "PolicyResolved") == ("False", "PolicyInvalid")
    assert "later: unknown key" in condition(kube, ITEM, "PolicyResolved")["message"]


@cases(
    ("section", "key", "value", "instead"),
    ("faults", "event", False, "Events are always written"),
    ("faults", "evict", {"mode": "Immediate"}, "it is now evictMode, evictGraceSeconds and evictExcludeNamespaces"),
    ("faults", "breaker", {"percent": 30, "windowSeconds": 300}, "it is now breakerPercent"),
    ("health", "rules", [{"reasons": ["Xid31"], "state": "Degraded", "holdDownSeconds": 9}], "health.holdDownSeconds"),
    ("health", "probe", {"intervalSeconds": 2}, "a probe has its own interval"),
    ("idle", "podCondition", True, "with afterSeconds the pod has both"),
    ("faults", "nodeCondition", False, "the Node always has the conditions"),
)
async def test_a_key_of_before_takes_nothing_from_the_node_and_is_named_with_what_replaces_it(
    kube: FakeKube, section: str, key: str, value: object, instead: str
) -> None:
    """Until the new CRDs are there, which drop the key."""
    before = on_node(kube)
    with_key(kube, section, key, value)
    manager = await started(kube)
    await manager.reconcile_policy("all")
    assert on_node(kube) == before
    for path, kind in ((ITEM, "PolicyResolved"), (POLICY, "Accepted")):
        assert verdict(kube, path, kind)[0] == "False"
        assert re.search(
            rf"{section}\.{key}\S*: unknown key; {re.escape(instead)}", condition(kube, path, kind)["message"]
        )


async def test_a_policy_that_was_paused_stays_where_it_is_and_says_what_pauses_it_now(kube: FakeKube) -> None:
    before = on_node(kube)
    others = SECTIONS | {"labels": {"extra": {TIER: "silver"}}}
    kube.put(POLICY, raw_policy("all", generation=2, paused=True, **others))
    manager = await started(kube)
    await manager.reconcile_policy("all")
    assert on_node(kube) == before
    assert condition(kube, POLICY, "Accepted")["message"] == "spec.paused: unknown key; it is now mode: Paused"


async def test_beside_a_field_that_is_not_known_a_fault_that_is_over_frees_the_node(kube: FakeKube) -> None:
    of_a_newer_version(kube, "health")
    manager = await started(kube)
    arrive(manager, kube, ITEM, with_status(kube, devices=[device(0)], agent={"heartbeatTime": SINCE}))
    await settle(manager)
    assert on_node(kube) == ([], "gold", "4")


@cases(
    ("kind", "version"),
    ("NodeDevices", "nodedevices.io/v1alpha1"),
    ("DevicePolicy", "nodedevices.io/v1alpha1"),
    ("Node", "v1"),
)
def test_what_is_applied_names_the_version_of_its_kind(kind: str, version: str) -> None:
    assert names.identified(kind, "n1", "u")["apiVersion"] == version
