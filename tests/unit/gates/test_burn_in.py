"""The recipe of docs/extending.md, "A reason to withhold an id": a gate of one's own, and where its reason is shown."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path

import pytest
from nodedevices_api.withheld import MEANINGS
from nodedevices_plugin.gates.apply import GATES, apply
from nodedevices_plugin.gates.base import GateFacts
from nodedevices_plugin.granting.answers import grant
from nodedevices_plugin.model import AllocationError, Plan, Registration, RegistrationState
from nodedevices_plugin.offering.shape import PlanSettings, make_shape
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import Attribute
from support.burn_in import burn_in
from support.facts import START, gpu, gpu_id, healthy, inventory_of
from support.plans import NOBODY
from support.reports import node_facts

DOCS = Path(__file__).parents[3] / "docs"
TESTED = inventory_of(gpu(0), gpu(1, extra={"burnIn": Attribute(string="running")}))
WELL = healthy(*(device.fact for device in TESTED.devices))


def plan() -> Plan:
    facts = GateFacts(inventory=TESTED, verdicts=WELL, holdings=NOBODY)
    return apply(make_shape(TESTED, PlanSettings()), facts, gates=(*GATES, burn_in))


def test_the_page_shows_the_tested_file_its_reasons_are_in_troubleshooting_and_it_costs_nothing() -> None:
    _, code = Path(inspect.getfile(burn_in)).read_text().split('"""\n\n', 1)
    assert f"```python\n{code}```" in (DOCS / "extending.md").read_text()
    facts = GateFacts(inventory=inventory_of(gpu(0)), verdicts=healthy(gpu(0)), holdings=NOBODY)
    assert burn_in(make_shape(facts.inventory, PlanSettings()), facts) is None
    page = (DOCS / "troubleshooting.md").read_text()
    section = page.partition("## Why ids are withheld")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(MEANINGS)


def test_its_devices_go_to_no_new_container_and_status_and_allocate_say_why() -> None:
    [resource] = plan().resources
    assert [each.healthy for each in resource.ids] == [True, False]
    with pytest.raises(AllocationError, match=r"\(BurnIn: its burn-in test runs\)"):
        grant(resource, [gpu_id(1)])
    status = report(
        node_facts(
            inventory=TESTED,
            verdicts=WELL,
            plan=plan(),
            holdings=NOBODY,
            registrations=(Registration(resource=resource.name, state=RegistrationState.REGISTERED),),
            started=START,
            now=START + timedelta(seconds=30),
            probes=(ProbeFacts(name="nvml", inventory=TESTED),),
        )
    )
    [why] = status.resources[0].withheld
    assert (why.reason, why.count, why.devices, why.message) == ("BurnIn", 1, ("gpu-1",), "its burn-in test runs")
    assert status.summary is not None
    assert status.summary.withheld == "BurnIn=1"
