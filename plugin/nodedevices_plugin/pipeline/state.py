"""The state file: everything that must survive a restart of the agent.

An XID is an edge: without this file a restarted agent would offer a bad GPU as good. The file holds every verdict with
faults behind it, the devices that were known (so that one that is gone stays Missing), the configuration in effect, the
last `spec.config` seen, which resource names were and are offered, and what others were seen to offer. It is in the
device-plugin directory, from which the kubelet removes only sockets.

Written whole and atomically (temporary file, fsync, rename), and only when something changed. A disk that is full or
read-only is reported, and no change of shape takes effect meanwhile (configuring). A file of another version is read
part by part. What cannot be read is reported and kept aside under the name `<file>.unreadable`; where nothing can,
everything starts afresh: probe, PodResources and the operator say what they know.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from nodedevices_common import files
from nodedevices_common.errors import OperationError
from nodedevices_probe.protocol import Readings
from pydantic import TypeAdapter, ValidationError

from nodedevices_plugin.health.events import EPOCH, EventCursor
from nodedevices_plugin.model import (
    Cordon,
    Given,
    HealthState,
    Inventory,
    InventoryDevice,
    MostSeen,
    Notice,
    Occurrences,
    Tenure,
    Verdict,
    with_each_fault,
)
from nodedevices_plugin.pipeline.routing import WaitingEvent
from nodedevices_plugin.sharing.daemons import Clients

MAX_BYTES = 16 << 20
VERSION = 1  # of what is written; of another version all parts are read that it has in common with this one
_EACH_BY_ITSELF = frozenset(
    {"verdicts", "drained", "notices", "history", "held_since", "tenures", "given", "lost_contexts"}
)  # parts by device or id
NAMED = 8  # verdicts or devices that cannot be read, in one message


class StateError(OperationError):
    """The file cannot be used or written; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSpec:
    """The last `spec` in which the operator had resolved this node."""

    config: Mapping[str, Any]
    config_hash: str | None = None
    config_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that survives. Equal states need no write."""

    version: int = VERSION
    boot_id: str = ""
    devices: tuple[InventoryDevice, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    applied: Mapping[str, Any] | None = None  # effective.to_saved of what is in effect
    applied_hash: str | None = None  # spec.configHash that it covers
    spec: SeenSpec | None = None
    offered: tuple[str, ...] = ()
    observed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what others offer: resource -> ids
    retired: Mapping[str, datetime] = field(default_factory=dict)  # resource names no longer offered, since when
    confirmed: str = ""  # the nodedevices.io/confirm annotation that was acted on
    removals: tuple[str, ...] = ()  # ids of devices that are confirmed as removed, and dropped once no pod holds them
    unschedulable: tuple[Cordon, ...] = ()  # as the object had it last: an API server that is away ends none of them
    drained: Mapping[str, datetime] = field(default_factory=dict)  # by device, since when (pipeline.confirm)
    notices: Mapping[str, tuple[Notice, ...]] = field(default_factory=dict)  # by device (health.history)
    history: Mapping[str, tuple[Occurrences, ...]] = field(default_factory=dict)  # by device (health.history)
    cursors: Mapping[str, EventCursor] = field(default_factory=dict)  # by probe, what of its events is in all this
    waiting: tuple[WaitingEvent, ...] = ()  # events of devices that are not known yet (pipeline.routing)
    held_since: Mapping[str, datetime] = field(default_factory=dict)  # by tenure_key, Holder.since
    tenures: Mapping[str, Tenure] = field(default_factory=dict)  # by device (pipeline.idle)
    probes: tuple[str, ...] = ()  # those that run, as configured, for a start whose configuration file cannot be read
    auto_probes: tuple[str, ...] = ()  # those of them that stand for `auto` (pipeline.probe_set)
    retired_devices: tuple[str, ...] = ()  # ids of devices without a running probe (pipeline.probe_set)
    most_seen: tuple[MostSeen, ...] | None = None  # (pipeline.expected); None: it is not known what the node had
    given: Mapping[str, Given] = field(default_factory=dict)  # by held id, where it is not as now (pipeline.places)
    clients: Clients = field(default_factory=Clients)  # which MPS daemon each client came to
    lost_contexts: Mapping[str, Verdict] = field(default_factory=dict)  # by container and device


_ADAPTER: TypeAdapter[State] = TypeAdapter(State)


def to_save(state: State, inventory: Inventory, verdicts: Mapping[str, Verdict]) -> State:
    """`state` with what is worth keeping of these: no readings and no event's number (they change with every
    line), no healthy verdicts."""
    devices = tuple(
        replace(
            device,
            fact=replace(device.fact, readings=Readings()),
            last_seen=EPOCH if device.present else device.last_seen,  # a device that is here is seen all the time
        )
        for device in inventory.devices
    )
    kept = {
        key: with_each_fault(verdict, lambda fault: replace(fault, instance="", sequence=-1))
        for key, verdict in verdicts.items()
        if verdict.faults or verdict.ignored or verdict.state is HealthState.UNHEALTHY
    }
    return replace(state, boot_id=inventory.boot_id or state.boot_id, devices=devices, verdicts=kept)


def same_but_times(one: State, other: State) -> bool:
    """True when they differ only in when a fault was last seen, in how often an event came that waits, in notices,
    history, cursors, tenures and since when devices are held: worth a write now and then, not at each line, and the
    kubelet need not wait for it."""
    return _without_times(one) == _without_times(other)


def _without_times(state: State) -> State:
    verdicts = {
        key: with_each_fault(verdict, lambda fault: replace(fault, last_seen=EPOCH if fault.last_seen else None))
        for key, verdict in state.verdicts.items()
    }
    waiting = tuple(replace(kept, event=replace(kept.event, count=1)) for kept in state.waiting)
    return replace(
        state, verdicts=verdicts, waiting=waiting, notices={}, history={}, cursors={}, held_since={}, tenures={}
    )


def restored_devices(state: State, now: datetime) -> tuple[InventoryDevice, ...]:
    """The devices as the inventory takes them up: those that were here count as seen until now, and none later."""
    return tuple(
        replace(device, last_seen=now if device.present else min(device.last_seen, now)) for device in state.devices
    )


def _zoneless(value: object, place: str = "") -> str:
    """The place of the first time that names no zone, which no other time can be compared with; "": there is none."""
    if isinstance(value, datetime):
        return place if value.tzinfo is None else ""
    parts: Iterable[tuple[object, object]] = ()
    if is_dataclass(value):
        parts = ((member.name, getattr(value, member.name)) for member in fields(value))
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, tuple):
        parts = enumerate(value)
    return next(filter(None, (_zoneless(part, f"{place}.{key}".lstrip(".")) for key, part in parts)), "")


class StateFile:
    """Reads and writes one path. Blocking: to be called on a worker thread, but for the read at the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unread = ""  # what of the file could not be used by the last `load`

    def load(self) -> State:
        """The saved state, of this version or another, as far as it can be used (`unread`); an empty one when there is
        no file. StateError when nothing of it can be used."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise StateError(f"read {self.path}: {error.strerror or error}") from error
        try:
            state, self.unread = from_bytes(raw)
        except StateError as error:
            aside = self._aside(self.path.replace)
            raise StateError(f"{self.path}: not a state file ({error}); {aside}") from error
        if self.unread:
            self.unread += f"; {self.keep_aside()}"
        return state

    def save(self, state: State) -> None:
        """Replace the file. StateError when that is not possible; the old file then stays as it was."""
        content = _ADAPTER.dump_json(state, by_alias=True, exclude_none=True)
        try:
            files.replace(self.path, content, mode=0o600, durable=True)
        except OSError as error:
            raise StateError(f"write {self.path}: {error.strerror or error}") from error

    def keep_aside(self) -> str:
        """Keep a copy of a file that could not be read whole; for people, where it is."""
        return self._aside(partial(shutil.copyfile, self.path))

    def _aside(self, put: Callable[[Path], object]) -> str:
        aside = self.path.with_name(f"{self.path.name}.unreadable")
        try:
            put(aside)
        except OSError as error:
            return f"and not kept aside: {error.strerror or error}"
        return f"kept as {aside.name}"


def from_bytes(raw: bytes) -> tuple[State, str]:
    """Return the usable parts of a file's content, each by itself, of devices and what is kept of them each one, and
    what cannot be used: a part that another version writes in another way must not affect the others. Unknown parts are
    left out: they are a newer version's. StateError when nothing can be used."""
    if len(raw) > MAX_BYTES:
        raise StateError(f"it is larger than {MAX_BYTES} bytes")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StateError(f"not JSON: {error!s:.200}") from error
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(version, int) or version < 1:
        raise StateError(f"version: {version!r:.64} is not a number from 1")
    state, problems = State(), list[str]()
    for name in (member.name for member in fields(State) if member.name != "version" and member.name in document):
        part, problem = _part(name, document[name])
        if problem and name in _EACH_BY_ITSELF and isinstance(document[name], dict):
            found = {key: _part(name, {key: value}) for key, value in document[name].items()}
            part = {key: value for read, why in found.values() if not why for key, value in read.items()}
            problems += [why for _, why in found.values() if why][:NAMED]
        elif problem and name == "devices" and isinstance(document[name], list):
            every = [_part(name, [device]) for device in document[name]]
            part = tuple(device for read, why in every if not why for device in read)
            numbered = (why.replace(".0", f".{number}", 1) for number, (_, why) in enumerate(every) if why)
            problems += list(numbered)[:NAMED]
        elif problem:
            problems.append(problem)
        if part is not None:
            state = replace(state, **{name: part})
    if problems:
        state = replace(state, cursors={})  # what a probe repeats may be what is lost
    return state, "; ".join(problems)


def _part(name: str, value: object) -> tuple[Any, str]:
    """One part as the state has it, or None and why it cannot be used."""
    try:
        part = getattr(_ADAPTER.validate_python({name: value}), name)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        return None, f"{where or name}: {first['msg'][:200]}"
    if zoneless := _zoneless(part, name):
        return None, f"{zoneless[:200]}: a time without a zone; write it as 2026-11-21T07:02:11Z"
    return part, ""
