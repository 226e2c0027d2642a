"""`nodedevices-operator check`: say in one line whether the chain from the agents to the operator works.

On each Node that is Ready and has an agent's pod the agent must run, its NodeDevices must say Ready, and the operator
must have seen it (Stale=False); and of the operators one must lead, which shows in its Lease being renewed. Nodes that
are not Ready are counted and break nothing. It is asked again until it is so or the time is over, since what was just
installed pulls images. It only reads, with the operator's rights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field
from nodedevices_api.conditions import READY, STALE
from nodedevices_common.conditions import ConditionRecord, read

from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.records import names

AGENTS = "app.kubernetes.io/name=nodedevices,app.kubernetes.io/component=agent"
CHECK_SECONDS = 60.0  # for what was just installed: a Lease, the first reports
LOOK_SECONDS = 3.0  # longer than a leader takes to renew its Lease (kube/election.py)
SHOWN = 3  # nodes with their reasons


class Report(Struct, frozen=True):
    """What a NodeDevices says."""

    ready: ConditionRecord | None
    stale: ConditionRecord | None
    devices: int = 0
    healthy: int = 0


class Seen(Struct, frozen=True):
    """One look at the cluster."""

    ready_nodes: frozenset[str] = frozenset()
    agents: Mapping[str, str] = field(default_factory=dict)  # node -> why its agent's pod does not run; empty: it does
    reports: Mapping[str, Report] = field(default_factory=dict)
    crds: bool = True
    lease: str = ""  # renewTime; empty: no operator holds it


@dataclass(frozen=True, slots=True)
class Verdict:
    sentence: str
    works: bool = False


def judge(now: Seen, *, elected: bool, lease_before: str) -> Verdict:
    """Whether the chain works. `elected`: operators agree by a Lease which of them leads; `lease_before`: its renewTime
    at an earlier look."""
    if not now.crds:
        return Verdict("broken at the CRDs: the API server does not know NodeDevices")
    watched = sorted(now.agents.keys() & now.ready_nodes)
    if not watched:
        return Verdict("broken at the agents: no Node that is Ready has a pod of nodedevices-agent")
    broken = {node: why for node in watched if (why := _why(now.agents[node], now.reports.get(node)))}
    if broken:
        shown = "; ".join(f"{node}: {why}" for node, why in [*broken.items()][:SHOWN])
        more = f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        return Verdict(f"broken on {len(broken)} of {len(watched)} nodes: {shown}{more}")
    if elected and (not now.lease or now.lease == lease_before):
        return Verdict("broken at the operator: none leads, as its Lease nodedevices-operator is not renewed")
    reports = [now.reports[node] for node in watched]
    devices, healthy = sum(each.devices for each in reports), sum(each.healthy for each in reports)
    away = len(now.agents) - len(watched)
    left_out = f"; {away} not looked at, since their Nodes are not Ready" if away else ""
    return Verdict(f"works: {len(watched)} nodes report {devices} devices, {healthy} healthy{left_out}", works=True)


def _why(pod: str, report: Report | None) -> str:
    """Return where the chain of one node breaks; empty: nowhere."""
    if pod:
        return f"the agent's pod does not run ({pod})"
    if report is None or report.ready is None:
        return "the agent runs and has written no NodeDevices"
    if report.ready.status != "True":
        return f"the agent is not ready ({report.ready.reason}: {report.ready.message})"
    if report.stale is None:
        return "the agent reports, and no operator has seen it"
    return f"the report is out of date ({report.stale.reason})" if report.stale.status != "False" else ""


async def check(
    kube: Kube, namespace: str, *, elected: bool, seconds: float = CHECK_SECONDS, pause: float = LOOK_SECONDS
) -> Verdict:
    """Look again and again until the chain works or the time is over. Raises KubeError where it cannot look."""
    end = time.monotonic() + seconds
    lease_before = await _renewed(kube, namespace) if elected else ""
    while True:
        await asyncio.sleep(pause)
        now = await _look(kube, namespace, elected=elected)
        verdict = judge(now, elected=elected, lease_before=lease_before)
        if verdict.works or time.monotonic() >= end:
            return verdict
        lease_before = now.lease


async def _look(kube: Kube, namespace: str, *, elected: bool) -> Seen:
    ready = {
        item["metadata"]["name"]
        async for page in kube.pages(names.NODES)
        for item in page
        if any(each.type == READY and each.status == "True" for each in _conditions(item))
    }
    agents = {
        item["spec"]["nodeName"]: _waits(item)
        async for page in kube.pages(names.PODS, labelSelector=AGENTS)
        for item in page
        if item["spec"].get("nodeName") and not item["metadata"].get("deletionTimestamp")
    }
    reports: dict[str, Report] = {}
    crds = True
    try:
        async for page in kube.pages(names.NODE_DEVICES):
            reports |= {item["metadata"]["name"]: _report(item) for item in page}
    except KubeError as error:
        if error.status != 404:
            raise
        crds = False
    return Seen(frozenset(ready), agents, reports, crds, await _renewed(kube, namespace) if elected else "")


def _waits(pod: Mapping[str, Any]) -> str:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    for each in statuses:
        state = each.get("state", {})
        if "running" not in state:
            return str(state.get("waiting", {}).get("reason") or "Ended")
    return "" if statuses else "Pending"


def _report(item: Mapping[str, Any]) -> Report:
    found = {each.type: each for each in _conditions(item)}
    summary = item.get("status", {}).get("summary") or {}
    return Report(found.get(READY), found.get(STALE), summary.get("devices", 0), summary.get("healthy", 0))


def _conditions(item: Mapping[str, Any]) -> list[ConditionRecord]:
    return [read(each) for each in item.get("status", {}).get("conditions") or ()]


async def _renewed(kube: Kube, namespace: str) -> str:
    try:
        spec = (await kube.get(names.lease_path(namespace))).get("spec") or {}
    except KubeError as error:
        if error.status != 404:
            raise
        return ""
    return str(spec.get("renewTime", "")) if spec.get("holderIdentity") else ""
