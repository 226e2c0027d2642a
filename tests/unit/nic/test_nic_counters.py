"""Error counters of a NIC, from a probe's lines to what pods are offered: each row of the table at its own limit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nodedevices_plugin.health.reasons import known
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import CounterLimit
from nodedevices_plugin.vendors.nic.faults import HOUR, LIMITS
from nodedevices_probe.nic import CARRIER_DOWN_COUNT
from nodedevices_probe.nic.rdma import COUNTERS
from nodedevices_probe.protocol import DeviceFact, Readings
from support.cases import cases
from support.facts import REGISTERED
from support.nics import function, hca, port, vf
from support.stepped_node import Node

PAGE = Path(__file__).parents[3] / "docs" / "devices" / "rdma.md"
ROW = re.compile(
    r"\| (?P<reasons>`[^|]*) \| (?P<state>\w+) \| (?P<counters>[^|]*) rose (?:by more than (?P<limit>[\d,]+) )?"
    r"(?:with)?in (?P<window>3 hours|10 minutes|an hour|a minute|every minute)(?P<lasting>, for 5 minutes)?[^|]*\|"
)
SECONDS = {"3 hours": 10_800, "10 minutes": 600, "an hour": 3600, "a minute": 60, "every minute": 60}
BITS = {  # of InfiniBand's PortCounters
    "localLinkIntegrityErrors": 4,
    "excessiveBufferOverrunErrors": 4,
    "linkDowned": 8,
    "linkErrorRecovery": 8,
    "symbolError": 16,
    "portRcvErrors": 16,
    "portXmitDiscards": 16,
}
OFFERED = {"resources": {"devices": [{"match": {"type": "nic"}, "name": "example.com/nic"}]}}
WELL = ("Healthy", "")
LINE_SECONDS, HOLD_SECONDS = 5.0, 300.0


def counting(device: DeviceFact, **counters: int) -> DeviceFact:
    return replace(device, readings=Readings(counters=counters))


class Counted(Node):
    """A node that offers its NICs, of which the first one counts errors."""

    def __init__(self, *, offers: bool = True) -> None:
        super().__init__(hca(0), hca(1))
        self.now(OFFERED if offers else {})

    def lasts(self, seconds: float, **counters: int) -> Counted:
        after = LINE_SECONDS if seconds < 60 else 3 * LINE_SECONDS if seconds < 600 else 12 * LINE_SECONDS
        for _ in range(round(seconds / after)):
            self.line(counting(hca(0), **counters), hca(1), after=after)
        return self

    def rises(self, limit: CounterLimit, by: int) -> Counted:
        """The counter rises by so many in each of its windows, for as long as the row says."""
        value = 3
        self.lasts(LINE_SECONDS, **{limit.counter: value})
        for _ in range(round(limit.for_seconds / limit.window_seconds) + 1):
            value += by
            self.lasts(min(limit.window_seconds, 60.0), **{limit.counter: value})
        return self

    @property
    def faults(self) -> set[str]:
        return {each.reason for each in self.world.known.verdicts[port(0)].faults}


def test_a_counter_above_its_limit_is_a_fault_of_this_nic_alone_and_none_where_nothing_is_counted() -> None:
    for limit in LIMITS:
        which = f"{limit.reason} by {limit.counter}"
        assert limit.reason not in Counted().rises(limit, limit.limit).faults, which
        node = Counted().rises(limit, limit.limit + 1)
        assert limit.reason in node.faults, which
        assert (node.states[port(0)][0], node.states[port(1)]) == (limit.state.value, WELL), which
        assert (port(0) in node.offers["example.com/nic"]) == (limit.state is HealthState.DEGRADED), which
    old = {limit.counter: limit.most or 10**6 for limit in LIMITS}
    assert Counted().lasts(60, **old).states == {port(0): WELL, port(1): WELL}


@cases("state", HealthState.UNHEALTHY, HealthState.DEGRADED)
def test_it_is_degraded_where_nobody_offers_the_nic_and_a_rule_for_its_reason_ends_it(state: HealthState) -> None:
    limit = next(each for each in LIMITS if each.state is state)
    node = Counted(offers=False).rises(limit, limit.limit + 1)
    assert limit.reason in node.faults
    assert node.states[port(0)][0] == "Degraded"
    ruled = Counted()
    ruled.now({**OFFERED, "health": {"rules": [{"reasons": [limit.reason], "state": "Ignored"}]}})
    ruled.rises(limit, limit.limit + 1)
    assert (limit.reason in ruled.faults, ruled.world.config.unmatched) == (False, ())


def test_a_rule_may_name_each_and_a_counter_stops_where_infiniband_gives_it_no_more_bits() -> None:
    assert {each.reason for each in LIMITS} <= set(known(REGISTERED))
    assert {each.counter for each in LIMITS} <= {CARRIER_DOWN_COUNT, *COUNTERS}  # those that the probe reports
    assert {each.counter: each.most for each in LIMITS if each.most} == {
        counter: 2**bits - 1 for counter, bits in BITS.items()
    }


def words(text: str) -> list[str]:
    """Those of a cell of the page, the kernel's names of counters as ours."""
    return [re.sub(r"_(\w)", lambda it: it[1].upper(), each) for each in re.findall(r"`(\w+)`", text)]


