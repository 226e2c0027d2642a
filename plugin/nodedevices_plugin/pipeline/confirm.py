"""Devices that people repaired, removed, or take out of the machine.

Confirmations stand on the object (nodedevices_common.confirming): devices that were repaired or removed. Each entry is
acted on once: entries that the value had before stay as they are.

Which devices can be taken out is the contract for swapping hardware and for pools that attach it. A device is drained
when people took it out of service (`spec.unschedulable`), no container holds it or may be about to, and no process is
seen on it: its probe is asked for processes and memory as long as anything is out of service. Where the driver does not
say either, holders alone count. Open files are not looked at: those of other containers are seen in the node's pid
namespace alone. A drained device that its driver no longer lists was removed on purpose: it leaves the node like one of
which a person confirmed that, without a fault; not while its probe sees no device at all, which says nothing of it. One
that goes before it is drained is `Missing`. It is drained no longer when the entry ends, or when something uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import datetime

from msgspec import Struct
from nodedevices_common.confirming import CONFIG_ACCEPTED, EVERY, OF_NODE, RECOVERED, REMOVED, read

from nodedevices_plugin.model import Cordon, Inventory, device_names, devices_by_id
from nodedevices_plugin.pipeline.idle import has_context
from nodedevices_plugin.pipeline.world import Inputs, World


class Confirm(Struct, frozen=True, kw_only=True):
    value: str
    recovered: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    all_removed: bool = False  # all that is not here, also what the node remembers of earlier (pipeline.expected)
    understood: tuple[str, ...] = ()  # the entries that are acted on
    problems: tuple[str, ...] = ()


def read_confirm(world: World, inputs: Inputs) -> Confirm:
    """Return what the entries say that are new since the value that was acted on last."""
    done = world.state.confirmed
    ready = inputs.snapshot is not None or world.known.inventory.line_monotonic is not None
    if inputs.seen is None or not inputs.seen.exists or inputs.seen.confirm == done or not ready:
        return Confirm(value=done, problems=world.confirm_problems)
    value = inputs.seen.confirm
    known = devices_by_id(world.known.inventory).keys()
    by_name = {name: id_ for id_, name in device_names(world.known.inventory).items()}
    missing = {device.fact.id for device in world.known.inventory.devices if not device.present}
    confirmed: dict[str, set[str]] = {RECOVERED.answer: set(), REMOVED.answer: set()}
    entries, problems = read(value, OF_NODE, done=done)
    understood = []
    for entry in entries:
        device, outcome = entry.subject, entry.answer
        if outcome == CONFIG_ACCEPTED.answer:
            continue  # this is for the operator
        if device == EVERY and world.lost:
            problems.append(f"{entry}: no device is seen, so it is unknown which devices were removed: give {REMOVED}")
        elif device != EVERY and device not in known:
            hint = f"give its id, {by_name[device]}" if device in by_name else "this node has no such device"
            problems.append(f"{device[:96]}: {hint}")
        else:
            confirmed[outcome] |= missing if device == EVERY else {device}
            understood.append(entry)
    return Confirm(
        value=value,
        recovered=frozenset(confirmed[RECOVERED.answer]),
        removed=frozenset(confirmed[REMOVED.answer]),
        all_removed=any(entry.subject == EVERY for entry in understood),
        understood=tuple(map(str, understood)),
        problems=tuple(problems),
    )


# --- what can be taken out -------------------------------------------------------------------------------------------
SETTLED_SECONDS = 15.0  # a probe that was asked for processes has answered, or counts as silent (probe_set)


def asked_since(before: Mapping[str, float], cordons: Iterable[Cordon], monotonic: float) -> dict[str, float]:
    """Return since when (time.monotonic()) this agent knows of each of these entries, and has had its probe asked. The
    entry's own time is a person's, and may be from before a restart."""
    return {cordon.id: before.get(cordon.id, monotonic) for cordon in cordons}


def follow_drained(
    before: Mapping[str, datetime],
    inventory: Inventory,
    *,
    held: Set[str] | None,
    asked: Mapping[str, float],
    now: datetime,
    monotonic: float,
) -> dict[str, datetime]:
    """Return the drained devices by id, with since when; one that is gone since stays while its entry does. `held`:
    devices that are held, wholly or in part, or may be; None: not known, and nothing changes. `asked`: the entries that
    hold, as `asked_since` has them."""
    listed = {device.fact.id: device for device in inventory.devices}
    found = {id_: since for id_, since in before.items() if id_ in asked and id_ not in listed}
    for id_ in asked.keys() & listed.keys():
        device = listed[id_]
        if held is None or not device.present:
            if id_ in before:
                found[id_] = before[id_]
            continue
        settled = monotonic - asked[id_] >= SETTLED_SECONDS
        if id_ not in held and (settled or id_ in before) and not has_context(device.fact.readings):
            found[id_] = before.get(id_, now)
    return found
