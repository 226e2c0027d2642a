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
from nodedevices_plugin.pipeline import expected, most_seen
from nodedevices_plugin.pipeline.active import ActiveConfig
from nodedevices_plugin.pipeline.assess import Assessment, assess
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.pipeline.lost import left_behind, lost_devices
from nodedevices_plugin.pipeline.requesting import driver_root, request_config
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.probes import AUTO, lists_devices, missing, name_of
from nodedevices_plugin.settings.probes import read as probe_specs

STARTS = 3  # of a probe that has written no line, with which it is given up
TICK_SECONDS = 0.1


class Reading(Struct, frozen=True, kw_only=True):
    """`refused`: why the configuration cannot be used; then there is nothing else. `silent`: by probe why it has
    written no line. `lost`: probes that see none of the devices that are here or were (pipeline.lost).
    `expects`: a policy says how many devices there must be. `unmatched`: rules of `--policy` that have no effect."""

    refused: tuple[str, ...] = ()
    assessment: Assessment | None = None
    silent: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    expected: tuple[Count, ...] = ()
    expects: bool = False
    unmatched: tuple[Unmatched, ...] = ()


async def read(local: Local, sources: Sources, expect: Mapping[str, int], *, until: float) -> Reading:
    """`expect`: numbers of devices by type, in the place of a policy's. `until`: time.monotonic()."""
    began = time.monotonic()
    local = _with_probes(local, sources)
    world, refused = _begin(local, sources, expect, now=datetime.now(UTC), monotonic=began)
    if refused:
        return Reading(refused=refused)
    came = asyncio.Event()
    root = Path(driver_root(local, world.requested, sources.file, world.active.effective))
    probes = Probes(local, driver_root=lambda: root, on_line=came.set, keep=_keep)
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
    problems = dict.fromkeys(each for each in (requested.error, *(it.message for it in requested.others)) if each)
    if requested.effective is None or problems:
        return world, tuple(problems)
    return replace(world, active=ActiveConfig(effective=requested.effective, applied_once=True)), ()


def _with_probes(local: Local, sources: Sources) -> Local:
    """Return the settings with the probes of the running agent, else `auto`, where nothing lists them. A probe that the
    agent was given in addition is among its own: it runs once, as it is given now."""
    of_file = sources.file.config.flags if sources.file.config is not None else {}
    if "probe" in local.given or "probe" in of_file:
        return local
    added = {name_of(each): each for each in local.added_probes if "=" in each}
    texts = tuple(added.get(name_of(each), each) for each in sources.state.probes)
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
        holdings=Holdings(state=HoldersState.UNAVAILABLE),
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
    known, hardware = assessment.known, sources.hardware or frozenset()
    lost = lost_devices(known.owned, hardware=hardware, given_up=assessment.given_up, left={})
    lost |= {
        name: f"devices of it in --state-file: {count}; it does not run here, and no probe that runs sees any"
        for name, count in left_behind(known.owned, assessment.world.left).items()
    }
    counts: tuple[Count, ...] = ()
    entries = assessment.world.active.effective.sections.expect
    complete = not any(map(lists_devices, silent))  # else it is not known what is here
    if complete:
        if entries:
            counts = expected.count(entries, known.owned, assessment.rules.near)
        else:
            counts = most_seen.lacking(sources.state.most_seen or (), known.inventory, known.owned.keys())
    return Reading(
        assessment=assessment,
        silent=silent,
        lost={name: why for name, why in lost.items() if name not in silent},
        expected=counts,
        expects=bool(entries),
        unmatched=_unmatched(assessment, sources, complete=complete),
    )


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
