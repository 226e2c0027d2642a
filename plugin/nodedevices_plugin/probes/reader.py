"""The agent's side of a probe's line: bytes in, a frozen Snapshot out, or an error that names the place.

A line is hostile input: a probe may be broken, old, new or taken over. Nothing passes that is longer than the cap, not
UTF-8 JSON, out of the bounds of `protocol`, ambiguous (two devices with one id) or of another protocol. Keys that this
agent does not know are ignored, since a newer probe of the same protocol may say more. Nothing here does I/O.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from nodedevices_plugin.probes.protocol import (
    DEVICE_ID,
    DEVICE_NODE,
    MAX_LINE_BYTES,
    PLAIN_TEXT,
    PROTOCOL,
    WORD,
    Snapshot,
    camel,
)

_ADAPTER: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
_SHOWN_CHARACTERS = 60
_RIGHT_TEXT = {
    PLAIN_TEXT: "give text without control or invisible characters",
    DEVICE_ID: "give 1 to 96 of A-Z a-z 0-9 . _ : -",
    WORD: "give 1 to 64 letters, digits and hyphens",
    DEVICE_NODE: "give a path such as /dev/nvidia0",
}


class ProbeLineError(Exception):
    """A line that was refused. `place` is a path such as `devices[3].memoryBytes`, "" for the line as a whole."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"probe line: {place}: {problem}" if place else f"probe line: {problem}")


def parse_line(raw: bytes) -> Snapshot:
    """The snapshot in one line. Raises ProbeLineError; never anything else, whatever the bytes are."""
    if len(raw) > MAX_LINE_BYTES:
        raise ProbeLineError("", f"{len(raw)} bytes are too many; at most {MAX_LINE_BYTES} are read")
    try:
        snapshot = _ADAPTER.validate_json(raw, strict=True)
    except ValidationError as error:
        _check_protocol(raw)
        raise _explained(error) from None
    if snapshot.protocol != PROTOCOL:
        raise _other_protocol(snapshot.protocol)
    _check_unambiguous(snapshot)
    return snapshot


def line_schema() -> dict[str, Any]:
    """The published JSON Schema of a line, generated from the types in `protocol`."""
    schema = _without_titles(_ADAPTER.json_schema(by_alias=True))
    schema["properties"][camel("protocol")] = {"const": PROTOCOL}
    schema["required"] = ["protocol", *schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://nodedevices.io/schemas/probe-line.v1alpha1.json",
        **schema,
        "title": "NodeDevices probe line",
    }


def _without_titles(schema: Any) -> Any:
    """pydantic's titles repeat the keys."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(each) for each in schema] if isinstance(schema, list) else schema


def _check_protocol(raw: bytes) -> None:
    """Another protocol has other rules: saying so helps more than saying which of ours it breaks."""
    try:
        line = from_json(raw)
    except ValueError:
        return
    if isinstance(line, dict) and isinstance(line.get("protocol"), str) and line["protocol"] != PROTOCOL:
        raise _other_protocol(line["protocol"])


def _other_protocol(found: str) -> ProbeLineError:
    return ProbeLineError("protocol", f"{_shown(found)} is not what this agent speaks; give {_shown(PROTOCOL)}")


def _check_unambiguous(snapshot: Snapshot) -> None:
    ids: set[str] = set()
    indices: set[int] = set()
    for number, device in enumerate(snapshot.devices):
        place = f"devices[{number}]"
        if device.index in indices:
            raise ProbeLineError(f"{place}.index", f"{device.index} is another device's; give each device its own")
        indices.add(device.index)
        for where, each in ((f"{place}.id", device.id), *_partition_ids(place, snapshot, number)):
            if each in ids:
                raise ProbeLineError(where, f"{_shown(each)} is already taken in this line; give each its own id")
            ids.add(each)
    times: list[tuple[str, datetime]] = [("time", snapshot.time)]
    times += [(f"events[{number}].time", event.time) for number, event in enumerate(snapshot.events)]
    for where, time in times:
        if time.tzinfo is None:
            raise ProbeLineError(where, f"{time.isoformat()} names no time zone; give UTC, as in 2026-11-21T10:42:00Z")
        try:
            time.astimezone(UTC)
        except OverflowError:
            raise ProbeLineError(where, f"{time.isoformat()} is not a time on this clock") from None


def _partition_ids(place: str, snapshot: Snapshot, number: int) -> list[tuple[str, str]]:
    partitions = snapshot.devices[number].partitions
    return [(f"{place}.partitions[{index}].id", partition.id) for index, partition in enumerate(partitions)]


def _explained(error: ValidationError) -> ProbeLineError:
    first = error.errors(include_url=False)[0]
    place = ""
    for part in first["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    if first["type"] == "missing":
        return ProbeLineError(place, "is missing; every line needs it")
    problem = first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "string_pattern_mismatch":
        problem = _RIGHT_TEXT.get(first["ctx"]["pattern"], problem)
    if not place:
        return ProbeLineError("", problem)
    return ProbeLineError(place, f"{_shown(first['input'])} is not allowed; {problem}")


def _shown(value: object) -> str:
    """The value as an error may carry it: ASCII, short, and a list or object only by its kind."""
    if isinstance(value, list | tuple | dict):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."
