"""The probes that run, and the devices of those that no longer do.

A probe is known by what is configured of it, `nics=/opt/nic-probe --fast`: with another command it is another probe.
One that is taken away ends at once, and its devices are *retired*, because they cannot vanish with it: pods hold them,
the kubelet may be handing one out at this moment, and a probe that comes in its place may report the same hardware
under another id. Of a retired device always holds:

- A probe of now that reports its id has it from then on, with its faults and holders.
- Until all probes of now have reported, or were waited for, it is offered as that of a silent probe is; from then on,
  or from the next change of probes, it goes to no new pod.
- It stays listed while a container holds it, or may. That no container holds it is certain only after PROVEN_SECONDS:
  an id that the kubelet was handing out when the probe was taken away has appeared in a List by then.
- It stays listed while a fault of it is remembered, so that a probe that is taken away and put back hands out no broken
  device. A person confirms that it is removed, as for one that is missing. Not so what is no hardware of this node
  (Vendor.elsewhere): its probe judges a pool anew.
- While it is listed, what another probe reports or reported at the same place goes to no new pod, nor does it itself.

Resolves `auto` to the probes of this node.

These are the probes whose hardware was found, those with devices that a file describes, and those that `auto` started
before: a probe is never removed automatically, so that hardware that vanished is Missing, and not forgotten. After a
restart that holds for probes with devices in the state file; another probe is started again with its hardware.

Without any of these `auto` is the probe that runs without `auto`: it knows hardware that no folder of the kernel shows,
and reports when there is none. It stays once it has devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_common.options import Value
from nodedevices_common.text import listing
from nodedevices_probe.protocol import MAX_MESSAGE, DeviceFact, Problem, text
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.health.rules import SILENCE_SECONDS
from nodedevices_plugin.model import Inventory, InventoryDevice, Verdict, device_names
from nodedevices_plugin.pipeline import inventory as stage_inventory
from nodedevices_plugin.pipeline.state import State, restored_devices
from nodedevices_plugin.settings.probes import (
    AUTO,
    AUTOMATIC,
    DEFAULT,
    ProbeSpec,
    configured,
    expanded,
    lists_devices,
    missing,
    name_of,
)
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

CODE = "ProbeRemoved"  # of a problem
REMOVED = "its probe is no longer configured"
DOUBTFUL = "a removed probe may have reported this device, which is still listed"
PROVEN_SECONDS = SILENCE_SECONDS + 5.0  # five seconds after a retired device has last been offered


class Retired(Struct, frozen=True, kw_only=True):
    """The devices of a probe that was taken away, with what it reported last. `since`: time.monotonic(). `offered`:
    new pods may still get them."""

    inventory: Inventory
    since: float
    offered: bool = True


class ProbeSet(Struct, frozen=True, kw_only=True):
    """`texts`: the probes that run, as configured, the first one first. `auto`: the names of those of them that `auto`
    added. `since`: when each was started, by name."""

    texts: tuple[str, ...]
    auto: tuple[str, ...] = ()
    since: Mapping[str, float] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()

    @property
    def retired_devices(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(sorted(device.fact.id for probe in self.retired for device in probe.inventory.devices))

    def waits(self, parts: Mapping[str, Inventory], monotonic: float) -> bool:
        """True while the first line of one of them may still come."""
        return any(
            part.line_monotonic is None and monotonic < self.since[name] + SILENCE_SECONDS
            for name, part in parts.items()
            if lists_devices(name)
        )


def needed(parts: Mapping[str, Inventory]) -> tuple[str, ...]:
    """Return the probes without which not all devices are known: those that list devices. One that only says something
    of their devices, such as that of the kernel's log, is none; where there is no other, it is all that the node has.
    `parts`: the devices of each probe that runs."""
    return tuple(name for name, part in parts.items() if lists_devices(name) or part.devices) or tuple(parts)


def restored(
    state: State, texts: Sequence[str], *, now: datetime, monotonic: float, auto: tuple[str, ...] = ()
) -> tuple[dict[str, Inventory], ProbeSet]:
    """Return the probes after a start, with their devices from the state file. Where the file does not say which ran,
    the current probes count as the same."""
    devices, before, boot_id = restored_devices(state, now), state.probes, state.boot_id
    first, *_ = names = [name_of(probe) for probe in texts]
    same = {name_of(probe) for probe in texts if probe in before} if before else set(names)
    owners = {
        device.fact.id: device.probe or first
        for device in devices
        if (device.probe or first) in same and device.fact.id not in state.retired_devices
    }
    parts = {
        name: stage_inventory.restore(
            (device for device in devices if owners.get(device.fact.id) == name), boot_id=boot_id
        )
        for name in names
    }
    rest = [device for device in devices if device.fact.id not in owners]
    inventory = stage_inventory.restore(rest, boot_id=boot_id)
    retired = (Retired(inventory=inventory, since=-math.inf, offered=False),) if rest else ()  # never in this run
    return parts, ProbeSet(texts=tuple(texts), auto=auto, since=dict.fromkeys(names, monotonic), retired=retired)


def left_by_others(state: State, probe_set: ProbeSet) -> dict[str, int]:
    """Return by probe that ran before this start and does not run now how many devices the state file has of it: not
    those that were retired before, or missing, which were not offered."""
    running = {name_of(probe) for probe in probe_set.texts}
    before = [device for device in state.devices if device.present and device.fact.id not in state.retired_devices]
    return dict(Counter(device.probe for device in before if device.probe and device.probe not in running))


def changed(
    parts: Mapping[str, Inventory],
    probe_set: ProbeSet,
    texts: tuple[str, ...],
    monotonic: float,
    auto: tuple[str, ...] = (),
) -> tuple[Mapping[str, Inventory], ProbeSet]:
    """Return the probes with these in the place of those that run."""
    if texts == probe_set.texts:
        return parts, probe_set if auto == probe_set.auto else replace(probe_set, auto=auto)
    same = {name_of(probe) for probe in texts if probe in probe_set.texts}
    names = [name_of(probe) for probe in texts]
    gone = tuple(
        Retired(inventory=_left_by(name, part), since=monotonic)
        for name, part in parts.items()
        if name not in same and part.devices
    )
    after = ProbeSet(
        texts=texts,
        auto=auto,
        since={name: probe_set.since[name] if name in same else monotonic for name in names},
        retired=(*(replace(retired, offered=False) for retired in probe_set.retired), *gone),
    )
    return {name: parts[name] if name in same else Inventory() for name in names}, after


def kept(
    probe_set: ProbeSet,
    parts: Mapping[str, Inventory],
    verdicts: Mapping[str, Verdict],
    *,
    held: Set[str] | None,
    now: datetime,
    monotonic: float,
    removed: Set[str] = frozenset(),
    forget_missing_seconds: int | None = None,
    vendors: Vendors = VENDORS,
) -> ProbeSet:
    """Return the probes without the retired devices that nothing keeps any more. `parts`: the reports of the current
    probes. `held`: ids of devices that are held, or may be; None: not known."""
    listed = {id_ for part in parts.values() for device in part.devices for id_ in device.ids}
    waits = probe_set.waits(parts, monotonic)

    def stays(device: InventoryDevice, since: float) -> bool:
        if device.fact.id in listed:
            return False
        if held is None or device.fact.id in held or waits or monotonic < since + PROVEN_SECONDS:
            return True
        faulty = not vendors.vendor_of(device.fact).elsewhere and any(
            verdicts[id_].faults for id_ in device.ids if id_ in verdicts
        )
        return faulty and not stage_inventory.is_released(device, now, removed, forget_missing_seconds)

    left = (
        replace(retired, inventory=replace(retired.inventory, devices=devices), offered=retired.offered and waits)
        for retired in probe_set.retired
        if (
            devices := tuple(
                stage_inventory.without_partitions(device, listed)
                for device in retired.inventory.devices
                if stays(device, retired.since)
            )
        )
    )
    return replace(probe_set, retired=tuple(left))


def withheld(probe_set: ProbeSet, parts: Mapping[str, Inventory]) -> dict[str, str]:
    """Return the ids of devices that go to no new pod, and why: retired ones, and devices that may be one of these
    under another id."""
    retired = [device.fact for probe in probe_set.retired for device in probe.inventory.devices]
    reported = [device.fact for part in parts.values() for device in part.devices if device.present]
    ended = [device.fact for probe in probe_set.retired for device in probe.inventory.devices if not probe.offered]
    pairs = ((old, other) for old in retired for other in (*retired, *reported) if old.id != other.id)
    doubtful = (fact for pair in pairs if _may_be_one(*pair) for fact in pair)
    gone = {fact.id for fact in retired}
    return {fact.id: REMOVED if fact.id in gone else DOUBTFUL for fact in (*ended, *doubtful)}


def problems(probe_set: ProbeSet, ids: Set[str], inventory: Inventory) -> tuple[Problem, ...]:
    """Return for people which devices go to no new pod (`withheld`), and why."""
    names = device_names(inventory)
    retired = {device.fact.id for probe in probe_set.retired for device in probe.inventory.devices}
    said = (
        (ids & retired, f"not offered: {REMOVED}; listed until no pod holds it and it is healthy"),
        (ids - retired, f"not offered: {DOUBTFUL}"),
    )
    return tuple(
        Problem(code=CODE, message=text(f"{listing(sorted(names[id_] for id_ in some))}: {why}", MAX_MESSAGE))
        for some, why in said
        if some
    )


def next_change(probe_set: ProbeSet, monotonic: float) -> float | None:
    """Return when a retired device may be dropped without any news."""
    return min(
        (retired.since + PROVEN_SECONDS for retired in probe_set.retired if retired.since + PROVEN_SECONDS > monotonic),
        default=None,
    )


def clock_set(probe_set: ProbeSet, by: timedelta) -> ProbeSet:
    """Return the probes after the wall clock was set."""
    moved = (
        replace(retired, inventory=stage_inventory.clock_set(retired.inventory, by)) for retired in probe_set.retired
    )
    return replace(probe_set, retired=tuple(moved))


def _left_by(name: str, part: Inventory) -> Inventory:
    """Return a probe's last report, without the parts that only a running probe can report."""
    devices = tuple(dataclasses.replace(device, probe=name) for device in part.devices)
    return replace(part, devices=devices, problems=(), accelerators_on_bus=0)


