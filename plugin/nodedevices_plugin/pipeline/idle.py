"""Tells of each held device whether its container uses it (section `idle` of a policy).

Three words, and never one number: NeverUsed (no process was seen since the container has the device), Idle (nothing was
computed for afterSeconds, after it was used or with a process there), MemoryOnly (the same, memory is in use, and no
process can be seen: of a newer driver of NVIDIA's a probe outside the node's pid namespace sees none). They are shown
when every reading for afterSeconds was 0 %; one above ends it at once, and so does silence: what happened meanwhile is
not known. After a restart of the agent it is counted anew; that no process was seen before is in the state file, of the
same pod: one that was made anew under its name is another one, and where the kubelet's checkpoint does not tell them
apart, any may be.

Unknown, never idle, where readings are of more than one container: partitions, shares, several holders. And where the
driver has not said for afterSeconds how busy the device is. A reading is about one second at most (nvml.h
nvmlUtilization_t), and taken every few: a program that never computes for longer than that can be missed. A job that is
stuck in a kernel (NCCL waits so) computes, by all that the driver says.

A word stays until the device is in use, so that each such period is written once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace
from nodedevices_common.grouping import grouped
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import Holder, Holdings, Inventory, InventoryDevice, facts_by_id, is_core, physical_id
from nodedevices_plugin.model.holders import (
    IDLE,
    MEMORY_ONLY,
    NEVER_USED,
    UNKNOWN,
    DeviceUse,
    HeldSeconds,
    Tenure,
    Uses,
)

GAP_SECONDS = 15.0  # as of a probe that counts as silent (probe_set)
SETTLED_SECONDS = 10.0  # more than between two readings of a probe: a line may repeat a reading of the holder before
# More than a driver keeps for itself on an unused GPU (a few MiB), and less than any context of CUDA (from 100 MiB on).
CONTEXT_BYTES = 64 << 20
MAX_NAMESPACES = 256
_GPU = "gpu"


def follow(
    before: Uses | None,
    inventory: Inventory,
    holdings: Holdings,
    *,
    saved: Mapping[str, Tenure],
    lines: Mapping[str, float | None],
    after_seconds: int | None,
    now: datetime,
    monotonic: float,
) -> Uses | None:
    """Return how the held devices are used; None: no policy wants to know, or the holders are not known yet.

    `before` None: of this step on. `holdings`: by our own ids. `saved`: the tenures of the state file. `lines`: by
    probe when its last line came; time.monotonic().
    """
    if after_seconds is None or not holdings.were_known:
        return None
    held = _holders(inventory, holdings)
    passed = None if before is None else monotonic - before.at
    devices: dict[str, DeviceUse] = {}
    for device in inventory.devices:
        holders = held.get(device.fact.id)
        if not holders or not _judged(device):
            continue
        known = before.devices.get(device.fact.id) if before is not None else None
        holder = _only(device, holders)
        if holder is None:
            devices[device.fact.id] = DeviceUse(word=UNKNOWN, began=known.began if known is not None else monotonic)
            continue
        age = (now - holder.since).total_seconds()
        tenure = _tenure(holder, known, saved.get(device.fact.id), passed=passed, age=age)
        if known is None or known.tenure is None or known.tenure.since != tenure.since:
            known = DeviceUse(began=monotonic)
        use = _read(replace(known, tenure=tenure), device.fact.readings, lines.get(device.probe))
        devices[device.fact.id] = _worded(use, device.fact.readings, after_seconds, now, monotonic)
    return Uses(devices=devices, namespaces=_seconds(before, devices, held, monotonic), at=monotonic)


def tenures(uses: Uses | None, saved: Mapping[str, Tenure], after_seconds: int | None) -> Mapping[str, Tenure]:
    """Return what the state file keeps: `saved` while the holders are not known yet."""
    if uses is None:
        return {} if after_seconds is None else saved
    return {id_: use.tenure for id_, use in uses.devices.items() if use.tenure is not None}


def clock_set(uses: Uses | None, by: timedelta, *, booted: datetime, until: datetime) -> Uses | None:
    """Return the same after the wall clock was set. A holder's own time is not moved: it tells it from the next one.
    `booted`, `until`: the machine's boot and now, by the clock as it was; what is not between is of another clock."""
    if uses is None:
        return None

    def moved(when: datetime) -> datetime:
        return when + by if booted <= when <= until else when

    devices = {
        id_: replace(
            use,
            since=None if use.since is None else moved(use.since),
            tenure=None if use.tenure is None else dataclasses.replace(use.tenure, began=moved(use.tenure.began)),
        )
        for id_, use in uses.devices.items()
    }
    return replace(uses, devices=devices)


