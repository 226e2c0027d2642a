"""Runs the probes until each has written a line, and judges what they say as the agent does.

A probe that cannot be started, or that has ended twice without a line, is not waited for; any other one is, until the
time is up. Whatever happens, no process of a probe is left when `read` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from nodedevices_plugin.check.sources import Sources
from nodedevices_plugin.health import reasons
from nodedevices_plugin.inputs.probes import Line, Probes
from nodedevices_plugin.model import HoldersState, Holdings, Unmatched
from nodedevices_plugin.offering.unmatched import unmatched_rules
from nodedevices_plugin.pipeline import expected
from nodedevices_plugin.pipeline.assess import Assessment, assess
from nodedevices_plugin.pipeline.config_status import ActiveConfig, ConfigStatus
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.pipeline.lost import left_behind, lost_devices
from nodedevices_plugin.pipeline.requesting import driver_root, request_config
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.probes import AUTO, lists_devices, missing, name_of
from nodedevices_plugin.settings.probes import read as probe_specs
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts

STARTS = 3  # of a probe that has written no line, with which it is given up
TICK_SECONDS = 0.1
NO_HOLDERS = Holdings(state=HoldersState.UNAVAILABLE)


class Reading(Struct, frozen=True, kw_only=True):
    """`refused`: why the configuration cannot be used; then there is nothing else. `facts`: of the node, with no plan
    and no holders. `silent`: by probe why it has written no line. `expects`: a policy says how many devices there must
    be. `auto`: the node's hardware decides which probes run."""

    refused: tuple[str, ...] = ()
    facts: NodeFacts | None = None
    silent: Mapping[str, str] = field(default_factory=dict)
    expects: bool = False
    auto: bool = False


async def read(local: Local, sources: Sources, expect: Mapping[str, int], *, until: float) -> Reading:
    """`expect`: numbers of devices by type, in the place of a policy's. `until`: time.monotonic()."""
    began = time.monotonic()
    local = _with_probes(local, sources)
    world, refused = _begin(local, sources, expect, now=datetime.now(UTC), monotonic=began)
    if refused:
        return Reading(refused=refused)
    came = asyncio.Event()
    root = Path(driver_root(local, world.requested, sources.file, world.active.effective))
    files = world.requested.files
    probes = Probes(local, driver_root=lambda: root, files=lambda: files, on_line=came.set, keep=_keep)
    assessment = _assess(world, local, sources, None)
    try:
        probes.use(world.probe_set.texts)
        while _waits(probes, assessment) and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await came.wait()
            came.clear()
            while (line := probes.take()) is not None:
                assessment = _assess(replace(world, known=assessment.known), local, sources, line)
        errors = probes.errors
    finally:
        await probes.stop()
    silent = {
        name: errors.get(name) or f"no line in {time.monotonic() - began:.0f} s; its driver may hang"
        for name, part in assessment.known.probes.items()
        if part.line_monotonic is None
    }
    return _judged(assessment, sources, silent)


def _begin(
    local: Local, sources: Sources, expect: Mapping[str, int], *, now: datetime, monotonic: float
) -> tuple[World, tuple[str, ...]]:
    """Return the world before the first line, with the requested configuration in effect, and why there is none."""
    state = sources.state
    given = sources.policy if sources.policy is not None else state.spec.config if state.spec is not None else None
    if expect:
        entries = [{"match": {"type": kind}, "count": count} for kind, count in expect.items()]
        given = {**(given or {}), "expect": entries}
    if given is not None:
        state = dataclasses.replace(state, spec=dataclasses.replace(state.spec or SeenSpec(config={}), config=given))
    world = begin(
        state,
        local,
        now=now,
        monotonic=monotonic,
        file=sources.file,
        device_files=sources.device_files,
        hardware=sources.hardware,
    )
    requested = request_config(local, sources.file, state.spec, sources.device_files)
    problems = dict.fromkeys(
        problem for problem in (requested.error, *(it.message for it in requested.others)) if problem
    )
    if requested.effective is None or problems:
        return world, tuple(problems)
    return replace(world, active=ActiveConfig(effective=requested.effective, applied_once=True)), ()


