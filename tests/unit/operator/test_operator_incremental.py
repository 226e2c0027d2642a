"""What is kept between two decisions changes none of them: the survey of the fleet and the policies' counts equal those
that visit every node, whatever has changed in between and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import given, strategies as st
from msgspec.structs import replace
from nodedevices_operator.cache.store import Cache
from nodedevices_operator.desired.configuration import DryRun, PolicyOutcome
from nodedevices_operator.desired.dry_run import DryRunEffect
from nodedevices_operator.desired.fleet import Arrivals, Survey, arrivals
from nodedevices_operator.desired.policy_status import SILENT, TURN, Hindrance, NodeOutcome, Tally, policy_status
from nodedevices_operator.desired.pools import Reacting, survey
from nodedevices_operator.reconcile.policy import Tallies
from nodedevices_operator.reconcile.surveyor import Surveyor
from nodedevices_operator.records.kinds import Kind, node_devices_record, node_record, policy_record
from nodedevices_operator.records.objects import Note, PolicyRecord
from support.opfacts import NOW, device, node_devices, policy, raw_node, raw_policy, sharing

NODES, POLICIES, POOLS = ("a", "b", "c", "d"), ("p", "q", "r"), ("x", "y")
STATES = (("Healthy", ""), ("Unhealthy", "XidCritical"), ("Unhealthy", "Correlating"), ("Unknown", "NotReporting"))


# --- the survey ------------------------------------------------------------------------------------------------------
SELECTORS: list[dict[str, Any]] = [
    {},
    *({"matchLabels": {"pool": pool}} for pool in POOLS),
    {"matchLabels": {"pool": "x", "zone": "1"}},
    {"matchExpressions": [{"key": "pool", "operator": "In", "values": list(POOLS)}]},
    {"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["x"]}]},
    {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
]
LABELS = st.fixed_dictionaries({}, optional={"pool": st.sampled_from(POOLS), "zone": st.just("1")})
SECTIONS = st.sampled_from(
    [{}, {"taintEffect": "NoSchedule"}, {"budget": {"maxUnavailable": "50%"}}, {"budget": "of a newer version"}]
)
REPORTS = st.tuples(
    st.just("report"),
    st.sampled_from(NODES),
    st.lists(st.sampled_from(STATES), max_size=2),
    st.none() | st.tuples(st.sampled_from(POLICIES), st.integers(1, 3), SECTIONS),
)
KUBELETS = st.tuples(st.just("node"), st.sampled_from(NODES), LABELS, st.sampled_from(("True", "False")), st.booleans())
AUTHORS = st.tuples(
    st.just("policy"),
    st.sampled_from(POLICIES),
    st.integers(0, 2),
    st.sampled_from(SELECTORS),
    st.sampled_from(("Enforce", "DryRun")),
    st.booleans(),
)
ENDS = st.tuples(st.just("end"), st.sampled_from([*Kind]), st.sampled_from([*NODES, *POLICIES]))


class Cluster:
    """A cache, and what a cluster tells it; every change is newer than all before."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.version = 0

    def report(self, name: str, states: list[tuple[str, str]], source: tuple[str, int, Any] | None) -> None:
        spec: dict[str, Any] = {}
        if source is not None:
            ref = {"name": source[0], "generation": source[1], "priority": 0, "sections": ["faults"]}
            spec = {"config": {"faults": source[2]}, "policies": [ref]}
        devices = [device(index, *state) for index, state in enumerate(states)]
        raw = node_devices(*devices, spec=spec, heartbeat=f"h{self.version}")
        self.cache.observe(Kind.NODE_DEVICES, node_devices_record(self._next(raw, name)))

    def node(self, name: str, labels: dict[str, str], ready: str, cordoned: bool) -> None:
        raw = raw_node(labels=labels, ready=ready, spec={"unschedulable": True} if cordoned else {})
        self.cache.observe(Kind.NODE, node_record(self._next(raw, name)))

    def policy(self, name: str, priority: int, selector: dict[str, Any], mode: str, reacts: bool) -> None:
        sections: dict[str, Any] = {"faults": {}} if reacts else {"health": {}}
        raw = raw_policy(name, priority, selector=selector, mode=mode, generation=self.version, **sections)
        self.cache.observe(Kind.POLICY, policy_record(self._next(raw, name)))

    def end(self, kind: Kind, name: str) -> None:
        known = self.cache.records(kind).get(name)
        if known is not None:
            self.cache.remove(kind, name, known.uid)

    def _next(self, raw: dict[str, Any], name: str) -> dict[str, Any]:
        self.version += 1
        return raw | {"metadata": raw["metadata"] | {"name": name, "resourceVersion": str(self.version)}}


