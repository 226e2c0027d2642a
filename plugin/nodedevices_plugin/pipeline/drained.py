"""Tells which devices can be taken out of the machine: the contract for swapping hardware and for pools that attach it.

A device is drained when people took it out of service (`spec.unschedulable`), no container holds it or may be about to,
and no process is seen on it: its probe is asked for processes and memory as long as anything is out of service. Where
the driver does not say either, holders alone count. Open files are not looked at: those of other containers are seen in
the node's pid namespace alone.

A drained device that its driver no longer lists was removed on purpose: it leaves the node like one of which a person
confirmed that, without a fault; not while its probe sees no device at all, which says nothing of it. One that goes
before it is drained is `Missing`. It is drained no longer when the entry ends, or when something uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import datetime

from nodedevices_plugin.model import Cordon, Inventory
from nodedevices_plugin.pipeline.idle import has_context

SETTLED_SECONDS = 15.0  # a probe that was asked for processes has answered, or counts as silent (probe_set)


def asked_since(
    before: Mapping[str, float], cordons: Iterable[Cordon], *, now: datetime, monotonic: float
) -> dict[str, float]:
    """Return since when (time.monotonic()) this agent knows of each entry, and has had its probe asked. The entry's own
    time is a person's, and may be from before a restart."""
    return {cordon.id: before.get(cordon.id, monotonic) for cordon in cordons if cordon.holds(now)}


def follow(
    before: Mapping[str, datetime],
    inventory: Inventory,
    cordons: Iterable[Cordon],
    *,
    held: Set[str] | None,
    asked: Mapping[str, float],
    now: datetime,
    monotonic: float,
) -> dict[str, datetime]:
    """Return the drained devices by id, with since when; one that is gone since stays while its entry does. `held`:
    devices that are held, wholly or in part, or may be; None: not known, and nothing changes. `asked`: as
    `asked_since` has it."""
    entries = {cordon.id for cordon in cordons if cordon.holds(now)}
    listed = {device.fact.id: device for device in inventory.devices}
    found = {id_: since for id_, since in before.items() if id_ in entries and id_ not in listed}
    for id_ in entries & listed.keys():
        device = listed[id_]
        if held is None or not device.present:
            if id_ in before:
                found[id_] = before[id_]
            continue
        settled = monotonic - asked.get(id_, monotonic) >= SETTLED_SECONDS
        if id_ not in held and (settled or id_ in before) and not has_context(device.fact.readings):
            found[id_] = before.get(id_, now)
    return found
