"""Generic devices: those of a configuration file that this machine has, with ids that are the same after a reboot.

The file may change at any time. Until there was a good one, the probe says nothing, so that devices which the agent
remembers stay; one that cannot be used later changes nothing, and the lines say what is wrong with it.

An id is made of what a device is found by: the path of its first part that is its alone (of the first one in the file,
where all are optional), or a USB device's ids and serial number (its port, where it has none or several have the same).
It does not depend on the entry of the file, so that a device which another entry has now is the same one, and goes to
no second pod.

A device node that one device has alone is no other's: the first one in the file has it, and the rest are a problem
that is named. What does not exist is no device, unless the entry is `required`; what exists and is no device node is a
reason of a device.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from nodedevices_api.bounds import MAX_DEVICE_ID, MAX_DEVICE_NAME, MAX_DEVICES

from nodedevices_probe import generic as names
from nodedevices_probe.files import WatchedFile
from nodedevices_probe.generic.config import BY_MATCH, ConfigEntry, DeviceGroup, GenericConfig, needed, parse, shape
from nodedevices_probe.generic.glob import is_pattern
from nodedevices_probe.generic.search import MAX_NODES, Found, Search, UsbDevice
from nodedevices_probe.loop import NO_DRIVER, SourceFacts
from nodedevices_probe.node.sysfs import PciePlace, System, node_conditions
from nodedevices_probe.protocol import (
    DEVICE_NODE,
    MAX_DEVICE_NODE,
    MAX_MESSAGE,
    MAX_TEXT,
    DeviceFact,
    Driver,
    DriverState,
    Problem,
    Readings,
    is_device_id,
    problem,
    text,
)
from nodedevices_probe.source import SysfsSource, attributes

MAX_PROBLEMS = 16


Member = tuple[int, Found]  # of which part of its group


def sets(group: DeviceGroup, found: Sequence[Sequence[Found]]) -> list[list[Member]]:
    """The devices of a group; `found`: what each of its parts means, in order. A device has a match of every path that
    is not optional, and of those the same one only where the path has a limit; where all are optional, of those that
    are there. USB parts are alternatives: what one of them means is a device."""
    wanted = needed(group)
    if any(not found[number] for number in wanted) or not any(found):
        return []
    every = [(number, hit) for number, hits in enumerate(found) for hit in hits]
    if group.usb:
        first: dict[str, Member] = {}
        for member in every:
            first.setdefault(member[1].id, member)
        return [list(first.values())] if group.together else [[member] for member in first.values()]
    if group.together:
        return [every]
    if group.pair == BY_MATCH:
        return _by_match(group, found)
    room = {number: len(found[number]) * part.limit for number, part in enumerate(group.paths)}
    count = min([max(map(len, found)), *(room[number] for number in wanted)])
    return [
        [(number, found[number][at % len(found[number])]) for number in room if at < room[number]]
        for at in range(count)
    ]


def _by_match(group: DeviceGroup, found: Sequence[Sequence[Found]]) -> list[list[Member]]:
    wild = [number for number, part in enumerate(group.paths) if is_pattern(part.path)]
    by_key = {number: {hit.key: hit for hit in found[number]} for number in wild}
    leading = next(number for number in wild if not group.paths[number].optional)
    result: list[list[Member]] = []
    for key in by_key[leading]:
        members = list[Member]()
        for number, part in enumerate(group.paths):
            if number in by_key:
                hit = by_key[number].get(key)
            else:  # without a wildcard: one file, in as many devices as its limit says
                hit = found[number][0] if found[number] and len(result) < part.limit else None
            if hit is not None:
                members.append((number, hit))
            elif not part.optional:
                break
        else:
            result.append(members)
    return result


@dataclass(slots=True, kw_only=True)
class _Devices(Search):
    """The devices of one pass over the machine, and which nodes they have."""

    owners: dict[str, str] = field(default_factory=dict)  # device node -> id of the device that has it alone
    shared: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)  # ids
    problems: list[Problem] = field(default_factory=list)

    def found_by(self, config: GenericConfig) -> Iterator[DeviceFact]:
        for entry in config.devices:
            for group in entry.groups:
                made = sets(group, [*map(self.of_path, group.paths), *map(self.of_usb, group.usb)])
                if not made and entry.required:
                    made = [[(number, self.literal(group.paths[number])) for number in needed(group)]]
                yield from filter(None, (self._device(entry, group, members) for members in made))

    def _device(self, entry: ConfigEntry, group: DeviceGroup, members: list[Member]) -> DeviceFact | None:
        alone = [member for member in members if _is_alone(group, member[0])]
        wild = [number for number, part in enumerate(group.paths) if is_pattern(part.path)]
        # Where all are optional the same one whichever of them are there.
        lasting = [member for member in members if member[0] in (needed(group) or wild)] or members
        first = next((member for member in lasting if member in alone), lasting[0])[1]
        id_ = _id(group.paths[0].path if group.paths and not needed(group) and not wild else first.id)
        if group.together:
            id_ = _id(f"all:{entry.name}" if len(entry.groups) == 1 else f"all:{entry.name}:{shape(entry, group)}")
        own = [node for _, member in alone for node in member.nodes]
        common = [node for number, member in members if not _is_alone(group, number) for node in member.nodes]
        if not self._may_have(entry, id_, own, common):
            return None
        nodes = list(dict.fromkeys((*own, *common)))
        ok = [node for node in nodes if len(node) <= MAX_DEVICE_NODE and re.fullmatch(DEVICE_NODE, node)]
        part_of = {node: number for number, member in reversed(members) for node in member.nodes}
        plugged = next((member.usb for _, member in members if member.usb), None)
        place = self._place(plugged, ok)
        mounted = {number: member.path for number, member in members if member.path}
        paths = {number: path for number, path in mounted.items() if number in wild}
        error = _device_error(nodes, ok, paths.values())
        ok = ok[:MAX_NODES]
        extra: dict[str, str | int | bool | None] = {
            names.ENTRY: entry.name,
            names.SHAPE: shape(entry, group),
            names.PARTS: ",".join(str(part_of[node]) for node in ok),
            names.MOUNTS: ",".join(map(str, mounted)),
            names.MATCH: text(next((member.key for _, member in members if member.key), "")),
            names.SERIAL: plugged.serial if plugged else "",
            names.PORT: plugged.port if plugged else "",
            **{names.mount_of(number): path for number, path in paths.items() if len(path) <= MAX_TEXT},
            names.EXCLUSIVE: len([node for node in ok if node in own]),
        }
        return DeviceFact(
            id=id_,
            name=_name(entry, first),
            index=0,
            type=names.TYPE,
            vendor=names.VENDOR,
            product_name=plugged.name if plugged else "",
            numa_node=place.numa_node,
            pcie_root=place.root,
            extra=attributes(extra),
            device_nodes=tuple(ok),
            readings=Readings(error=error, conditions=node_conditions(self.roots, ok)),
        )

    def _may_have(self, entry: ConfigEntry, id_: str, own: Iterable[str], common: Iterable[str]) -> bool:
        """True when a device may have these nodes, which are then its own. A node is known by its number, since several
        names may mean one."""
        if id_ in self.taken:
            self._note(f"{entry.name}: {id_} is in the file twice; the first entry has it")
            return False
        alone = {self.roots.number_of(node) or node: node for node in own}
        shared = {self.roots.number_of(node) or node: node for node in common}
        clash = next((key for key in (*alone, *shared) if key in self.owners), None)
        clash = clash or next((key for key in alone if key in self.shared), None)
        if clash is not None:
            node, other = (alone | shared)[clash], self.owners.get(clash) or self.shared[clash]
            self._note(f"{entry.name}: {node} is the device {other}'s already; give both a count, or one a limit")
            return False
        self.taken.add(id_)
        self.owners |= dict.fromkeys(alone, id_)
        self.shared |= dict.fromkeys(shared, id_)
        return True

    def _note(self, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem("UsedTwice", message))

    def _place(self, plugged: UsbDevice | None, nodes: Iterable[str]) -> PciePlace:
        """Return the place of its USB controller, or of the first node whose hardware is on PCIe."""
        if plugged is not None and plugged.pci_bus_id:
            return self.system.place(plugged.pci_bus_id)
        for node in nodes:
            number = self.roots.number_of(node)
            if number and (bus_id := self.system.pci_device_of(f"sys/dev/{number}")):
                return self.system.place(bus_id)
        return PciePlace(path=())


def devices(config: GenericConfig, system: System) -> tuple[tuple[DeviceFact, ...], tuple[Problem, ...]]:
    """Return the devices of the configuration that are here, in the file's order, and what is wrong with it on this
    machine."""
    made = _Devices(system=system, roots=system.roots)
    found = tuple(islice(made.found_by(config), MAX_DEVICES + 1))
    if len(found) > MAX_DEVICES:
        message = f"more than {MAX_DEVICES} devices match; only the first {MAX_DEVICES} are reported"
        made.problems.append(Problem(code="TooManyDevices", message=message))
    return (
        tuple(replace(device, index=index) for index, device in enumerate(found[:MAX_DEVICES])),
        tuple(made.problems),
    )


def _device_error(nodes: Sequence[str], allowed: Sequence[str], paths: Iterable[str]) -> str | None:
    """Return why a container cannot be given the device; None: it can. `allowed`: the nodes that it can be given;
    `paths`: what wildcards have found to mount."""
    if len(allowed) > MAX_NODES:
        return f"{len(allowed)} device nodes; a device can have at most {MAX_NODES}"
    if odd := [node for node in nodes if node not in allowed]:
        return text(f"{odd[0]}: a device node of this name cannot be given to a container", MAX_MESSAGE)
    if too_long := [path for path in paths if len(path) > MAX_TEXT]:
        return f"{too_long[0]}: only paths of at most {MAX_TEXT} characters can be mounted by a wildcard"
    return None


def _is_alone(group: DeviceGroup, part: int) -> bool:
    """True when what a part means is one device's, and one pod's at a time."""
    return group.count == 1 and (not group.paths or group.paths[part].limit == 1)


def _id(found_by: str) -> str:
    """`/dev/net/tun` -> dev-net-tun; with a hash where that says less than it should."""
    plain = found_by.removeprefix("/").replace("/", "-")
    same = re.fullmatch(r"/[A-Za-z0-9._/]+|[A-Za-z0-9][A-Za-z0-9._:-]*", found_by)
    if same and is_device_id(plain):
        return plain
    digest = hashlib.sha256(found_by.encode()).hexdigest()[:10]
    clean = re.sub("^:|:{2,}", "-", re.sub("[^A-Za-z0-9._:-]", "-", plain))
    return f"{clean[: MAX_DEVICE_ID - 11]}-{digest}"


def _name(entry: ConfigEntry, first: Found) -> str | None:
    """For people, in a ResourceSlice: serial-ttyusb0, or fuse where the file is called like the entry."""
    short = entry.name.rpartition("/")[2]
    last = f"{first.usb.vendor}-{first.usb.product}" if first.usb else first.id.rpartition("/")[2]
    whole = short if last == short else f"{short}-{last}"
    return re.sub("[^a-z0-9]+", "-", whole.lower()).strip("-")[:MAX_DEVICE_NAME].strip("-") or None


@dataclass(slots=True, kw_only=True)
class GenericSource(SysfsSource):
    file: WatchedFile[GenericConfig]
    poll_seconds: float = 1.0
    name: str = "generic"

    def poll(self) -> SourceFacts:
        self.file.refresh()
        wrong = (self.file.problem,) if self.file.problem is not None else ()
        if self.file.value is None:
            return SourceFacts(driver=NO_DRIVER, problems=wrong, silent=True)
        found, problems = devices(self.file.value, self.system)
        return SourceFacts(driver=Driver(state=DriverState.LOADED), devices=found, problems=(*wrong, *problems))


def source(options: argparse.Namespace) -> GenericSource:
    return GenericSource(
        file=WatchedFile(path=options.file, parse=parse),
        system=System(options.root, Path(options.driver_root_ctr_path)),
        poll_seconds=options.interval_seconds,
    )