def _may_be_one(one: DeviceFact, other: DeviceFact) -> bool:
    """True when they are at the same PCI address, or, where one has none, have a device node in common."""
    if one.pci_bus_id and other.pci_bus_id:
        return one.pci_bus_id == other.pci_bus_id
    return not set(one.device_nodes).isdisjoint(other.device_nodes)


def after_restart(state: State, hardware: Set[str] | None) -> frozenset[str]:
    """Return the probes of the state file that ran before and still have to. `hardware`: the hardware that was found;
    None: not known."""
    if hardware is None:
        return frozenset(state.auto_probes)
    first = name_of(state.probes[0]) if state.probes else ""
    owners = {device.probe or first for device in state.devices if device.fact.id not in state.retired_devices}
    return frozenset(name for name in AUTOMATIC if name in owners and name in state.probes)


def started(texts: Sequence[str], before: Collection[str], parts: Mapping[str, Inventory]) -> frozenset[str]:
    """Return the probes that must not be removed automatically: those that `auto` started `before`, and of the running
    ones (`texts`) all with devices, whether `auto` started them or not."""
    return frozenset(before) | {name for name in AUTOMATIC if name in texts and name in parts and parts[name].devices}


def resolve(
    texts: Sequence[str],
    *,
    hardware: Set[str] | None,
    kept: Set[str],
    options: Mapping[str, Value],
    files: Set[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the probes with `auto` resolved, and those of them that are to be remembered as started by it. `files`:
    names of the device files that are there."""
    if AUTO not in texts:
        return tuple(texts), ()
    found = (hardware or frozenset()) | kept | configured(files)
    able = [name for name in found if KINDS[name].requires.keys() <= files]
    run = expanded(texts, [name for name in able if not missing([ProbeSpec(name)], options)])
    remembered = tuple(text for text in run if text not in texts)
    return (run, remembered) if run else (DEFAULT, ())
