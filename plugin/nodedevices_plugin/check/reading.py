"""Runs the probes until each has written a line, and judges what they say as the agent does.

What is read beside probes' lines: the hardware, the agent's files, a policy, the agent's state file. Files are read as
the agent reads them, on a worker's thread: one that hangs is a problem like any other. The state file is read alone:
what cannot be used of it is said, and it stays where it is.

A probe that cannot be started, or that has ended twice without a line, is not waited for; any other one is, until the
time is up. Whatever happens, no process of a probe is left when `read` returns.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.sections import Sections
from nodedevices_common import safe_yaml
from nodedevices_common.errors import InputError
from nodedevices_common.files import head
from nodedevices_common.periodic import within
from nodedevices_common.text import show

from nodedevices_plugin.health import reasons
from nodedevices_plugin.host.machine import FoundHardware, Machine, ServedMachine
from nodedevices_plugin.inputs.config_file import ConfigFile, DeviceFolder
from nodedevices_plugin.inputs.probes import Line, Probes
from nodedevices_plugin.model import HoldersState, Holdings, Unmatched
from nodedevices_plugin.offering.unmatched import unmatched_rules
from nodedevices_plugin.pipeline import expected
from nodedevices_plugin.pipeline.assess import Assessment, assess
from nodedevices_plugin.pipeline.configuration import ActiveConfig, ConfigStatus, driver_root, request_config
from nodedevices_plugin.pipeline.lost import left_behind, lost_devices
from nodedevices_plugin.pipeline.state import MAX_BYTES, SeenSpec, State, StateError, from_bytes
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings import file as config_file
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.probes import AUTO, lists_devices, missing, name_of, read as probe_specs
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.vendors.base import DeviceFiles

STARTS = 3  # of a probe that has written no line, with which it is given up
TICK_SECONDS = 0.1
NO_HOLDERS = Holdings(state=HoldersState.UNAVAILABLE)


class Reading(Struct, frozen=True, kw_only=True):
    """`facts`: of the node, with no plan and no holders. `expects`: a policy says how many devices there must be.
    `auto`: the node's hardware decides which probes run."""

    facts: NodeFacts
    expects: bool = False
    auto: bool = False

    @property
    def silent(self) -> dict[str, str]:
        """By probe why it has written no line."""
        return {probe.name: probe.error or "" for probe in self.facts.probes if probe.silent}


async def read(local: Local, sources: Sources, expect: Mapping[str, int], *, until: float) -> Reading:
    """`expect`: numbers of devices by type, in the place of a policy's. `until`: time.monotonic(). Raises InputError
    where the configuration cannot be used."""
    began = time.monotonic()
    local = _with_probes(local, sources)
    world = _begin(local, sources, expect, now=datetime.now(UTC), monotonic=began)
    came = asyncio.Event()
    root = Path(driver_root(local, world.known.requested, sources.file, world.active.effective))
    files = world.known.requested.files
    probes = Probes(local, driver_root=lambda: root, files=lambda: files, on_line=came.set, keep=_keep)
    assessment = _assess(world, local, sources, None)
    try:
        probes.use(world.known.probe_set.texts)
        while _waits(probes, assessment) and time.monotonic() < until:
            await within(TICK_SECONDS, came.wait())
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


def _begin(local: Local, sources: Sources, expect: Mapping[str, int], *, now: datetime, monotonic: float) -> World:
    """Return the world before the first line, with the requested configuration in effect."""
    state = sources.state
    given = sources.policy if sources.policy is not None else state.spec.config if state.spec is not None else None
    if expect:
        entries = [{"type": kind, "count": count} for kind, count in expect.items()]
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
    problems = dict.fromkeys(wrong.message for wrong in (requested.refused, *requested.others) if wrong is not None)
    if requested.effective is None or problems:
        raise InputError([*filter(None, [sources.state_problem]), *problems])
    return replace(world, active=ActiveConfig(effective=requested.effective, applied_once=True))


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
    counts: tuple[expected.Count, ...] | None = None
    complete = not any(map(lists_devices, silent))  # else it is not known what is here
    if complete and sections.expect:
        counts = expected.count(sections.expect, known.owned)
    elif complete:
        counts = expected.lacking(most, known.inventory, known.owned.keys())
    state = dataclasses.replace(
        world.state,
        history=assessment.rules.occurrences,
        drained=assessment.drained,
        most_seen=most,
        retired={},  # a matter of the kubelet's
    )
    facts = NodeFacts(
        world=replace(
            world,
            known=known,
            state=state,
            lost={name: why for name, why in lost.items() if name not in silent},
            expected=counts,
        ),
        verdicts=known.verdicts,
        probes=tuple(
            ProbeFacts(name=name, inventory=part, silent=name in silent, error=silent.get(name))
            for name, part in known.owned.items()
        ),
        config=ConfigStatus(
            sources=known.requested.sources, unmatched=_unmatched(assessment, sources, complete=complete)
        ),
        unschedulable={cordon.id: cordon.reason for cordon in assessment.facts.cordons},
        started=assessment.now,
        now=assessment.now,
    )
    return Reading(facts=facts, expects=bool(sections.expect), auto=known.requested.auto)


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


