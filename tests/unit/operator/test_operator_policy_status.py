"""What a DevicePolicy says of itself: counts of nodes, and why it is not in effect everywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.observing import NO_TAINT
from nodedevices_operator.desired.configuration import DryRun, PolicyOutcome, resolve
from nodedevices_operator.desired.dry_run import DryRunEffect
from nodedevices_operator.desired.policy_status import (
    Hindrance,
    NodeOutcome,
    Tally,
    hindrances,
    node_outcome,
    policy_status,
    shows,
)
from nodedevices_operator.desired.rollout import RolloutState
from nodedevices_operator.reconcile.policy import Tallies
from nodedevices_operator.records.kinds import policy_record
from nodedevices_operator.records.objects import PolicyRecord
from support.cases import cases
from support.contract import INVALID_SHARING
from support.opfacts import NOW, policy, raw_policy, record, sharing

P = policy("p", sharing=sharing(2))
CHOSEN = frozenset({"p"})
FORCE = NodeOutcome(CHOSEN, {"p": PolicyOutcome(("sharing",), generation=1)}, active=True)
WAITING = NodeOutcome(CHOSEN, {"p": PolicyOutcome(("sharing",), generation=1)})
BEATEN = NodeOutcome(CHOSEN, {"p": PolicyOutcome((), ("sharing",), generation=1)}, active=True)
REFUSED = NodeOutcome(CHOSEN, {"p": PolicyOutcome(("sharing",), generation=1)}, failure="16384 replicas are too many")
LOSER = NodeOutcome(CHOSEN, {"p": PolicyOutcome((), ("sharing",), ("older",), generation=1)})


def tally(about: PolicyRecord, nodes: dict[str, NodeOutcome]) -> Tally:
    tallies = Tallies()
    for name, outcome in nodes.items():
        tallies.put(name, outcome)
    return tallies.tally(about)


def said(nodes: dict[str, NodeOutcome], about: Any = P) -> dict[str, Any]:
    return policy_status(about, tally(about, nodes), NOW)


def applied(nodes: dict[str, NodeOutcome], about: Any = P) -> tuple[str, str, str]:
    found = next(it for it in said(nodes, about)["conditions"] if it["type"] == "Applied")
    return found["status"], found["reason"], found["message"]


def test_applied_says_how_far_it_is() -> None:
    assert applied({})[:2] == ("False", "NoNodes")
    assert applied({"a": FORCE, "b": WAITING})[:2] == ("False", "Progressing")
    assert applied({"a": FORCE, "b": BEATEN})[:2] == ("True", "Applied")
    assert applied({"a": BEATEN})[:2] == ("False", "NoNodes")
    status, reason, message = applied({"a": FORCE, "b": REFUSED})
    assert (status, reason) == ("False", "Failed")
    assert "b: 16384 replicas" in message


def test_a_refused_policy_says_what_it_is_refused_for_and_where_an_earlier_one_goes_on() -> None:
    refused = policy("p", generation=2, sharing=INVALID_SHARING)
    nodes = {"a": NodeOutcome(CHOSEN, {"p": PolicyOutcome(("sharing",), generation=1)}, active=True)}
    conditions = {it["type"]: it for it in said(nodes, refused)["conditions"]}
    assert (conditions["Accepted"]["status"], conditions["Accepted"]["reason"]) == ("False", "Invalid")
    assert conditions["Accepted"]["message"].startswith("spec.sharing")
    assert "strategy memory needs memoryUnit" in conditions["Accepted"]["message"]
    assert (conditions["Applied"]["status"], conditions["Applied"]["reason"]) == ("False", "NotAccepted")
    assert "earlier generation stays in effect on 1 nodes" in conditions["Applied"]["message"]


def test_the_younger_of_two_is_conflicted_and_names_the_older() -> None:
    conditions = {it["type"]: it for it in said({"a": LOSER})["conditions"]}
    assert conditions["Conflicted"]["status"] == "True"
    assert "older" in conditions["Conflicted"]["message"]


def test_a_node_counts_as_applied_when_the_agent_echoes_the_hash() -> None:
    configuration = resolve({}, [P])
    reported = {"ConfigApplied": ("True", "Applied")}
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    echoed = record(conditions=reported, spec=spec, appliedConfigHash=configuration.config_hash)
    behind = record(conditions=reported, spec=spec, appliedConfigHash="00")
    invalid = record(conditions={"ConfigApplied": ("False", "ConfigInvalid")}, spec=spec)
    assert node_outcome({}, {"p": P}, configuration, echoed).active
    assert not node_outcome({}, {"p": P}, configuration, behind).active
    assert not node_outcome({}, {"p": P}, configuration, invalid).active


# --- why it waits, and whose fault it is -----------------------------------------------------------------------------
HOLDERS = "the change of nvidia.com/gpu waits until these pods have ended: team-a/train-0"


def answered(reason: str, message: str, status: str = "False", **more: Any) -> NodeOutcome:
    """The outcome of a node whose agent says this in ConfigApplied, while the policy is not in effect there."""
    configuration = resolve({}, [P])
    refused = {"refusals": [{"section": more.get("section", ""), "message": message}]}
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    found = record(spec=spec, configuration=refused)
    conditions = (ConditionRecord("ConfigApplied", status, reason, message), *more.get("conditions", ()))
    return node_outcome({}, {"p": P}, configuration, dataclasses.replace(found, conditions=conditions))


def test_a_file_of_the_node_that_is_wrong_beside_its_policies_fails_none_of_them() -> None:
    """Its last good content holds, and everything else is in effect."""
    configuration = resolve({}, [P])
    message = "/d/rdma.json: not JSON; its last content stays in effect"
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    found = record(
        spec=spec,
        appliedConfigHash=configuration.config_hash,
        configuration={"refusals": [{"message": message}], "filesAlone": True},
    )
    invalid = dataclasses.replace(
        found, conditions=(ConditionRecord("ConfigApplied", "False", "ConfigInvalid", message),)
    )
    outcome = node_outcome({}, {"p": P}, configuration, invalid)
    assert (outcome.active, outcome.failure) == (True, "")
    assert applied({"n1": outcome})[:2] == ("True", "Applied")


def test_one_node_is_named_by_its_reason_and_the_others_are_counted() -> None:
    waiting = answered("WaitingForHolders", HOLDERS)
    message = applied({"c": FORCE, "b": waiting, "a": waiting})[2]
    assert message == f"in effect on 1 of 3 nodes; a: {HOLDERS}; and 1 more node"
    message = applied({f"n{number}": waiting for number in range(9)})[2]
    assert message == f"in effect on 0 of 9 nodes; n0: {HOLDERS}; and 8 more nodes"
    quiet = answered("Applied", "", "True")
    assert applied({"a": quiet})[2] == "in effect on 0 of 1 nodes; a: its agent has not applied it yet"
    message = applied({"a": quiet, "b": answered("WaitingForHolders", HOLDERS)})[2]
    assert message == f"in effect on 0 of 2 nodes; b: {HOLDERS}; and 1 more node"
    stale = ConditionRecord("Stale", "True", "NodeNotReady", "the Node is not Ready; this status may be out of date")
    message = applied({"a": answered("WaitingForHolders", HOLDERS, conditions=(stale,))})[2]
    assert message == "in effect on 0 of 1 nodes; a: the Node is not Ready; this status may be out of date"
    nodes = {f"n{number}": answered("ConfigInvalid", f"sharing.strategy: {number % 2}") for number in range(6)}
    message = applied(nodes)[2]
    assert message == "6 of 6 nodes: n0: sharing.strategy: 0; n1: sharing.strategy: 1; and 4 more nodes"


def refused_for(
    message: str, *, section: str = "sharing", supplies: tuple[str, ...], overridden: tuple[str, ...] = ()
) -> NodeOutcome:
    """The agent refuses the configuration because of this section."""
    outcome = PolicyOutcome(supplies, overridden, generation=1)
    return replace(answered("ConfigInvalid", message, section=section), outcomes={"p": outcome})


SUPPLIERS = ("partitions", "sharing")
TOO_MANY = "sharing.resources[nvidia.com/gpu].replicas: 16384: too many; the previous configuration stays in effect"


def test_a_policy_is_blamed_for_no_other_ones_error_and_the_kubelets_refusal_has_its_words() -> None:
    overridden = refused_for(TOO_MANY, supplies=(), overridden=("sharing",))
    assert said({"a": overridden})["nodes"] == {"selected": 1, "applied": 0, "overridden": 1, "failed": 0}
    assert applied({"a": overridden})[1] == "NoNodes"
    other = refused_for(TOO_MANY, supplies=("partitions", "health"))
    status, reason, message = applied({"a": other})
    assert (status, reason) == ("False", "Progressing")
    assert message == f"in effect on 0 of 1 nodes; a: {TOO_MANY}"
    assert said({"a": other})["nodes"]["failed"] == 0
    refused = answered("RegistrationRejected", "the kubelet refuses x.io/a: bad", section="resources")
    assert refused.failure == "the kubelet refuses x.io/a: bad"
    waiting = answered("WaitingForKubelet", "the kubelet has not taken x.io/a yet")
    assert (waiting.failure, waiting.waiting) == ("", "the kubelet has not taken x.io/a yet")


def test_a_policy_fails_where_the_section_at_fault_is_its_own_or_none_is_named() -> None:
    assert applied({"a": refused_for(TOO_MANY, supplies=("sharing",))})[1] == "Failed"
    for message in ("partitions.strategy: single: use mixed", "whatever it says of sharing.resources"):
        refused = {supplies: refused_for(message, section="partitions", supplies=(supplies,)) for supplies in SUPPLIERS}
        assert applied({"a": refused["partitions"]})[1] == "Failed"
        assert applied({"a": refused["sharing"]})[1] == "Progressing"
    missing = "configuration file /config/a.yaml: there is no file"
    assert applied({"a": refused_for(missing, section="", supplies=("sharing",))})[1] == "Failed"
    assert applied({"a": refused_for(missing, section="", supplies=(), overridden=("sharing",))})[1] == "NoNodes"


def test_what_does_not_fit_together_in_policies_is_reported() -> None:
    owner = policy("owner", capacity=[{"name": "nvidia.com/gpu", "perNode": 3}])
    beaten = policy("beaten", -5, sharing=sharing(4))
    configuration = resolve({}, [P, owner, beaten])
    policies = {"p": P, "owner": owner, "beaten": beaten}
    nodes = {"a": node_outcome({}, policies, configuration, record())}
    for each in (P, owner):
        status, reason, message = applied(nodes, each)
        assert (status, reason) == ("False", "Failed")
        assert 'capacity and sharing.resources both name ["nvidia.com/gpu"]' in message
    assert applied(nodes, beaten)[1] == "NoNodes"


Entry = tuple[str, str, str]  # section, entry, message
TYPO = ("sharing", "resources[0].name nvidia.com/gpuu", "no such resource on this node; offered: nvidia.com/gpu")


def text(entry: Entry) -> str:
    return "{}.{}: {}".format(*entry)


def shown(*entries: Entry, sections: tuple[str, ...] = ("sharing",)) -> NodeOutcome:
    """The outcome of a node whose agent names these entries."""
    configuration = resolve({}, [P])
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    named = {"unmatched": [dict(zip(("section", "entry", "message"), entry, strict=True)) for entry in entries]}
    found = record(conditions={}, spec=spec, appliedConfigHash=configuration.config_hash, configuration=named)
    condition = ConditionRecord("ConfigApplied", "True", "Applied", "for people")
    reported = node_outcome({}, {"p": P}, configuration, dataclasses.replace(found, conditions=(condition,)))
    return replace(reported, outcomes={"p": PolicyOutcome(sections, generation=1)})


def test_what_a_budget_refuses_is_reported_to_the_policys_author() -> None:
    configuration = resolve({}, [P])
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    is_applied, refused = {"ConfigApplied": ("True", "Applied")}, [{"name": "evictions", "reason": "Refused"}]
    found = record(conditions=is_applied, actions=refused, spec=spec, appliedConfigHash=configuration.config_hash)
    evicting = {"p": PolicyOutcome(("faults",), generation=1)}
    node = replace(node_outcome({}, {"p": P}, configuration, found), outcomes=evicting)
    assert applied({"a": node})[2].startswith("in effect on 1 nodes; on 1 of them faults: evictions: Refused: ")


def test_nodes_on_which_an_entry_matches_nothing_are_counted_by_the_entry_of_most() -> None:
    nodes = {"a": shown(TYPO), "b": shown(TYPO), "c": shown()}
    assert policy_status(P, tally(P, nodes), NOW)["nodes"] == {
        "selected": 3,
        "applied": 3,
        "overridden": 0,
        "failed": 0,
        "unmatched": 2,
    }
    other = (TYPO[0], "resources[1].name x.io/y", TYPO[2])
    assert said({"a": shown(TYPO, other), "b": shown(TYPO)})["nodes"]["unmatched"] == 2


def test_an_entry_that_matches_nothing_is_named_by_its_place_for_the_policy_that_has_it() -> None:
    nothing = ("capacity", "[1] type nic", "example.com/x counts no device on this node")
    _, _, message = applied({"a": shown(nothing, sections=("capacity",))})
    assert message.endswith("capacity[1] type nic: example.com/x counts no device on this node")
    other = (*TYPO[:2], "no such resource on this node; offered: nvidia.com/mig-1g.10gb")
    message = applied({"a": shown(other), "b": shown(TYPO), "c": FORCE})[2]
    assert message == f"in effect on 3 nodes; on 2 of them {text(TYPO)}"
    assert applied({"a": shown(TYPO, sections=("partitions",))})[2] == "in effect on 1 nodes"


def test_only_a_few_entries_are_reported_and_an_excluded_id_where_no_node_has_it() -> None:
    notes = [(TYPO[0], TYPO[1].replace("[0]", f"[{number}]"), TYPO[2]) for number in range(20)]
    message = applied({"a": shown(*notes)})[2]
    assert message.count("no such resource on this node") == 3
    assert message.endswith("; and 17 more entries without effect on some nodes")
    assert applied({"a": shown(*notes[:4])})[2].endswith("; and 1 more entry without effect on some nodes")
    assert applied({"a": shown(*notes[:3])})[2].endswith(text(notes[2]))
    other = (*NOPE[:2], "no device on this node has such an id; there are: GPU-1")
    message = applied({"a": shown(NOPE, sections=("resources",)), "b": shown(other, sections=("resources",))})[2]
    assert message == f"in effect on 2 nodes; on 2 of them {text(NOPE)}"
    assert applied({"a": shown(NOPE, sections=("resources",)), "b": FORCE})[2] == "in effect on 2 nodes"


# --- the truth of every section --------------------------------------------------------------------------------------
NOPE = ("resources", "exclude[0] GPU-nope", "no device on this node has such an id; there are: GPU-0")


TAKEN = Hindrance("Conflict: nvidia.com/gpu is served by the device plugin on this node")
HELD = Hindrance("Pending: seats: 3 wanted, 5 kept because pods on the node request it", passing=True)


def hindered(section: str, what: Hindrance, *, supplies: tuple[str, ...] = ("capacity",)) -> NodeOutcome:
    return NodeOutcome(CHOSEN, {"p": PolicyOutcome(supplies, generation=1)}, active=True, hindered={section: what})


def test_a_capacity_that_is_refused_fails_its_policy_and_one_that_waits_is_not_in_effect_yet() -> None:
    status, reason, message = applied({"a": hindered("capacity", TAKEN), "b": FORCE})
    assert (status, reason) == ("False", "Failed")
    assert message == f"1 of 2 nodes: a: capacity: {TAKEN.message}"
    assert said({"a": hindered("capacity", TAKEN)})["nodes"]["failed"] == 1
    status, reason, message = applied({"a": hindered("capacity", HELD), "b": FORCE})
    assert (status, reason) == ("False", "Progressing")
    assert message == f"in effect on 1 of 2 nodes; a: capacity: {HELD.message}"
    assert applied({"a": hindered("capacity", TAKEN, supplies=("sharing",))})[:2] == ("True", "Applied")


@cases(
    ("name", "reason", "section", "passing"),
    ("capacity", "Conflict", "capacity", False),
    ("capacity", "Forbidden", "capacity", False),
    ("capacity", "Pending", "capacity", True),
    ("capacity", "NotWritten", "capacity", True),
    ("labels", "Conflict", "labels", False),
    ("labels", "Forbidden", "labels", False),
    ("taint", "Forbidden", "faults", False),
)
def test_a_nodes_actions_say_which_sections_have_no_effect(name: str, reason: str, section: str, passing: bool) -> None:
    expected = {section: Hindrance(f"{reason}: why", passing=passing)}
    sections = {"capacity": "capacity", "labels": "labels", "taint": "faults"}
    assert hindrances(record(), {name: ("False", reason, "why")}, sections) == expected
    on_object = record(actions=[{"name": name, "reason": reason, "message": "why"}])
    assert hindrances(on_object, {}, sections) == expected
    assert hindrances(on_object, {name: ("True", "InSync", "")}, sections) == {}
    assert hindrances(on_object, {name: None}, sections) == {}


@cases("reason", "Pending", "Refused", "Stopped", "Blocked")
def test_a_policy_whose_evictions_are_held_back_by_its_own_limits_is_in_effect(reason: str) -> None:
    assert hindrances(record(), {"evictions": ("False", reason, "why")}, {"evictions": "faults"}) == {}


@cases(
    "section",
    {"resources": {"exclude": ["GPU-0"]}},
    {"sharing": sharing(2)},
    {"partitions": {"strategy": "mixed"}},
    {"injection": {"deviceIDStrategy": "index"}},
)
def test_each_section_that_says_what_is_served_is_idle_then(section: dict[str, Any]) -> None:
    idle = f"{next(iter(section))}.* has no effect while serving.mode is Observe"
    assert observed(policy("p", serving={"mode": "Observe"}, **section)) == idle


def observed(watching: PolicyRecord) -> str:
    """What the policy says of a node whose agent only observes, by whatever it was told so."""
    configuration = resolve({}, [watching])
    spec = {"config": configuration.config, "configHash": configuration.config_hash}
    found = record(spec=spec, appliedConfigHash=configuration.config_hash, configuration={"serving": "Observe"})
    message = applied({"a": node_outcome({}, {"p": watching}, configuration, found)}, watching)[2]
    return message.removeprefix("in effect on 1 nodes").removeprefix("; on 1 of them ")


def test_a_node_that_observes_by_its_own_flag_or_waits_for_its_turn_says_so() -> None:
    assert observed(policy("p", sharing=sharing(2))) == "sharing.* has no effect while serving.mode is Observe"
    held = replace(WAITING, held=CHOSEN)
    assert applied({"a": held})[2] == "in effect on 0 of 1 nodes; a: it waits for its turn in the roll-out"
    message = applied({"a": held, "b": answered("WaitingForHolders", HOLDERS)})[2]
    assert message == f"in effect on 0 of 2 nodes; b: {HOLDERS}; and 1 more node"


@cases(
    ("faults", "said"),
    ({"evictMode": "Immediate"}, NO_TAINT),
    ({"rules": [{"reasons": ["Xid79"], "evictMode": "AfterGrace"}]}, NO_TAINT),
    ({"evictMode": "Immediate", "taintEffect": "NoSchedule"}, ""),
    ({"taintEffect": "NoSchedule"}, ""),
)
def test_a_policy_that_evicts_without_a_taint_says_what_it_does_not_do_there(faults: dict[str, Any], said: str) -> None:
    assert observed(policy("p", faults={"budget": {"perHour": 9}, **faults})) == said


# --- a roll-out ------------------------------------------------------------------------------------------------------
def rolled_out(**state: Any) -> dict[str, Any]:
    found = policy_status(P, tally(P, {"a": FORCE}), NOW, rollout=RolloutState(**state))
    condition: dict[str, Any] = next(it for it in found["conditions"] if it["type"] == "RolledOut")
    return condition | {"nodes": found["nodes"]}


def test_a_roll_out_says_how_far_it_is() -> None:
    found = rolled_out(waiting=7, under_way=("n1", "n2"), under_way_count=2)
    assert (found["status"], found["reason"]) == ("False", "Progressing")
    assert found["message"] == "7 nodes are waiting, 2 under way (n1, n2)"
    assert found["nodes"]["waiting"] == 7
    assert rolled_out(waiting=7, under_way=("n1", "n2"), under_way_count=5)["message"] == (
        "7 nodes are waiting, 5 under way (n1, n2 and 3 more)"
    )
    assert rolled_out(waiting=7)["message"] == "7 nodes are waiting, 0 under way"


def test_a_roll_out_that_is_over_or_stopped_says_why_and_how_a_person_goes_on() -> None:
    status = policy_status(P, tally(P, {"a": answered("ConfigInvalid", TOO_MANY)}), NOW, rollout=RolloutState())
    found = next(each for each in status["conditions"] if each["type"] == "RolledOut")
    assert (found["status"], found["reason"], found["message"]) == ("False", "Failed", "1 node has failed: see Applied")
    found = rolled_out()
    assert (found["status"], found["reason"], found["message"]) == ("True", "Done", "")
    assert "waiting" not in found["nodes"]
    assert rolled_out(refused="no such generation")["message"] == "no such generation"
    found = rolled_out(waiting=7, worse_off=(("n1", "its Node is not Ready"), ("n2", "x" * 301)), refused="no number")
    assert (found["status"], found["reason"]) == ("False", "Stopped")
    assert found["message"] == (
        f"n1: its Node is not Ready; n2: {'x' * 299}…; 7 nodes are waiting. Change the policy, or continue anyway: "
        "kubectl nodedevices confirm policy/p resumed; no number"
    )


def test_a_paused_policy_says_so_and_how_far_it_is_and_a_dry_run_is_not_rolled_out() -> None:
    paused = policy("p", mode="Paused", sharing=sharing(2))
    new = NodeOutcome(CHOSEN)  # it does not get it
    found = policy_status(paused, tally(paused, {"a": FORCE, "b": new}), NOW, rollout=RolloutState())
    shown = {it["type"]: (it["status"], it["reason"], it["message"]) for it in found["conditions"]}
    kept = "spec.mode is Paused: nodes keep what they have; in effect on 1 of 2 nodes"
    assert shown["RolledOut"] == ("False", "Paused", kept)
    assert shown["Applied"] == ("False", "Progressing", "in effect on 1 of 2 nodes; spec.mode is Paused")
    tried = policy_status(paused, tally(paused, {"a": new, "b": new}), NOW, rollout=RolloutState())  # a DryRun before
    assert "in effect on 0 of 2 nodes" in next(it for it in tried["conditions"] if it["type"] == "RolledOut")["message"]
    trial = policy("p", mode="DryRun", sharing=sharing(2))
    found = policy_status(trial, tally(trial, {}), NOW, rollout=RolloutState(waiting=1))
    assert [it["type"] for it in found["conditions"]] == ["Accepted", "Applied", "Conflicted"]


# --- what is written -------------------------------------------------------------------------------------------------
def test_a_few_older_policies_are_named_and_a_node_counts_for_those_that_select_it() -> None:
    def conflicted(*older: str) -> dict[str, Any]:
        loser = NodeOutcome(CHOSEN, {"p": PolicyOutcome((), ("sharing",), older, generation=1)})
        return next(it for it in said({"a": loser})["conditions"] if it["type"] == "Conflicted")

    rest = ": older, has the same priority and sets the same section differently; give one a higher priority"
    assert conflicted(*"edcba")["message"] == f"a, b, c, d, e{rest}"
    assert conflicted(*"fedcba")["message"] == f"a, b, c, d, e and 1 more{rest}"
    none = conflicted()
    assert (none["status"], none["reason"], none["message"]) == ("False", "NoConflict", "")
    chosen = policy("p", selector={"matchLabels": {"pool": "a"}}, sharing=sharing(2))
    policies = {"p": chosen, "all": P}
    for labels, expected in (({"pool": "a"}, {"p", "all"}), ({"pool": "b"}, {"all"})):
        assert node_outcome(labels, policies, resolve(labels, []), record()).selected == expected


def test_what_is_said_of_another_configuration_is_no_reason_and_one_of_300_characters_is_not_cut() -> None:
    quiet = answered("Applied", "mig-parted has changed it", "True")
    assert applied({"a": quiet})[2] == "in effect on 0 of 1 nodes; a: its agent has not applied it yet"
    exact, longer = (answered("ConfigInvalid", "x" * length) for length in (300, 301))
    assert applied({"a": exact})[2] == f"1 of 1 nodes: a: {'x' * 300}"
    assert applied({"a": longer})[2] == f"1 of 1 nodes: a: {'x' * 299}…"


def test_what_a_dry_run_would_change_is_said_as_far_as_there_is_room_or_that_it_is_nothing() -> None:
    trial = policy("p", mode="DryRun", sharing=sharing(2))
    nodes = {"a": NodeOutcome(CHOSEN, {}, dry_runs={"p": (DryRun(("sharing",)), DryRunEffect("x" * 2000))})}
    message = applied(nodes, trial)[2]
    where = "it would be active on 1 of 1 nodes (kubectl nodedevices policy dry-run counts ids)"
    assert message.startswith(f"{where}; a: xxx")
    assert (len(message), message[-2:]) == (1024, "x…")
    nodes = {"a": NodeOutcome(CHOSEN, {}, dry_runs={"p": (DryRun(("sharing",)), DryRunEffect())})}
    message = applied(nodes, policy("p", mode="DryRun", sharing=sharing(2)))[2]
    assert message == "it would be active on 1 of 1 nodes; no node would change"


@cases("first", True, False)
def test_a_dry_run_that_comes_or_goes_changes_the_counts_where_stronger_policies_supply_everything(first: bool) -> None:
    with_it = replace(BEATEN, dry_runs={"p": (DryRun(("sharing",)), DryRunEffect("would change"))})
    tallies = Tallies()
    for outcome in (with_it, BEATEN) if first else (BEATEN, with_it):
        tallies.put("a", outcome)
    assert tallies.tally(P).would == (() if first else (("a", "would change"),))


def test_a_status_that_is_shown_with_its_record_is_not_written_again() -> None:
    assert policy_status(P, tally(P, {}), NOW, record="ns/fleet")["actionsRecord"] == "ns/fleet"
    assert "actionsRecord" not in said({})
    status = policy_status(P, tally(P, {"a": FORCE}), NOW, stopped=STOPPED, record="ns/fleet")
    assert shows(written(), status)
    assert shows(written(), policy_status(P, tally(P, {"a": FORCE}), "later", stopped=STOPPED, record="ns/fleet"))


STOPPED = ("True", "Stopped", "too many at once")


def written(**more: Any) -> PolicyRecord:
    """The policy as it is read after this status was written."""
    status = policy_status(P, tally(P, {"a": FORCE}), NOW, stopped=STOPPED, record="ns/fleet")
    return policy_record(raw_policy("p", sharing=sharing(2)) | {"status": status | more})


@cases(
    "other",
    {"observedGeneration": 7},
    {"actionsRecord": "ns/other"},
    {"resumeRecord": "ns/other"},
    {"nodes": {"selected": 9}},
    {"conditions": policy_status(P, tally(P, {"a": FORCE}), NOW)["conditions"]},
    {"conditions": policy_status(P, tally(P, {"a": WAITING}), NOW, stopped=STOPPED)["conditions"]},
)
def test_each_difference_of_a_status_is_written(other: dict[str, Any]) -> None:
    status = policy_status(P, tally(P, {"a": FORCE}), NOW, stopped=STOPPED, record="ns/fleet")
    assert not shows(written(**other), status)


# --- a dry run -------------------------------------------------------------------------------------------------------
def test_a_dry_run_counts_its_nodes_and_says_what_would_change() -> None:
    trial = policy("p", mode="DryRun", sharing=sharing(2))
    text = "would change sharing"
    nodes = {
        "a": NodeOutcome(CHOSEN, {}, dry_runs={"p": (DryRun(("sharing",)), DryRunEffect(text))}),
        "b": NodeOutcome(CHOSEN, {}, dry_runs={"p": (DryRun(conflicts=("older",)), DryRunEffect())}),
        "c": NodeOutcome(CHOSEN, {}, dry_runs={"p": (DryRun(("sharing",)), DryRunEffect(text))}),
    }
    status = said(nodes, trial)
    conditions = {it["type"]: it for it in status["conditions"]}
    assert conditions["Accepted"]["status"] == "True"
    assert (conditions["Applied"]["status"], conditions["Applied"]["reason"]) == ("False", "DryRun")
    assert conditions["Applied"]["message"] == (
        "it would be active on 2 of 3 nodes (kubectl nodedevices policy dry-run counts ids); a: would change sharing; "
        "and 1 more node"
    )
    assert conditions["Conflicted"]["status"] == "True"
    assert status["nodes"] == {"selected": 3, "applied": 0, "overridden": 0, "failed": 0}
