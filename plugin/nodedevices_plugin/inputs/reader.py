"""The agent's side of a probe's line: bytes in, a frozen Snapshot out, or an error that names the place.

A line is hostile input: a probe may be broken, old, new or taken over. Nothing passes that is longer than the cap, not
UTF-8 JSON, out of the bounds of `protocol`, ambiguous (two devices with one id) or of another protocol. Keys that this
agent does not know are ignored, since a newer probe of the same protocol may say more.

What a line may cost is bounded too, because the agent serves the kubelet while it reads: values are counted before they
are parsed, a list's length is looked at before its elements, and the first error ends it. The checks are made once
from the types and bounds in `protocol`. Nothing here does I/O; `probe_source` calls it on its own thread.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from nodedevices_api.bounds import ATTRIBUTE_NAME_PATTERN, DEVICE_NAME_PATTERN, SEMANTIC_VERSION_PATTERN, WORD_PATTERN
from nodedevices_common.errors import InputError
from nodedevices_common.quantity import QUANTITY_PATTERN
from nodedevices_probe.protocol import (
    DEVICE_ID,
    DEVICE_NODE,
    DEVICE_TYPE,
    MAX_LINE_BYTES,
    MAX_LINE_PARTITIONS,
    MAX_OWN,
    PLAIN_TEXT,
    PROFILE,
    PROTOCOL,
    WORD,
    Attribute,
    Bounds,
    DeviceFact,
    Snapshot,
    camel,
)
from pydantic_core import from_json

MAX_VALUES = 1 << 15  # of one line, keys aside; sixteen GPUs in seven parts each have some 3,000
MAX_TIME_CHARACTERS = 64
_SHOWN_CHARACTERS = 60
_RIGHT_TEXT = {
    PLAIN_TEXT: "give text without control or invisible characters",
    DEVICE_ID: "give 1 to 96 of A-Z a-z 0-9 . _ - with single colons between them",
    WORD: "give 1 to 64 letters, digits and hyphens",
    WORD_PATTERN: "give 1 to 64 letters and digits, a letter first",
    DEVICE_TYPE: "give 1 to 32 letters and digits, a letter first",
    PROFILE: "give a profile such as 1g.10gb, at most 48 characters",
    DEVICE_NODE: "give a path such as /dev/nvidia0",
    DEVICE_NAME_PATTERN: "give small letters, digits and hyphens, as in gpu-3",
    ATTRIBUTE_NAME_PATTERN: "give a name of at most 32 letters, digits and _, with or without example.com/ before it",
    SEMANTIC_VERSION_PATTERN: "give a semantic version such as 9.0.0",
    QUANTITY_PATTERN: "give a quantity such as 80Gi, or a number in quotes",
}
# What has its own field, or is said of a device in a ResourceSlice anyway.
COMMON = frozenset(
    {
        *("type", "uuid", "vendor", "productName", "brand", "architecture", "firmware", "pciBusID", "pcieRoot"),
        *("numaNode", "minor", "index", "profile", "parent"),
    }
)

Check = Callable[[Any], Any]  # the value as a Snapshot has it; raises ProbeLineError with the place inside the value


class ProbeLineError(InputError):
    """A line that was refused. `place` is a path such as `devices[3].memoryBytes`, "" for the line as a whole."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"probe line: {place}: {problem}" if place else f"probe line: {problem}", place)
        self.problem = problem

    def inside(self, outer: str) -> ProbeLineError:
        """The same error, of a value that stands at `outer`."""
        dot = "." if self.place and not self.place.startswith("[") else ""
        return ProbeLineError(f"{outer}{dot}{self.place}", self.problem)


def parse_line(raw: bytes) -> Snapshot:
    """Return the snapshot in one line. Raises ProbeLineError for all other bytes, and never anything else."""
    if len(raw) > MAX_LINE_BYTES:
        raise ProbeLineError("", f"{len(raw)} bytes are too many; at most {MAX_LINE_BYTES} are read")
    if (values := sum(map(raw.count, (b",", b"[", b"{")))) > MAX_VALUES:
        raise ProbeLineError("", f"{values} values are too many; at most {MAX_VALUES} are read")
    try:
        line = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ProbeLineError("", f"invalid JSON: {error}") from None
    # Another protocol has other rules: saying so helps more than saying which of ours it breaks.
    if isinstance(line, dict) and isinstance(line.get("protocol"), str) and line["protocol"] != PROTOCOL:
        found = _shown(line["protocol"])
        raise ProbeLineError("protocol", f"{found} is not supported by this agent; give {_shown(PROTOCOL)}")
    snapshot: Snapshot = _SNAPSHOT(line)
    _check_whole(snapshot)
    return snapshot