# --- what is read beside probes' lines -------------------------------------------------------------------------------
_OF_OBJECT = ("apiVersion", "kind", "metadata", "spec")


class Sources(Struct, kw_only=True):
    """`hardware`: as pipeline.world.Inputs has it. `state_problem`: what of the state file could not be used."""

    file: config_file.FileOutcome = field(default_factory=config_file.FileOutcome)
    device_files: DeviceFiles = field(default_factory=dict)
    hardware: frozenset[str] | None = None
    hardware_problem: str = ""
    policy: Mapping[str, Any] | None = None  # its sections
    state: State = field(default_factory=State)
    state_problem: str = ""


async def read_sources(local: Local, *, policy: str, state_file: str) -> Sources:
    """`policy`, `state_file`: paths; empty: none. Raises InputError where the policy cannot be used."""
    found = Sources()

    def on_file(outcome: config_file.FileOutcome) -> None:
        found.file = outcome

    def on_device_files(files: DeviceFiles) -> None:
        found.device_files = files

    machine: Machine = ServedMachine(local.probe_server) if local.probe_server else Machine()
    hardware = FoundHardware(worker=Worker("hardware"), on_change=lambda: None, check=machine.hardware)
    hardware.want(wanted=True)  # or it does not say what its problem is
    worker = Worker("files")
    firsts = [hardware.first()]
    if local.config_file is not None:
        file = ConfigFile(Path(local.config_file), worker=worker, on_change=on_file, vendors=local.vendors)
        firsts.append(file.first())
    if local.devices_dir is not None:
        folder = Path(local.devices_dir)
        files = DeviceFolder(
            folder, node=local.node_name, worker=worker, on_change=on_device_files, vendors=local.vendors
        )
        firsts.append(files.first())
    await asyncio.gather(*firsts)
    found.hardware, found.hardware_problem = hardware.found, hardware.problem
    if hardware.found is None and not hardware.problem:
        found.hardware_problem = "/sys, /proc or /dev does not answer"
    if policy:
        try:
            raw = await worker.run(lambda: _raw(Path(policy), config_file.MAX_BYTES))
            found.policy = sections(raw)
        except OSError as error:
            raise InputError(f"--policy {policy}: {error.strerror or error}") from error
        except InputError as error:
            raise InputError(f"--policy {policy}: {error}") from error
    if state_file:
        try:
            found.state, unread = from_bytes(await worker.run(lambda: _raw(Path(state_file), MAX_BYTES)))
            found.state_problem = f"--state-file {state_file}: not used: {unread}" if unread else ""
        except OSError as error:
            found.state_problem = f"--state-file {state_file}: {error.strerror or error}"
        except (InputError, StateError) as error:
            found.state_problem = f"--state-file {state_file}: not a state file ({error})"
    return found


def sections(raw: bytes) -> dict[str, Any]:
    """Return the sections of a policy, or of a file with sections alone. InputError names what is wrong."""
    documents = [
        document for document in safe_yaml.load_all(raw, max_values=config_file.MAX_VALUES) if document is not None
    ]
    if len(documents) != 1:
        raise InputError(f"{len(documents)} documents; give one policy")
    [document] = documents
    if not isinstance(document, dict):
        raise InputError(f"{show(document)} is not a policy; give a DevicePolicy, or only its sections")
    if "kind" not in document:
        return to_dict(parse(Sections, document))
    if document["kind"] != "DevicePolicy":
        raise InputError(
            f"kind: {show(document['kind'])} is not supported here; give a DevicePolicy, or only its sections"
        )
    return to_dict(parse(DevicePolicy, {key: document[key] for key in _OF_OBJECT if key in document}).spec.sections())


def _raw(path: Path, most: int) -> bytes:
    raw = head(path, most + 1)
    if len(raw) > most:
        raise InputError(f"larger than {most} bytes")
    return raw
