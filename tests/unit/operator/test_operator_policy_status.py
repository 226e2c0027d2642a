"""What a DevicePolicy says of itself: counts of nodes, and why it is not in force everywhere."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.desired.configuration import Outcome, Previous, resolve
from nodedevices_operator.desired.policy_status import NodeOutcome, node_outcome, policy_status, tally
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
