"""The agent's facts about a node, read back from its NodeDevices: the devices, and who holds what.

What a status does not have is absent: device nodes, ids of a holder beyond the eighth. So nothing is concluded from
these facts before they have led to what the node shows (ids.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from nodedevices_api.conditions import HOLDERS_KNOWN, MISSING
from nodedevices_common.devices import grouped
from nodedevices_common.quantity import QUANTITY_PATTERN
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_operator.records.names import is_pod
from nodedevices_plugin.model import DRA_DRIVER, Holder, HoldersState, Holdings, Inventory, InventoryDevice, split
from nodedevices_plugin.offering.occupancy import HeldId
from nodedevices_probe.protocol import Attribute, DeviceFact, Partition

_SINCE = datetime(1970, 1, 1, tzinfo=UTC)  # times decide nothing here


def inventory(status: Raw) -> Inventory:
    return Inventory(devices=tuple(_device(raw, parts) for raw, *parts in grouped(status.get("devices"))))


def _device(raw: Raw, parts: Sequence[Raw]) -> InventoryDevice:
    attributes = mapping(raw.get("attributes"))
    fact = DeviceFact(
        id=text(raw.get("id")),
        name=text(raw.get("name")) or None,
        index=number(raw.get("index")) or 0,
        minor=number(attributes.get("minor")),
        type=text(raw.get("type")),
        vendor=text(attributes.get("vendor")),
        uuid=text(attributes.get("uuid")),
        product_name=text(attributes.get("productName")),
        brand=text(attributes.get("brand")),
        architecture=text(attributes.get("architecture")),
        firmware=text(attributes.get("firmware")),
        pci_bus_id=text(attributes.get("pciBusID")),
        pcie_root=text(attributes.get("pcieRoot")),
        numa_node=number(attributes.get("numaNode")),
        extra={name: _attribute(mapping(value)) for name, value in mapping(attributes.get("extra")).items()},
        capacity=_capacity(raw),
        partitions=tuple(map(_partition, parts)),
    )
    health = mapping(raw.get("health"))
    present = health.get("reason") != MISSING or health.get("state") == "Unknown"
    departed = (part for part in parts if present and mapping(part.get("health")).get("reason") == MISSING)
    return InventoryDevice(
        fact=fact,
        present=present,
        last_seen=_SINCE,
        departed_partitions=frozenset(text(part.get("id")) for part in departed),
    )


def _partition(raw: Raw) -> Partition:
    extra = mapping(mapping(raw.get("attributes")).get("extra"))
    return Partition(
        id=text(raw.get("id")),
        name=text(raw.get("name")) or None,
        profile=text(raw.get("profile")),
        index=number(raw.get("index")) or 0,
        gi=number(mapping(extra.get("gi")).get("int")),
        ci=number(mapping(extra.get("ci")).get("int")),
        capacity=_capacity(raw),
    )


def _attribute(raw: Raw) -> Attribute:
    boolean = raw.get("bool")
    return Attribute(
        string=text(raw.get("string")) or None,
        integer=number(raw.get("int")),
        boolean=boolean if isinstance(boolean, bool) else None,
        version=text(raw.get("version")) or None,
    )


def _capacity(raw: Raw) -> dict[str, str]:
    given = mapping(raw.get("capacity")).items()
    return {name: value for name, value in given if re.fullmatch(QUANTITY_PATTERN, text(value))}


# --- holders ---------------------------------------------------------------------------------------------------------
def held(status: Raw) -> tuple[HeldId, ...]:
    """Every id that is held, as far as the status names it."""
    found = (
        HeldId(
            resource=text(holder.get("resource")) or None,
            driver=DRA_DRIVER if holder.get("claim") else "",  # another's claims are where this agent observes
            claim=f"{holder['namespace']}/{text(holder.get('claim'))}" if holder.get("claim") else "",
            id=id_,
            device_id=text(device.get("id")),
            partition_id=text(part.get("id")) if part is not device else None,
            replica=split(id_)[1],
            holder=f"{holder['namespace']}/{holder['pod']}",
        )
        for device, part, holder in _holders(status)
        for id_ in _ids(part, holder)
    )
    return tuple(dict.fromkeys(found))


def _holders(status: Raw) -> Iterator[tuple[Raw, Raw, Raw]]:
    """Yield each holder, with the device, and with what of it is held: the same, or a partition."""
    for parts in grouped(status.get("devices")):
        for part in parts:
            for holder in mappings(part.get("holders")):
                if is_pod(text(holder.get("namespace")), text(holder.get("pod"))):
                    yield parts[0], part, holder


def _ids(part: Raw, holder: Raw) -> list[str]:
    """Return what the holder has of the device or partition: all of it, or shares. What it has of others is theirs."""
    held, given = text(part.get("id")), holder.get("ids")
    shares = [share for share in given if isinstance(share, str)] if isinstance(given, list) else []
    return [share for share in shares if split(share)[0] == held] if shares else [held]


def holdings(status: Raw) -> Holdings:
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for _, part, holder in _holders(status):
        key = (holder["namespace"], holder["pod"], text(holder.get("container")), text(holder.get("resource")))
        found.setdefault(key, []).extend(_ids(part, holder))
    known = next((it for it in mappings(status.get("conditions")) if it.get("type") == HOLDERS_KNOWN), {})
    synced = known.get("status") == "True"
    return Holdings(
        state=HoldersState.SYNCED if synced else HoldersState.UNAVAILABLE,
        message="" if synced else text(known.get("message")),
        holders=tuple(
            Holder(
                namespace=namespace,
                pod=pod,
                container=container,
                resource=resource or None,
                ids=tuple(sorted(ids)),
                since=_SINCE,
            )
            for (namespace, pod, container, resource), ids in sorted(found.items())
            if ids
        ),
    )