def _with_probes(local: Local, sources: Sources) -> Local:
    """Return the settings with the probes of the running agent, else `auto`, where nothing lists them. A probe that the
    agent was given in addition is among its own: it runs once, as it is given now."""
    of_file = sources.file.config.flags if sources.file.config is not None else {}
    if "probe" in local.given or "probe" in of_file:
        return local
    added = {name_of(probe): probe for probe in local.added_probes if "=" in probe}
    texts = tuple(added.get(name_of(probe), probe) for probe in sources.state.probes)
    specs, problems = probe_specs(texts)
    if problems or missing(specs, local.probe_options):
        if local.added_probes:
            return local  # they have their own rule of what runs beside them
        texts = (AUTO,)
    return dataclasses.replace(local, given={**local.given, "probe": texts})


def _assess(world: World, local: Local, sources: Sources, line: Line | None) -> Assessment:
    inputs = Inputs(
        snapshot=line.snapshot if line else None,
        source=line.probe if line else "",
        arrived=line.arrived if line else 0.0,
        file=sources.file,
        device_files=sources.device_files,
        holdings=NO_HOLDERS,
        hardware=sources.hardware,
    )
    return assess(world, inputs, local, now=datetime.now(UTC), monotonic=time.monotonic())


def _waits(probes: Probes, assessment: Assessment) -> bool:
    """True while the first line of a probe may still come."""
    return any(
        assessment.known.probes[name].line_monotonic is None
        and (source.last_error is None or 0 < source.counters.starts < STARTS)
        for name, source in probes.sources.items()
    )


def _judged(assessment: Assessment, sources: Sources, silent: Mapping[str, str]) -> Reading:
    known, world, hardware = assessment.known, assessment.world, sources.hardware or frozenset()
    lost = lost_devices(known.owned, hardware=hardware, given_up=assessment.given_up, left={})
    lost |= {
        name: f"devices of it in --state-file: {count}; it does not run here, and no probe that runs sees any"
        for name, count in left_behind(known.owned, world.left).items()
    }
    sections, most = world.active.effective.sections, sources.state.most_seen or ()
    counts: tuple[Count, ...] | None = None
    complete = not any(map(lists_devices, silent))  # else it is not known what is here
    if complete and sections.expect:
        counts = expected.count(sections.expect, known.owned)
    elif complete:
        counts = expected.lacking(most, known.inventory, known.owned.keys())
    facts = NodeFacts(
        inventory=known.inventory,
        verdicts=known.verdicts,
        plan=None,
        holdings=NO_HOLDERS,
        config=ConfigStatus(
            sources=known.requested.sources, unmatched=_unmatched(assessment, sources, complete=complete)
        ),
        notices=world.state.notices,
        history=assessment.history,
        mig_strategy=sections.partitions.strategy,
        exclude=world.active.excluded,
        unschedulable={entry.id: entry.reason for entry in assessment.cordons if entry.holds(assessment.now)},
        drained=assessment.drained,
        started=assessment.now,
        probes=tuple(
            ProbeFacts(name=name, inventory=part, silent=name in silent, error=silent.get(name))
            for name, part in known.owned.items()
        ),
        lost={name: why for name, why in lost.items() if name not in silent},
        expected=counts,
        most_seen=most,
        now=assessment.now,
    )
    auto = known.requested.auto
    return Reading(facts=facts, silent=silent, expects=bool(sections.expect), auto=auto)


def _unmatched(assessment: Assessment, sources: Sources, *, complete: bool) -> tuple[Unmatched, ...]:
    """Return the notes on the given policy's rules, as the agent has them in `unmatched`. Those of the node's policies
    are on its NodeDevices already. `complete`: all devices are known."""
    if sources.policy is None:
        return ()
    sections, known = assessment.world.active.effective.sections, assessment.known
    about_devices = unmatched_rules(known.inventory, sections) if complete else ()
    return (
        *reasons.unmatched(sections.health.rules, assessment.vendors),
        *reasons.unmatched_faults(sections.faults.rules, assessment.vendors),
        *about_devices,
    )


async def _keep(_: str, run: Callable[[], Awaitable[None]]) -> None:
    await run()
