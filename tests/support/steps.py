"""One step as the agent takes it (agent._pass), without the agent."""

from __future__ import annotations

from datetime import datetime

from nodedevices_plugin.pipeline.assess import assess
from nodedevices_plugin.pipeline.step import Step, decide
from nodedevices_plugin.pipeline.world import Inputs, World
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.faults import FaultSources


def step(
    world: World, inputs: Inputs, local: Local, *, now: datetime, monotonic: float, vendors: FaultSources | None = None
) -> Step:
    """`inputs` has what CDI finds from the start; the agent asks for it between the halves, as is done here."""
    assessment = assess(world, inputs, local, now=now, monotonic=monotonic, vendors=vendors)
    if assessment.uses_cdi:
        assessment.program_requests()
    return decide(assessment)