def test_the_limits_are_those_of_the_page() -> None:
    said = {
        (reason, counter): (
            row["state"],
            int((row["limit"] or "0").replace(",", "")),
            SECONDS[row["window"]],
            300 if row["lasting"] else 0,
        )
        for row in ROW.finditer(PAGE.read_text())
        for reason in words(row["reasons"])
        for counter in words(row["counters"])
    }
    ours = {
        (each.reason, each.counter): (each.state.value, each.limit, each.window_seconds, each.for_seconds)
        for each in LIMITS
    }
    assert {key: said.get(key) for key in ours} == ours
    assert {counter for _, counter in said} == {counter for _, counter in ours}


def test_only_what_a_person_can_find_at_the_card_or_its_cable_is_to_be_inspected() -> None:
    assert {each.reason for each in LIMITS if each.action == "Inspect"} == {
        "LinkFlapping",
        "LinkIntegrityErrors",
        "BufferOverruns",
        "SymbolErrors",
        "LinkErrorRecovery",
        "PortReceiveErrors",
    }
    assert {each.action for each in LIMITS} == {"Inspect", "None"}


def test_a_flapping_link_takes_the_nic_out_of_service_and_a_quiet_one_brings_it_back() -> None:
    node = Counted()
    both = [port(0), port(1)]
    for downs in range(3):
        node.lasts(600, linkDowned=downs)
    assert (node.states[port(0)], node.offers["example.com/nic"]) == (("Degraded", "LinkWasDown"), both)
    node.lasts(5, linkDowned=3)
    verdict = node.world.known.verdicts[port(0)]
    assert (node.states[port(0)], verdict.recovery_action) == (("Unhealthy", "LinkFlapping"), "Inspect")
    assert node.offers["example.com/nic"] == [port(1)]
    node.lasts(2.7 * HOUR + HOLD_SECONDS, linkDowned=3)
    assert (node.states[port(0)], node.offers["example.com/nic"]) == (WELL, both)


def test_counters_cleared_after_a_repair_end_the_fault_and_a_restart_keeps_it() -> None:
    node = Counted().lasts(5, localLinkIntegrityErrors=0).lasts(5, localLinkIntegrityErrors=15)
    assert node.states[port(0)] == ("Unhealthy", "LinkIntegrityErrors")
    node.lasts(HOUR, localLinkIntegrityErrors=15)
    assert node.states[port(0)] == ("Unhealthy", "LinkIntegrityErrors"), "it stopped at 15 and may have gone on"
    node.lasts(HOLD_SECONDS + 15, localLinkIntegrityErrors=0)
    assert node.states[port(0)] == WELL
    node = Counted().lasts(5, symbolError=0).lasts(5, symbolError=500)
    node.restarts().lasts(5, symbolError=60_000)
    assert node.states == {port(0): ("Degraded", "SymbolErrors"), port(1): WELL}
    node.lasts(HOUR + HOLD_SECONDS + 15, symbolError=60_000)
    assert node.states[port(0)] == WELL


def test_the_functions_of_a_port_with_errors_stay_as_they_are() -> None:
    """A virtual function has counters of its own connections alone."""
    node = Node(hca(0), vf(0), vf(1))
    rules = {"resources": {"devices": [{"match": {"type": "vf"}, "name": "example.com/vf"}]}}
    node.now(rules)
    for errors in (0, 9):
        node.line(counting(hca(0), excessiveBufferOverrunErrors=errors), vf(0), vf(1))
    assert node.states == {port(0): ("Degraded", "BufferOverruns"), function(0): WELL, function(1): WELL}