def visited(cache: Cache) -> Survey:
    return survey(cache.node_devices, cache.nodes, cache.policies.values())


@given(st.lists(st.tuples(REPORTS | KUBELETS | AUTHORS | ENDS, st.booleans()), max_size=25))
def test_the_survey_that_is_kept_is_that_of_all_nodes(changes: list[tuple[tuple[Any, ...], bool]]) -> None:
    cluster = Cluster()
    surveyor = Surveyor(cluster.cache)
    for (what, *how), looked_at in changes:
        getattr(cluster, what)(*how)
        if looked_at:
            assert surveyor.survey() == visited(cluster.cache)
    assert surveyor.survey() == visited(cluster.cache)


@given(st.lists(st.tuples(st.sampled_from(SELECTORS), st.integers(0, 2)), max_size=6), LABELS)
def test_the_policy_that_is_to_come_is_the_strongest_that_selects_the_node(
    given: list[tuple[dict[str, Any], int]], labels: dict[str, str]
) -> None:
    policies = [policy(f"p{at}", rank, selector=it, faults={}) for at, (it, rank) in enumerate(given)]
    ranked = sorted(policies, key=lambda each: (-each.priority, each.name))
    assert Reacting(policies).first(labels) == next((each.name for each in ranked if each.selects(labels)), "")


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(NODES), st.dictionaries(st.sampled_from("ij"), st.sampled_from("12")), max_size=3
        ),
        max_size=6,
    )
)
def test_when_a_fault_was_first_seen_is_kept_as_long_as_it_is_there(looks: list[dict[str, dict[str, str]]]) -> None:
    kept: Arrivals | None = None
    plain: dict[tuple[str, str, str], float | None] | None = None
    for at, faults in enumerate(looks):
        kept = arrivals(kept, faults, at)
        present = {(node, id_, since) for node, its in faults.items() for id_, since in its.items()}
        plain = dict.fromkeys(present) if plain is None else {key: plain.get(key, at) for key in present}
        assert {(node, *key): when for node, its in kept.items() for key, when in its.items()} == plain


@dataclass(frozen=True, slots=True)
class Asked(PolicyRecord):
    """A policy that notes which nodes it was asked about."""

    pools: ClassVar[list[str]] = []

    def selects(self, labels: Mapping[str, str]) -> bool:
        self.pools.append(labels["pool"])
        return PolicyRecord.selects(self, labels)


