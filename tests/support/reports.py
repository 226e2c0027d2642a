"""What a report is made of, by what a test says of a node."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.granting.conflicts import Comparison
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import World, begin
from nodedevices_plugin.sharing.daemons import Clients
from nodedevices_plugin.status.facts import NodeFacts
from support.facts import START
from support.local import at_once

LOCAL = at_once(["--node-name=n1"], {})
OF_STATE = ("retired", "notices", "history", "drained", "lost_contexts", "most_seen")
OF_WORLD = ("plan", "observed", "holdings", "conflicts", "lost", "expected", "uses", "departed", "confirm_problems")


def node_facts(before: NodeFacts | None = None, /, **said: Any) -> NodeFacts:
    """`said`: fields of NodeFacts, and of what it has of the agent's world; `before`: all else is as there."""
    world = _with_configuration(before.world if before is not None else _new(), said)
    if "inventory" in said:
        world = replace(world, known=dataclasses.replace(world.known, inventory=said.pop("inventory")))
    if "held_twice" in said:
        world = replace(world, allocations=Comparison(found=said.pop("held_twice")))
    if "clients" in said:
        world = replace(world, state=dataclasses.replace(world.state, clients=Clients(clients=said.pop("clients"))))
    world = replace(world, **{name: said.pop(name) for name in OF_WORLD if name in said})
    kept = {name: said.pop(name) for name in OF_STATE if name in said}
    world = replace(world, state=dataclasses.replace(world.state, **kept))
    if before is not None:
        return replace(before, world=world, **said)
    return NodeFacts(**{"verdicts": world.known.verdicts, "started": START, **said, "world": world})


def _new() -> World:
    return _with_configuration(begin(State(), LOCAL, now=START, monotonic=0.0), {"mig_strategy": None})


def _with_configuration(world: World, said: dict[str, Any]) -> World:
    active, sections = world.active, world.active.effective.sections
    update: dict[str, Any] = {}
    if "mig_strategy" in said:
        update["partitions"] = sections.partitions.model_copy(update={"strategy": said.pop("mig_strategy")})
    if "exclude" in said:
        active = replace(active, applied_once=True)
        update["resources"] = sections.resources.model_copy(update={"exclude": said.pop("exclude")})
    effective = replace(active.effective, sections=sections.model_copy(update=update))
    return replace(world, active=replace(active, effective=effective))
