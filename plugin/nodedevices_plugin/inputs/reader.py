"""The agent's side of a probe's line: bytes in, a frozen Snapshot out, or an error that names the place.

A line is hostile input: a probe may be broken, old, new or taken over. Nothing passes that is longer than the cap, not
UTF-8 JSON, out of the bounds of `protocol`, ambiguous (two devices with one id) or of another protocol. Keys that this
agent does not know are ignored, since a newer probe of the same protocol may say more.

What a line may cost is bounded too, because the agent serves the kubelet while it reads: values are counted before they
are parsed. The types and bounds in `protocol` are checked by pydantic, of whose errors the first is told. Nothing here
does I/O; `probe_source` calls it on its own thread.
"""

from __future__ import annotations

import dataclasses

from nodedevices_api.bounds import ATTRIBUTE_NAME_PATTERN, DEVICE_NAME_PATTERN, SEMANTIC_VERSION_PATTERN, WORD_PATTERN
from nodedevices_api.errors import ADVICE, place_at
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
    DeviceFact,
    Snapshot,
)
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

MAX_VALUES = 1 << 15  # of one line, keys aside; sixteen GPUs in seven parts each have some 3,000
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
_RIGHT_TIME = "give a time in UTC, as in 2026-11-21T10:42:00Z"
# What has its own field, or is said of a device in a ResourceSlice anyway.
COMMON = frozenset(
    {
        *("type", "uuid", "vendor", "productName", "brand", "architecture", "firmware", "pciBusID", "pcieRoot"),
        *("numaNode", "minor", "index", "profile", "parent"),
    }
)

_SNAPSHOT = TypeAdapter(Snapshot)


class ProbeLineError(InputError):
    """A line that was refused. `place` is a path such as `devices[3].memoryBytes`, "" for the line as a whole."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"probe line: {place}: {problem}" if place else f"probe line: {problem}", place)
        self.problem = problem


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
    try:
        snapshot = _SNAPSHOT.validate_json(raw, strict=True)
    except ValidationError as error:
        raise _refused(error.errors(include_url=False)[0]) from None
    _check_whole(snapshot)
    return snapshot


def _refused(detail: ErrorDetails) -> ProbeLineError:
    """Return the error for what is wrong with one value: its place, the value, what would be right."""
    loc, value, kind, context = detail["loc"], detail["input"], detail["type"], detail.get("ctx", {})
    if kind == "missing":
        problem = "is missing; every line needs it"
    elif kind == "too_long":
        problem = f"{len(value)} entries are too many; give at most {context['max_length']}"
    elif kind == "string_pattern_mismatch":
        problem = _not_allowed(value, _RIGHT_TEXT[context["pattern"]])
    elif kind == "value_error":
        problem = _not_allowed(value, f"{context['error']}; {_RIGHT_TIME}")
    elif kind.startswith("datetime_"):
        problem = _not_allowed(value, _RIGHT_TIME)
    else:
        problem = _not_allowed(value, ADVICE[kind](context) if kind in ADVICE else detail["msg"])
    return ProbeLineError(place_at("", loc[:-2] if loc[-1:] == ("[key]",) else loc), problem)


def _not_allowed(value: object, right: str) -> str:
    return f"{_shown(value)} is not allowed; {right}"


def _shown(value: object) -> str:
    """The value as an error may carry it: ASCII, short, and a list or object only by its kind."""
    if isinstance(value, list | dict):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."


# --- the line as a whole ---------------------------------------------------------------------------------------------
def _check_whole(snapshot: Snapshot) -> None:
    count = sum(len(device.partitions) for device in snapshot.devices)
    if count > MAX_LINE_PARTITIONS:
        problem = f"{count} partitions in all are too many; give at most {MAX_LINE_PARTITIONS}"
        raise ProbeLineError("devices", problem)
    ids: set[str] = set()
    indices: set[tuple[str, int]] = set()
    for number, device in enumerate(snapshot.devices):
        place = f"devices[{number}]"
        if (device.type, device.index) in indices:
            problem = f"{device.index} is another device's; give each device of a type its own"
            raise ProbeLineError(f"{place}.index", problem)
        indices.add((device.type, device.index))
        parts = ((f"{place}.partitions[{index}].id", part.id) for index, part in enumerate(device.partitions))
        for where, id_ in ((f"{place}.id", device.id), *parts):
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
