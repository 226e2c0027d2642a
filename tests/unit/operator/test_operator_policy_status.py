"""What a DevicePolicy says of itself: counts of nodes, and why it is not in force everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodedevices_operator.desired.configuration import Outcome, Previous, resolve
from nodedevices_operator.desired.policy_status import NodeOutcome, node_outcome, policy_status, tally
from nodedevices_operator.records import ConditionRecord
from support.opfacts import NOT_AT_WORK, NOW, policy, record, sharing

P = policy("p", sharing=sharing(2))
CHOSEN = frozenset({"p"})
FORCE = NodeOutcome(CHOSEN, {"p": Outcome(("sharing",), generation=1)}, in_force=True)
WAITING = NodeOutcome(CHOSEN, {"p": Outcome(("sharing",), generation=1)})
BEATEN = NodeOutcome(CHOSEN, {"p": Outcome((), ("sharing",), generation=1)}, in_force=True)
REFUSED = NodeOutcome(CHOSEN, {"p": Outcome(("sharing",), generation=1)}, failure="16384 replicas are too many")
LOSER = NodeOutcome(CHOSEN, {"p": Outcome((), ("sharing",), ("older",), generation=1)})


def said(nodes: dict[str, NodeOutcome], about: Any = P) -> dict[str, Any]:
    return policy_status(about, tally(about, nodes), NOW)


def applied(nodes: dict[str, NodeOutcome], about: Any = P) -> tuple[str, str, str]:
    found = next(it for it in said(nodes, about)["conditions"] if it["type"] == "Applied")
    return found["status"], found["reason"], found["message"]


def test_counts() -> None:
    counts = said({"a": FORCE, "b": WAITING, "c": BEATEN, "d": REFUSED, "e": NodeOutcome()})["nodes"]
    assert counts == {"selected": 4, "applied": 1, "overridden": 1, "failed": 1}


def test_applied_says_how_far_it_is() -> None:
    assert applied({})[:2] == ("False", "NoNodes")
    assert applied({"a": FORCE, "b": WAITING})[:2] == ("False", "Progressing")
    assert applied({"a": FORCE, "b": BEATEN})[:2] == ("True", "Applied")
    assert applied({"a": BEATEN})[:2] == ("False", "NoNodes")
    status, reason, message = applied({"a": FORCE, "b": REFUSED})
    assert (status, reason) == ("False", "Failed")
    assert "b: 16384 replicas" in message


def test_a_refused_policy_says_what_it_is_refused_for_and_where_an_earlier_one_goes_on() -> None:
    refused = policy("p", generation=2, sharing=sharing(2), faults=NOT_AT_WORK)
    nodes = {"a": NodeOutcome(CHOSEN, {"p": Outcome(("sharing",), generation=1)}, in_force=True)}
    conditions = {it["type"]: it for it in said(nodes, refused)["conditions"]}
    assert conditions["Accepted"]["reason"] == "NotSupportedYet"
    assert "faults.budget" in conditions["Accepted"]["message"]
    assert conditions["Applied"]["reason"] == "NotAccepted"
    assert "earlier generation stays in force on 1 nodes" in conditions["Applied"]["message"]


def test_the_younger_of_two_is_conflicted_and_told_by_whom() -> None:
    conditions = {it["type"]: it for it in said({"a": LOSER})["conditions"]}
    assert conditions["Conflicted"]["status"] == "True"
    assert "older" in conditions["Conflicted"]["message"]


def test_a_node_counts_as_applied_when_the_agent_echoes_the_hash() -> None:
    configuration = resolve({}, [P], Previous())
    told = {"ConfigApplied": ("True", "Applied")}
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    echoed = record(conditions=told, spec=spec, appliedConfigHash=configuration.config_hash)
    behind = record(conditions=told, spec=spec, appliedConfigHash="00")
    invalid = record(conditions={"ConfigApplied": ("False", "ConfigInvalid")}, spec=spec)
    assert node_outcome({}, {"p": P}, configuration, echoed).in_force
    assert not node_outcome({}, {"p": P}, configuration, behind).in_force
    assert not node_outcome({}, {"p": P}, configuration, invalid).in_force


TYPO = "sharing.resources[0].name nvidia.com/gpuu: no such resource here; offered: nvidia.com/gpu"


def shown(message: str, sections: tuple[str, ...] = ("sharing",)) -> NodeOutcome:
    """The outcome of a node whose agent says this in ConfigApplied."""
    configuration = resolve({}, [P], Previous())
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    found = record(conditions={}, spec=spec, appliedConfigHash=configuration.config_hash)
    condition = ConditionRecord("ConfigApplied", "True", "Applied", message)
    told = node_outcome({}, {"p": P}, configuration, replace(found, conditions=(condition,)))
    return replace(told, outcomes={"p": Outcome(sections, generation=1)})


def test_an_entry_that_matches_nothing_is_told_to_the_policys_author() -> None:
    status, reason, message = applied({"a": shown(TYPO), "b": shown("spec.unschedulable is not at work; " + TYPO)})
    assert (status, reason) == ("True", "Applied")
    assert message == f"in force on 2 nodes; on 2 of them {TYPO}"


def test_nodes_that_offer_different_things_count_together() -> None:
    other = TYPO.replace("offered: nvidia.com/gpu", "offered: nvidia.com/mig-1g.10gb")
    message = applied({"a": shown(other), "b": shown(TYPO), "c": FORCE})[2]
    assert message == f"in force on 3 nodes; on 2 of them {TYPO}"


def test_what_another_policy_or_a_nodes_own_file_says_is_not_this_policys_matter() -> None:
    assert applied({"a": shown(TYPO, sections=("mig",))})[2] == "in force on 1 nodes"


def test_only_a_few_entries_are_told_and_how_many_more_there_are() -> None:
    notes = "; ".join(TYPO.replace("[0]", f"[{number}]") for number in range(5))
    message = applied({"a": shown(notes)})[2]
    assert message.count("no such resource here") == 3
    assert message.endswith("and 2 more entries that match nothing somewhere")
