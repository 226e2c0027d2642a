"""Plans as gates leave them: of devices, verdicts and settings, on a node where nobody holds anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nodedevices_api.withheld import UNHEALTHY
from nodedevices_plugin.gates.apply import apply
from nodedevices_plugin.gates.base import GateFacts
from nodedevices_plugin.gates.reasons import cordon, health
from nodedevices_plugin.model import Blocked, Cordon, HoldersState, Holdings, Inventory, Plan, Verdict
from nodedevices_plugin.offering.shape import PlanSettings, make_shape

UNFIT = Blocked(reason=UNHEALTHY, message="Xid79")
NOBODY = Holdings(state=HoldersState.SYNCED, taken=1.0)


def make_plan(
    inventory: Inventory, verdicts: Mapping[str, Verdict], settings: PlanSettings, cordoned: Collection[str] = ()
) -> Plan:
    """The shape, with what health alone and people block. `cordoned`: ids of devices or partitions that people took
    out of service."""
    cordons = tuple(Cordon(id=each, reason="RMA") for each in sorted(cordoned))
    facts = GateFacts(inventory=inventory, verdicts=verdicts, cordons=cordons, holdings=NOBODY)
    return apply(make_shape(inventory, settings), facts, gates=(health, cordon))


def gated(
    shape: Plan, inventory: Inventory, verdicts: Mapping[str, Verdict], ours: Collection[str] = (), **facts: Any
) -> Plan:
    """`facts`: beside the devices; by default nobody holds anything. `ours`: as in gates.apply."""
    known: dict[str, Any] = {"holdings": NOBODY, **facts}
    return apply(shape, GateFacts(inventory=inventory, verdicts=verdicts, **known), ours=ours)