# --- values, one by one ----------------------------------------------------------------------------------------------
def _check_of(hint: Any) -> Check:
    """The check that a type of `protocol` stands for."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        limits = {key: limit for note in notes if isinstance(note, Bounds) for key, limit in note.limits.items()}
        return _bounded(inner, limits)
    if get_origin(hint) in {Union, UnionType}:
        [inner] = [argument for argument in get_args(hint) if argument is not NoneType]
        check = _check_of(inner)
        return lambda value: None if value is None else check(value)
    if dataclasses.is_dataclass(hint):
        return _object(hint)  # type: ignore[arg-type]  # a class, not an instance
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _one_of(hint)
    return {bool: _flag, datetime: _time}[hint]


def _bounded(kind: Any, limits: dict[str, Any]) -> Check:
    if kind is str:
        return _text(limits["pattern"], limits.get("max_length", MAX_LINE_BYTES))
    if kind is int:
        return _integer(limits["ge"], limits["le"])
    if get_origin(kind) is dict:
        key, value = map(_check_of, get_args(kind))
        return _map(key, value, limits["max_length"])
    [inner, _] = get_args(kind)  # tuple[inner, ...]
    return _list(_check_of(inner), limits["max_length"])


def _text(pattern: str, longest: int) -> Check:
    fits = re.compile(pattern).fullmatch

    def check(value: Any) -> str:
        if type(value) is not str:
            raise _wrong(value, "give text")
        if len(value) > longest:
            raise _wrong(value, f"give at most {longest} characters")
        if fits(value) is None:
            raise _wrong(value, _RIGHT_TEXT[pattern])
        return value

    return check


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _wrong(value, f"give a whole number from {low} to {high}")
        return value

    return check


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong(value, "give true or false")
    return value


def _time(value: Any) -> datetime:
    right = "give a time in UTC, as in 2026-11-21T10:42:00Z"
    if type(value) is not str or len(value) > MAX_TIME_CHARACTERS:
        raise _wrong(value, right)
    try:
        time = datetime.fromisoformat(value)
        in_utc = time.astimezone(UTC)
    except OverflowError:
        raise _wrong(value, "it is not a valid time") from None
    except ValueError:
        raise _wrong(value, right) from None
    if time.tzinfo is None:
        raise _wrong(value, f"it names no time zone; {right}")
    return in_utc


def _one_of(kind: type[StrEnum]) -> Check:
    known = {member.value: member for member in kind}

    def check(value: Any) -> StrEnum:
        if type(value) is not str or value not in known:
            raise _wrong(value, f"give one of {', '.join(known)}")
        return known[value]

    return check


def _list(inner: Check, longest: int) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong(value, "give a list")
        if len(value) > longest:
            raise ProbeLineError("", f"{len(value)} entries are too many; give at most {longest}")
        made = []
        for number, each in enumerate(value):
            try:
                made.append(inner(each))
            except ProbeLineError as error:
                raise error.inside(f"[{number}]") from None
        return tuple(made)

    return check


def _map(key: Check, inner: Check, longest: int) -> Check:
    def check(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, "give an object")
        if len(value) > longest:
            raise ProbeLineError("", f"{len(value)} entries are too many; give at most {longest}")
        made = {}
        for name in sorted(value):
            known = key(name)
            try:
                made[known] = inner(value[name])
            except ProbeLineError as error:
                raise error.inside(known) from None
        return made

    return check


def _object(kind: type[Any]) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (camel(field.name), field.name, _check_of(hints[field.name]), _is_required(field))
        for field in dataclasses.fields(kind)
    ]

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, "give an object")
        made = {}
        for key, name, inner, required in fields:
            if key in value:
                try:
                    made[name] = inner(value[key])
                except ProbeLineError as error:
                    raise error.inside(key) from None
            elif required:
                raise ProbeLineError(key, "is missing; every line needs it")
        return kind(**made)

    return check


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _wrong(value: object, right: str) -> ProbeLineError:
    return ProbeLineError("", f"{_shown(value)} is not allowed; {right}")


def _shown(value: object) -> str:
    """The value as an error may carry it: ASCII, short, and a list or object only by its kind."""
    if isinstance(value, list | dict):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."


_SNAPSHOT = _check_of(Snapshot)


# --- the line as a whole ---------------------------------------------------------------------------------------------
def _check_whole(snapshot: Snapshot) -> None:
    parts = sum(len(device.partitions) for device in snapshot.devices)
    if parts > MAX_LINE_PARTITIONS:
        problem = f"{parts} partitions in all are too many; give at most {MAX_LINE_PARTITIONS}"
        raise ProbeLineError("devices", problem)
    ids: set[str] = set()
    indices: set[tuple[str, int]] = set()
    for number, device in enumerate(snapshot.devices):
        place = f"devices[{number}]"
        if (device.type, device.index) in indices:
            problem = f"{device.index} is another device's; give each device of a type its own"
            raise ProbeLineError(f"{place}.index", problem)
        indices.add((device.type, device.index))
        for where, id_ in ((f"{place}.id", device.id), *_partition_ids(place, snapshot, number)):
            if id_ in ids:
                raise ProbeLineError(where, f"{_shown(id_)} is already taken in this line; give each its own id")
            ids.add(id_)
        _check_own(place, device)


def _check_own(place: str, device: DeviceFact) -> None:
    """Check a device and each of its partitions by themselves: each is a device of a ResourceSlice."""
    for name, value in device.extra.items():
        where = f"{place}.extra.{name}"
        if name in COMMON:
            raise ProbeLineError(where, "has a field of its own, or is not for a probe to say; give another name")
        if sum(getattr(value, field.name) is not None for field in dataclasses.fields(Attribute)) != 1:
            raise ProbeLineError(where, "give exactly one of string, int, bool and version")
    for what, capacity in ((place, device.capacity), *((f"{place}.partitions", p.capacity) for p in device.partitions)):
        if (count := len(device.extra) + len(capacity)) > MAX_OWN:
            problem = f"{count} entries with those of extra are too many; give at most {MAX_OWN} of both together"
            raise ProbeLineError(f"{what}.capacity", problem)


def _partition_ids(place: str, snapshot: Snapshot, number: int) -> Iterable[tuple[str, str]]:
    partitions = snapshot.devices[number].partitions
    return ((f"{place}.partitions[{index}].id", partition.id) for index, partition in enumerate(partitions))