def test_a_fault_on_one_node_visits_that_node_alone() -> None:
    cluster = Cluster()
    Asked.pools.clear()
    made = policy("p", selector={"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, faults={})
    cluster.cache.observe(Kind.POLICY, Asked(**{name: getattr(made, name) for name in PolicyRecord.__slots__}))
    for name in NODES:
        cluster.node(name, {"pool": name}, "True", False)
        cluster.report(name, [STATES[0]], None)
    surveyor = Surveyor(cluster.cache)
    surveyor.survey()
    assert sorted(Asked.pools) == [*NODES]
    cluster.report("b", [STATES[1]], None)
    for name in "acd":
        cluster.report(name, [STATES[0]], None)  # a heartbeat
    assert set(surveyor.survey().faults) == {"b"}
    assert Asked.pools[len(NODES) :] == ["b"]


async def test_what_was_read_some_at_a_time_is_not_read_again() -> None:
    cluster = Cluster()
    for name in NODES:
        cluster.node(name, {"pool": "x"}, "True", False)
        cluster.report(name, [STATES[1]], None)
    surveyor = Surveyor(cluster.cache)
    await surveyor.catch_up()
    first = surveyor.survey()
    assert first == visited(cluster.cache)
    await surveyor.catch_up()
    assert surveyor.survey() is first


# --- the counts ------------------------------------------------------------------------------------------------------
NOTES = [Note("sharing", "devices[9]", "sharing.devices[9] matches nothing"), Note("sharing", "exclude[x]", "x")]
OUTCOMES = st.builds(
    PolicyOutcome,
    supplies=st.sampled_from(((), ("sharing",), ("faults", "sharing"))),
    overridden=st.sampled_from(((), ("health",))),
    conflicts=st.sampled_from(((), ("older",), ("oldest",))),
    failed=st.booleans(),
    generation=st.integers(1, 2),
)
TRIALS = st.tuples(
    st.builds(DryRun, supplies=st.sampled_from(((), ("faults",))), faults=st.none() | st.just({})),
    st.builds(DryRunEffect, changes=st.sampled_from(("", "sharing would change"))),
)
NODE_OUTCOMES = st.builds(
    NodeOutcome,
    selected=st.frozensets(st.sampled_from(POLICIES)),
    outcomes=st.none() | st.dictionaries(st.sampled_from(POLICIES), OUTCOMES),
    active=st.booleans(),
    failure=st.sampled_from(("", "", "too many")),
    refused_section=st.sampled_from(("", "sharing", "health")),
    waiting=st.sampled_from(("", "a pod holds GPU-0")),
    held=st.frozensets(st.sampled_from(POLICIES), max_size=1),
    unmatched=st.lists(st.sampled_from(NOTES), max_size=2, unique=True).map(tuple),
    dry_runs=st.dictionaries(st.sampled_from(POLICIES), TRIALS, max_size=1),
    hindered=st.dictionaries(st.just("sharing"), st.builds(Hindrance, st.just("refused"), st.booleans()), max_size=1),
)


@dataclass
class Plain:
    """The counts as they are meant: all nodes visited, for one policy."""

    policy: str
    generation: int
    nodes: Mapping[str, NodeOutcome]
    notes: list[Note] = field(default_factory=list)

    def tally(self) -> Tally:
        counts, older = Counter[str](), set[str]()
        failing, waiting, would = [], [], []
        for node, outcome in sorted(self.nodes.items()):
            mine = (outcome.outcomes or {}).get(self.policy)
            if self.policy not in outcome.selected and mine is None:
                continue
            counts["selected"] += 1
            if (tried := outcome.dry_runs.get(self.policy)) is not None:
                counts["would_supply"] += bool(tried[0].supplies)
                older |= set(tried[0].conflicts)
                would += [(node, tried[1].changes)] if tried[1].changes else []
            if mine is None:
                continue
            counts["overridden"] += bool(mine.overridden)
            older |= set(mine.conflicts)
            if why := outcome.failed(mine):
                failing.append((node, why))
            elif not mine.supplies:
                counts["silent"] += 1
            elif mine.generation != self.generation:
                counts["outdated"] += 1
            elif why := (TURN if self.policy in outcome.held else "") or outcome.delayed(mine):
                waiting.append((why in {SILENT, TURN}, node, why))
            else:
                counts["applied"] += 1
                self.notes += [note for note in outcome.unmatched if note.section in mine.supplies]
        return Tally(
            **{name: counts[name] for name in ("selected", "applied", "overridden", "silent", "outdated")},
            failed=len(failing),
            older=frozenset(older),
            failing=tuple(failing),
            waiting=tuple((node, why) for _, node, why in sorted(waiting)),
            unmatched=self._unmatched(counts["applied"]),
            would_supply=counts["would_supply"],
            would=tuple(would),
        )

    def _unmatched(self, applied: int) -> tuple[tuple[str, int], ...]:
        numbers = [(note, self.notes.count(note)) for note in set(self.notes)]
        shown = [(note.text, n) for note, n in numbers if n == applied or not note.entry.startswith("exclude[")]
        return tuple(sorted(shown, key=lambda each: (-each[1], each[0])))


@given(st.lists(st.tuples(st.sampled_from(NODES), st.none() | NODE_OUTCOMES), max_size=20))
def test_running_sums_are_those_of_all_nodes(changes: list[tuple[str, NodeOutcome | None]]) -> None:
    tallies, nodes = Tallies(), dict[str, NodeOutcome]()
    for node, outcome in changes:
        before = {name: tallies.tally(policy(name)) for name in POLICIES}
        changed = tallies.put(node, outcome)
        nodes = {name: it for name, it in nodes.items() if name != node} | ({} if outcome is None else {node: outcome})
        for name in POLICIES:
            for generation in (1, 2):
                now = tallies.tally(policy(name, generation=generation))
                assert now == Plain(name, generation, nodes).tally()
            assert name in changed or tallies.tally(policy(name)) == before[name]


def test_a_node_concerns_only_policies_for_which_it_means_something_else() -> None:
    """One of 200 policies that select all nodes supplies a section; the others' counts say nothing of this node."""
    silent = {f"p{rank}": PolicyOutcome((), ("sharing",), generation=1) for rank in range(200)}
    its = NodeOutcome(frozenset(silent) | {"p"}, silent | {"p": PolicyOutcome(("sharing",), generation=1)})
    tallies = Tallies()
    assert tallies.put("a", its) == {"p", *silent}
    assert tallies.put("a", replace(its, active=True)) == {"p"}


def test_a_policy_of_which_no_node_knows_is_forgotten() -> None:
    tallies, about = Tallies(), policy("p", sharing=sharing(2))
    tallies.put("a", NodeOutcome(frozenset({"p"}), {"p": PolicyOutcome(("sharing",), generation=1)}))
    assert tallies.put("a", None) == {"p"}
    assert policy_status(about, tallies.tally(about), NOW)["nodes"]["selected"] == 0
