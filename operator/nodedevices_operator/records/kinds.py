"""The kinds that are watched, and how each becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from nodedevices_operator.records.names import NODE_DEVICES, NODES, POLICIES
from nodedevices_operator.records.objects import (
    NodeDevicesRecord,
    NodeRecord,
    PolicyRecord,
    node_devices_record,
    node_record,
    policy_record,
)


class Kind(Enum):
    """The watched kinds; the value is the collection's path."""

    NODE_DEVICES = NODE_DEVICES
    NODE = NODES
    POLICY = POLICIES


Record = NodeDevicesRecord | NodeRecord | PolicyRecord
_READERS: Mapping[Kind, Callable[[Mapping[str, Any]], Record]] = {
    Kind.NODE_DEVICES: node_devices_record,
    Kind.NODE: node_record,
    Kind.POLICY: policy_record,
}


def read(kind: Kind, raw: Mapping[str, Any], before: Record | None = None) -> Record:
    """Return the record of a raw object. `before`: an earlier one of it, of which what has not changed is kept."""
    if kind is Kind.NODE_DEVICES and isinstance(before, NodeDevicesRecord):
        return node_devices_record(raw, before)
    return _READERS[kind](raw)
