"""What a chaos run does next follows from its seed and its plan alone."""

from __future__ import annotations

import yaml
from chaos import machines, model
from chaos.decide import SETTLE_EVERY, decide, sequence
from chaos.model import (
    Action,
    CreatePod,
    Cure,
    Cut,
    DeletePod,
    FillDisk,
    Kill,
    Plan,
    SetPolicy,
    Settle,
    SpoilState,
    Strike,
    after,
)
from support.cases import cases

LONG = 3000
BY_API = (CreatePod, DeletePod, SetPolicy, model.Cordon)


def plans(seed: int, steps: int = LONG) -> list[tuple[Plan, Action]]:
    """Each plan, and what is done on it."""
    found, plan = [], Plan()
    for step in sequence(seed, steps):
        found.append((plan, step.action))
        plan = after(plan, step.action)
    return found


def test_a_seed_gives_the_same_steps_and_more_of_them_begin_alike() -> None:
    assert sequence(7, 200) == sequence(7, 200)
    assert sequence(7, 200) != sequence(8, 200)
    assert sequence(7, 200)[:50] == sequence(7, 50)
    steps = sequence(3, 5 * SETTLE_EVERY)
    assert [n for n, step in enumerate(steps, 1) if step.action == Settle()] == [SETTLE_EVERY * n for n in range(1, 6)]


def test_a_long_run_has_done_and_chosen_everything_that_there_is() -> None:
    done = {type(action) for _, action in plans(1)}
    assert done == set(Action.__subclasses__())
    actions = [action for _, action in plans(1)]
    chosen = {(each.section, each.choice) for each in actions if isinstance(each, SetPolicy) and each.choice}
    assert chosen == {(section, choice) for section, choices in machines.SECTIONS.items() for choice in choices}
    struck = {each.kind for each in actions if isinstance(each, Strike)}
    assert struck == {kind for kinds in machines.FAULTS.values() for kind in kinds}
    assert {each.part for each in actions if isinstance(each, Kill)} == {"agent", "operator", "extender", "probe"}


def test_pods_of_a_long_run_request_every_kind_of_resource_in_every_kind_of_container() -> None:
    parts = [part for _, action in plans(1) if isinstance(action, CreatePod) for part in action.parts]
    requested = {resource for part in parts for resource, _ in part.limits}
    kinds = {value for name, value in vars(machines).items() if name.isupper() and isinstance(value, str)}
    assert requested >= {each for each in kinds if "/" in each and not each.startswith("/")} | set(machines.MIG)
    assert {part.kind for part in parts} == {"main", "init", "sidecar"}


def test_claims_are_of_their_own_and_of_others_on_nodes_of_either_api_and_beside_the_plugins_devices() -> None:
    made = [(plan, action) for plan, action in plans(1) if isinstance(action, CreatePod) and action.claim]
    assert {plan.nodes[pod.node].chosen.get("serving", "") for plan, pod in made} == {"", "dra"}
    assert {pod.claim.name in plan.claims for plan, pod in made if pod.claim} == {True, False}
    assert {pod.claim.amount[0] for _, pod in made if pod.claim} == {"", "memory", "shares"}
    users = [part for _, pod in made for part in pod.parts if part.claims]
    assert {part.kind for part in users} == {"main", "init", "sidecar"}
    assert {bool(part.limits) for part in users} == {True, False}
    assert all(any(part.claims for part in pod.parts) for _, pod in made)


def test_a_calm_run_kills_nothing_and_takes_nothing_away() -> None:
    plan, kinds = Plan(), set()
    for number in range(1, LONG):
        action = decide(5, number, plan, calm=True).action
        kinds.add(type(action))
        plan = after(plan, action)
    assert kinds == {*BY_API, Strike, Cure, Cut, Settle}


@cases("node", *machines.NODES)
def test_what_is_struck_and_cut_is_in_the_devices_file_until_it_is_cured(node: str) -> None:
    plan = Plan()
    for action in (Strike(node, 0, "lost", "e-1"), Strike(node, 3, "xid79", "e-2"), Cut(node, 2, "two-large")):
        plan = after(plan, action)
    text = yaml.safe_load(hardware(plan, node))
    assert [each["index"] for each in text["devices"]] == [0, 2, 3]
    assert text["events"] == [{"id": "e-2", "device": 3, "xid": 79}]
    for back in (Cure(node, 0), Cure(node, 3), Cut(node, 2, "")):
        plan = after(plan, back)
    assert yaml.safe_load(hardware(plan, node)) == {"profile": machines.PROFILES[node]}


def hardware(plan: Plan, node: str) -> str:
    here = plan.nodes[node]
    return machines.hardware(node, [(index, *each) for index, each in here.faults.items()], here.cut)


def test_an_absent_device_may_be_forgotten_only_with_the_state_file_or_before_it_is_seen() -> None:
    absent = after(Plan(), Strike("n1", 1, "absent", "e"))
    assert after(absent, Kill("agent", "n1")).nodes["n1"].forgotten == frozenset()
    assert after(absent, SpoilState("n1", "torn")).nodes["n1"].forgotten == {1}
    full = after(after(absent, FillDisk("n1")), Kill("agent", "n1"))
    assert full.nodes["n1"].forgotten == {1}
    assert after(after(full, Cure("n1", 1)), Settle()).nodes["n1"].forgotten == frozenset()
    spoiled = after(Plan(), SpoilState("n1", "torn"))
    assert after(spoiled, Strike("n1", 4, "absent", "e")).nodes["n1"].forgotten == {4}
    assert after(spoiled, Strike("n1", 1, "xid79", "e")).nodes["n1"].forgotten == frozenset()
    assert after(spoiled, Strike("n2", 4, "absent", "e")).nodes["n2"].forgotten == frozenset()
    assert after(after(spoiled, Settle()), Strike("n1", 4, "absent", "e")).nodes["n1"].forgotten == frozenset()


def test_a_node_whose_state_file_was_lost_has_forgotten_partitions_for_good() -> None:
    spoiled = after(Plan(), SpoilState("n1", "lost"))
    assert after(after(spoiled, Settle()), Cure("n1", 1)).nodes["n1"].has_forgotten
    assert not spoiled.nodes["n2"].has_forgotten
    assert not after(Plan(), Kill("agent", "n1")).nodes["n1"].has_forgotten
