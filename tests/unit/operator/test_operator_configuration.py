"""The merge rule: whole sections, higher priority, then older, then by name; last good stays."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, strategies as st
from nodedevices_operator.desired.configuration import MAX_POLICIES, config_hash, resolve
from nodedevices_operator.records.objects import PolicyRecord, PolicyRef
from support.contract import INVALID_SHARING
from support.opfacts import GPU, policy, sharing


def test_the_configuration_is_what_accepted_policies_that_select_the_node_set_and_no_more() -> None:
    found = resolve({}, [])
    assert (found.config, found.status, found.reason) == ({}, "True", "NoPolicy")
    assert resolve({}, [policy("p", faults={})]).config == {"faults": {}}
    chosen = policy("p", selector={"matchLabels": {"pool": "a"}}, health={"holdDownSeconds": 1})
    assert resolve({"pool": "b"}, [chosen]).reason == "NoPolicy"
    assert resolve({"pool": "a"}, [chosen]).reason == "Resolved"
    found = resolve({}, [policy("p", health={"holdDownSeconds": 5}, sharing=INVALID_SHARING)])
    assert (found.config, found.reason) == ({}, "PolicyInvalid")
    assert "Invalid" in found.message


def test_of_equal_priority_the_older_wins_then_the_name_and_a_difference_is_a_conflict() -> None:
    older = policy("z", created="2026-11-21T09:00:00Z", sharing=sharing(2))
    younger = policy("a", created="2026-11-21T10:00:00Z", sharing=sharing(4))
    found = resolve({}, [younger, older])
    assert found.config == {"sharing": sharing(2)}
    assert (found.status, found.reason) == ("False", "Conflict")
    assert found.outcomes["a"].conflicts == ("z",)
    assert found.outcomes["z"].conflicts == ()
    found = resolve({}, [policy("b", sharing=sharing(4)), policy("a", sharing=sharing(2))])
    assert found.config == {"sharing": sharing(2)}
    spelled = {"podCondition": "OnFault", "taintEffect": "None"}
    assert resolve({}, [policy("a", faults={}), policy("b", faults=spelled)]).reason == "Resolved"
    assert resolve({}, [policy("a", 1, sharing=sharing(2)), policy("b", sharing=sharing(4))]).reason == "Resolved"


def test_a_dry_run_takes_no_part_and_says_what_it_would_change() -> None:
    found = resolve({}, [policy("p", mode="DryRun", sharing=sharing(2))])
    assert (found.config, found.reason) == ({}, "NoPolicy")
    faults = {"podCondition": "Always"}
    trial = policy("trial", 5, mode="DryRun", sharing=sharing(2), faults=faults, labels={"featureDiscovery": False})
    there = [policy("a", sharing=sharing(4), faults=faults), policy("b", 9, health={"holdDownSeconds": 1})]
    found = resolve({}, [*there, trial])
    assert found.config == resolve({}, there).config
    assert found.dry_runs["trial"].supplies == ("sharing", "faults", "labels")
    assert found.dry_runs["trial"].changes == ("sharing",)
    assert found.dry_runs["trial"].faults == faults
    elsewhere = policy("trial", mode="DryRun", selector={"matchLabels": {"a": "b"}}, sharing=sharing(2))
    assert resolve({}, [elsewhere]).dry_runs == {}


def test_a_dry_run_says_that_it_would_lose_and_that_it_would_not_fit() -> None:
    weaker = policy("trial", mode="DryRun", created="2026-11-21T11:00:00Z", sharing=sharing(2))
    found = resolve({}, [policy("a", sharing=sharing(4)), weaker]).dry_runs["trial"]
    assert (found.supplies, found.conflicts) == ((), ("a",))
    named = policy("a", resources={"devices": [{"match": {}, "name": "example.com/x"}]})
    same = policy("trial", mode="DryRun", capacity=[{"name": "example.com/x", "perNode": 1}])
    assert "example.com/x" in resolve({}, [named, same]).dry_runs["trial"].misfit


def test_an_edit_or_a_combination_that_is_refused_keeps_what_was_good() -> None:
    before = ({"sharing": sharing(4)}, (PolicyRef("p", 3, 0, ("sharing",)),))
    edited = policy("p", generation=4, sharing=INVALID_SHARING)
    found = resolve({}, [edited], *before)
    assert found.config == {"sharing": sharing(4)}
    assert found.policies == before[1]
    assert found.reason == "PolicyInvalid"
    assert found.message.startswith("policy p is not accepted (")
    assert "), generation 3 stays in effect; " in found.message
    before = ({"sharing": sharing(4)}, (PolicyRef("a", 1, 0, ("sharing",)),))
    both = [policy("a", sharing=sharing(4)), policy("b", capacity=[{"name": GPU, "perNode": 1}])]
    found = resolve({}, both, *before)
    assert (found.config, found.policies, found.reason) == (before[0], before[1], "PolicyInvalid")
    assert all(outcome.failed for outcome in found.outcomes.values())


def test_the_hash_covers_the_configuration_in_any_order_and_long_lists_keep_those_that_supply() -> None:
    assert config_hash({"a": 1, "b": 2}, "") == config_hash({"b": 2, "a": 1}, "")
    assert len({config_hash({}, ""), config_hash({}, "x"), config_hash({"health": {}}, "")}) == 3
    many = [policy(f"p{index:03}", 100 - index, health={"holdDownSeconds": index}) for index in range(60)]
    found = resolve({}, [*many, policy("last", -100, sharing=sharing(2))])
    assert len(found.policies) == MAX_POLICIES
    assert {ref.name for ref in found.policies if ref.sections} == {"p000", "last"}


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "sharing": st.sampled_from([{}, sharing(2), sharing(4), INVALID_SHARING]),
        "health": st.builds(lambda n: {"holdDownSeconds": n}, st.integers(0, 2)),
        "faults": st.sampled_from([{}, {"taintEffect": "NoSchedule"}, {"podCondition": "Never"}]),
        "capacity": st.sampled_from([[], [{"name": "example.com/x", "perNode": 1}]]),
    },
).filter(bool)


@st.composite
def fleets(draw: st.DrawFn) -> list[PolicyRecord]:
    count = draw(st.integers(0, 6))
    return [
        policy(
            f"p{index}",
            draw(st.integers(-1, 1)),
            created=f"2026-11-21T1{draw(st.integers(0, 2))}:00:00Z",
            **draw(SECTIONS),
        )
        for index in range(count)
    ]


@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_in_which_policies_come_does_not_matter(policies: list[PolicyRecord], source: random.Random) -> None:
    shuffled = list(policies)
    source.shuffle(shuffled)
    assert resolve({}, policies) == resolve({}, shuffled)


@given(fleets())
def test_every_section_is_that_of_the_strongest_accepted_policy_that_sets_it(policies: list[PolicyRecord]) -> None:
    found = resolve({}, policies)
    ranked = sorted((it for it in policies if it.spec is not None), key=lambda it: (-it.priority, it.created, it.name))
    expected: dict[str, Any] = {}
    for it in ranked:
        assert it.spec is not None
        for name in ("sharing", "health", "faults", "capacity"):
            if getattr(it.spec, name) is not None:
                expected.setdefault(name, it.name)
    assert {section: ref.name for ref in found.policies for section in ref.sections} == expected
    assert set(found.config) == set(expected)


@given(fleets())
def test_resolving_what_was_resolved_changes_nothing(policies: list[PolicyRecord]) -> None:
    first = resolve({}, policies)
    assert resolve({}, policies, first.config, first.policies) == first


# --- paused -----------------------------------------------------------------------------------------------------------
def had(**sections: Any) -> tuple[dict[str, Any], tuple[PolicyRef, ...]]:
    """The node has these of policy p, of its generation 1."""
    return sections, (PolicyRef("p", 1, 0, tuple(sections)),)


def test_a_node_that_has_a_paused_policy_keeps_it_and_no_other_gets_it() -> None:
    now = policy("p", generation=3, mode="Paused", sharing=sharing(4), faults={"podCondition": "Always"})
    found = resolve({}, [now], *had(sharing=sharing(2), faults={"podCondition": "Never"}))
    assert found.config == {"sharing": sharing(2), "faults": {"podCondition": "Never"}}
    assert [(ref.generation, ref.sections) for ref in found.policies] == [(1, ("sharing", "faults"))]
    found = resolve({}, [policy("p", mode="Paused", sharing=sharing(4))])
    assert (found.config, found.policies) == ({}, ())
    now = policy("p", generation=2, mode="Paused", selector={"matchLabels": {"pool": "a"}}, sharing=sharing(2))
    assert resolve({"pool": "b"}, [now], *had(sharing=sharing(2))).config == {"sharing": sharing(2)}
    paused = policy("p", generation=2, mode="Paused", sharing=sharing(2))
    found = resolve({}, [paused, policy("strong", 5, sharing=sharing(8))], *had(sharing=sharing(2)))
    assert found.config == {"sharing": sharing(8)}


def test_of_a_dry_run_that_is_paused_no_node_has_anything_and_none_gets_it_before_enforce() -> None:
    for mode, config in (("DryRun", {}), ("Paused", {}), ("Enforce", {"sharing": sharing(2)})):
        found = resolve({}, [policy("p", generation=2, mode=mode, sharing=sharing(2))])
        assert found.config == config, mode


def test_a_node_that_has_all_of_a_paused_policy_counts_as_having_it() -> None:
    now = policy("p", generation=2, mode="Paused", sharing=sharing(2))
    assert [ref.generation for ref in resolve({}, [now], *had(sharing=sharing(2))).policies] == [2]
    more = policy("p", generation=2, mode="Paused", sharing=sharing(2), health={"holdDownSeconds": 1})
    assert [ref.generation for ref in resolve({}, [more], *had(sharing=sharing(2))).policies] == [1]
    fewer = policy("p", generation=2, mode="Paused", health={"holdDownSeconds": 1})
    before = had(sharing=sharing(2), health={"holdDownSeconds": 1})
    assert [ref.generation for ref in resolve({}, [fewer], *before).policies] == [1]