def _judged(device: InventoryDevice) -> bool:
    """False for what has no such readings: a NIC is not unknown, it is no device that computes."""
    readings = device.fact.readings
    return device.fact.type == _GPU or (readings.utilization_percent, readings.processes) != (None, None)


def _holders(inventory: Inventory, holdings: Holdings) -> dict[str, list[Holder]]:
    devices = facts_by_id(inventory)
    return grouped(
        (id_, holder)
        for holder in holdings.holders
        for id_ in dict.fromkeys(
            devices[part].id for part in map(physical_id, (*holder.ids, *holder.also)) if part in devices
        )
    )


def _only(device: InventoryDevice, holders: Sequence[Holder]) -> Holder | None:
    """Return the container that has the whole device alone, if one has."""
    own = device.fact.id
    mine = [id_ for id_ in holders[0].ids if physical_id(id_) == own]
    whole = len(holders) == 1 and bool(mine) and all(id_ == own or is_core(id_) for id_ in mine)
    return holders[0] if whole and not device.fact.partitions else None


def _tenure(
    holder: Holder, known: DeviceUse | None, saved: Tenure | None, *, passed: float | None, age: float
) -> Tenure:
    """`passed`: seconds since the holders were looked at before; None: they were not. `age`: seconds of this one."""
    name = "/".join((holder.namespace, holder.pod, holder.container, holder.resource or holder.claim or ""))
    if known is not None and known.tenure is not None:
        if (known.tenure.holder, known.tenure.since) == (name, holder.since):
            return dataclasses.replace(known.tenure, uid=holder.uid or known.tenure.uid)
    elif passed is None and saved is not None and saved.holder == name and holder.uid and saved.uid == holder.uid:
        return dataclasses.replace(saved, since=holder.since)
    whole = passed is not None and age <= passed + GAP_SECONDS
    return Tenure(holder=name, since=holder.since, began=holder.since, whole=whole, uid=holder.uid)


def _read(use: DeviceUse, readings: Readings, line: float | None) -> DeviceUse:
    """Return what a new line adds; the same where there is none."""
    if line is None or line == use.line or use.tenure is None:
        return use
    if readings.utilization_percent is None:
        return replace(use, line=line)
    busy = readings.utilization_percent > 0
    begins = (
        line - use.began >= SETTLED_SECONDS and not use.tenure.used and (busy or has_context(readings))
    )  # the first use of it
    gap = use.read is None or line - use.read > GAP_SECONDS
    quiet = None if busy else line if gap or begins or use.quiet is None else use.quiet
    tenure = dataclasses.replace(use.tenure, used=True) if begins else use.tenure
    return replace(use, tenure=tenure, line=line, read=line, quiet=quiet)


def has_context(readings: Readings) -> bool:
    """True when a program is seen on it, by its process or by its memory."""
    return bool(readings.processes) or (readings.memory_allocated_bytes or 0) >= CONTEXT_BYTES


def _worded(use: DeviceUse, readings: Readings, after_seconds: int, now: datetime, monotonic: float) -> DeviceUse:
    last = use.began if use.read is None else use.read
    if monotonic - last >= after_seconds:
        return replace(use, word=UNKNOWN, since=None, quiet=None)
    quiet = use.quiet if monotonic - last <= GAP_SECONDS else None
    if use.tenure is None or quiet is None or monotonic - quiet < after_seconds:
        return replace(use, word="", since=None)
    if use.unused:
        return use
    if use.tenure.whole and not use.tenure.used:
        return replace(use, word=NEVER_USED, since=use.tenure.began)
    memory_alone = not readings.processes and has_context(readings)
    return replace(use, word=MEMORY_ONLY if memory_alone else IDLE, since=now - timedelta(seconds=monotonic - quiet))


def _seconds(
    before: Uses | None, devices: Mapping[str, DeviceUse], held: Mapping[str, Sequence[Holder]], monotonic: float
) -> dict[str, HeldSeconds]:
    """Return the sums of before, with the time since then. A period counts as a whole when it is shown."""
    if before is None:
        return {}
    found = dict(before.namespaces)
    passed = monotonic - before.at
    for id_, use in devices.items():
        earlier = before.devices.get(id_)
        if earlier is None:
            continue
        unused = 0.0
        if use.unused and use.quiet is not None:
            unused = passed if earlier.unused else monotonic - use.quiet
        for namespace in _namespaces(held[id_]):
            known = found.get(namespace, HeldSeconds())
            found[namespace] = HeldSeconds(held=known.held + passed, unused=known.unused + unused)
    here = {namespace for id_ in devices for namespace in _namespaces(held[id_])}
    gone = [namespace for namespace in found if namespace not in here]
    for namespace in gone[: max(0, len(found) - MAX_NAMESPACES)]:
        del found[namespace]
    return found


def _namespaces(holders: Iterable[Holder]) -> set[str]:
    return {holder.namespace for holder in holders}
