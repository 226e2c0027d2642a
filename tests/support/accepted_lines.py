"""Probe lines at the ends of all that the reader accepts, for hypothesis, and the ResourceSlices of what they say."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from nodedevices_api.bounds import ATTRIBUTE_NAME_PATTERN, DEVICE_NAME_PATTERN, SEMANTIC_VERSION_PATTERN
from nodedevices_common.quantity import QUANTITY_PATTERN
from nodedevices_plugin.claims.slices import Published, publish
from nodedevices_plugin.model import DRA_DRIVER, Inventory, OfferedResource, SchedulableId, Unit
from nodedevices_probe import protocol
from nodedevices_probe.protocol import PLAIN_TEXT, Attribute, Bounds, Snapshot

# The ends of what these allow; drawing from the patterns is slow.
DRAWN: dict[str, st.SearchStrategy[str]] = {
    ATTRIBUTE_NAME_PATTERN: st.sampled_from(["a", "_", "Z" * 32, "example.com/slot", f"{'x' * 31}/{'y' * 32}"]),
    SEMANTIC_VERSION_PATTERN: st.sampled_from(["0.0.0", "9999999999.0.1", "1.2.3-rc.1+b-7", f"0.0.1-{'z' * 58}"]),
    QUANTITY_PATTERN: st.sampled_from(["0", "80Gi", f"{'9' * 19}.{'9' * 9}Ei", "0.000000001", "7k"]),
    DEVICE_NAME_PATTERN: st.integers(min_value=0).map(lambda number: f"{number}-{'x' * 63}"[:62] + "y"),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Everything that a type of the protocol allows, the ends of each range among it."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        if kind is datetime:
            return st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
        limits: dict[str, Any] = {}
        for note in notes:
            limits |= note.limits if isinstance(note, Bounds) else {}
        if kind is int:
            return st.sampled_from([limits["ge"], limits["le"]]) | st.integers(limits["ge"], limits["le"])
        if kind is str and limits["pattern"] == PLAIN_TEXT:
            longest = limits["max_length"]
            return st.text(max_size=longest).map(lambda value: protocol.text(value, longest)) | st.just("é" * longest)
        if kind is str:
            longest = limits.get("max_length", 1 << 20)
            if limits["pattern"] in DRAWN:
                return DRAWN[limits["pattern"]]
            return st.from_regex(limits["pattern"], fullmatch=True).filter(lambda value: len(value) <= longest)
        if get_origin(kind) is dict:
            key, value = map(values, get_args(kind))
            return st.dictionaries(key, value, max_size=min(4, limits["max_length"]))
        [inner, _] = get_args(kind)
        return st.lists(values(inner), max_size=min(2, limits["max_length"])).map(tuple)
    if get_origin(hint) in {Union, UnionType}:
        [inner] = [each for each in get_args(hint) if each is not NoneType]
        return st.none() | values(inner)
    if hint is Attribute:
        hints = get_type_hints(Attribute, include_extras=True)
        fields = [each.name for each in dataclasses.fields(Attribute)]
        kinds = {name: kind for name in fields for kind in get_args(hints[name]) if kind is not NoneType}
        return st.sampled_from(sorted(kinds)).flatmap(
            lambda name: values(kinds[name]).map(lambda value: Attribute(**{name: value}))
        )
    if dataclasses.is_dataclass(hint):
        return objects(hint)
    if issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    return st.booleans()


def objects(kind: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    names = [each.name for each in dataclasses.fields(kind) if each.name not in fixed]
    return st.builds(kind, **{name: values(hints[name]) for name in names}, **fixed)


LINES = objects(Snapshot, protocol=st.just(protocol.PROTOCOL))


def published(inventory: Inventory) -> Published:
    """What is in the node's slices: every device, and in the place of one that is cut its partitions."""
    units = [unit for device in inventory.devices for unit in (device.partitions or (Unit(device),))]
    ids = tuple(
        SchedulableId(
            id=unit.id, device_id=unit.device.fact.id, partition_id=unit.partition.id if unit.partition else None
        )
        for unit in units
    )
    resource = OfferedResource(name="nvidia.com/gpu", ids=ids)
    return publish([resource], inventory, {}, driver=DRA_DRIVER)
