"""What a result comes to, and how it is shown: values in, text out."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace
from nodedevices_plugin.check.reading import NO_HOLDERS, Reading
from nodedevices_plugin.check.result import FORMS, MOST_SUMMARY, Finding, Result, Status, conclude, shown, summary
from nodedevices_plugin.model import HealthState, Verdict
from nodedevices_plugin.status.facts import ProbeFacts
from support.cases import cases
from support.facts import gpu, inventory_of
from support.reports import node_facts

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def finding(what: str = "gpu-0 Xid79", status: Status = Status.CRITICAL) -> Finding:
    return Finding(status=status, what=what, message=what)


def result(*findings: Finding) -> Result:
    return Result(node="node-a", time=NOW, findings=findings)


def checked(state: HealthState, *, offered: bool = True, product: str = "NVIDIA L4", message: str = "m") -> Result:
    device = gpu(0, product_name=product)
    inventory = inventory_of(device)
    verdict = Verdict(state=state, reason="Xid48", message=message, since=NOW, offered=offered)
    facts = node_facts(
        inventory=inventory,
        verdicts={device.id: verdict},
        plan=None,
        holdings=NO_HOLDERS,
        started=NOW,
        probes=(ProbeFacts(name="nvml", inventory=inventory),),
        now=NOW,
    )
    return conclude(Reading(facts=facts), chosen=(), problems=(), node="node-a", time=NOW)


@cases(
    ("found", "status"),
    ([], Status.OK),
    ([Status.WARNING], Status.WARNING),
    ([Status.WARNING, Status.UNKNOWN], Status.UNKNOWN),
    ([Status.UNKNOWN, Status.CRITICAL, Status.WARNING], Status.CRITICAL),
)
def test_critical_outweighs_unknown_and_unknown_a_warning(found: list[Status], status: Status) -> None:
    assert result(*(finding(status=each) for each in found)).status is status


def test_a_device_whose_fault_is_undecided_is_unknown() -> None:
    assert checked(HealthState.DEGRADED, offered=False).status is Status.UNKNOWN
    assert checked(HealthState.DEGRADED, offered=True).status is Status.WARNING


def test_the_summary_names_as_many_findings_as_there_is_room_for_and_cuts_long_ones() -> None:
    many = result(*(finding(f"gpu-{index} FallenOffBus") for index in range(8)))
    assert summary(many) == "DEVICES CRITICAL - gpu-0 FallenOffBus, gpu-1 FallenOffBus and 6 more"
    text = summary(result(finding("x" * 200)))
    assert (len(text), text.isascii(), text[-3:]) == (MOST_SUMMARY, True, "...")


@cases("form", *FORMS)
def test_what_a_device_says_moves_no_cursor_and_ends_no_line(form: str) -> None:
    odd = checked(HealthState.UNHEALTHY, product="NVIDIA\x1b[31m", message="a\nb\u202ec")
    text = shown(replace(odd, findings=(finding("gpu\x1b[2J\n"),)), form)
    assert all(each.isprintable() or each == "\n" for each in text)
    assert "\x1b" not in text
    assert "gpu\\x1b[2J\\n" in text or "gpu\\u001b[2J\\n" in text


def test_only_performance_data_follows_a_pipe() -> None:
    first, second = shown(result(finding("a | b")), "nagios").splitlines()
    assert (
        first == "DEVICES CRITICAL - a / b | devices=0;;;0 healthy=0;;;0 degraded=0;;;0 unhealthy=0;;;0 unknown=0;;;0"
    )
    assert second == "a / b"
