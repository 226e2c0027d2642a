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
from nodedevices_probe.generic import usb
from nodedevices_probe.generic.config import (
    ConfigEntry,
    DeviceGroup,
    GenericConfig,
    PathPart,
    UsbPart,
    needed,
    parse,
    shape,
)
from nodedevices_probe.generic.glob import is_pattern, match_text, matches
from nodedevices_probe.generic.sets import Match, Set, sets
from nodedevices_probe.loop import NO_DRIVER, SourceFacts
from nodedevices_probe.node.roots import MAX_ENTRIES, Roots
from nodedevices_probe.node.sysfs import NODE_MISSING, PciePlace, System
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

MAX_NODES = 16  # of a device, in a line
MAX_PROBLEMS = 16
_VISIBLE = ("/dev/", "/sys/", "/proc/")  # of the host, from a container


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One match of a part. `nodes`: paths in /dev that it brings; `path`: of a mount, instead of them."""

    match: Match
    nodes: tuple[str, ...] = ()
    path: str = ""
    usb: usb.UsbDevice | None = None


@dataclass(slots=True, kw_only=True)
class _Search:
    """One pass over the machine."""

    system: System
    roots: Roots = field(init=False)
    owners: dict[str, str] = field(default_factory=dict)  # device node -> id of the device that has it alone
    shared: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)  # ids
    problems: list[Problem] = field(default_factory=list)
    _usb: list[usb.UsbDevice] | None = None

    def __post_init__(self) -> None:
        self.roots = self.system.roots

    def devices(self, config: GenericConfig) -> Iterator[DeviceFact]:
        for entry in config.devices:
            for group in entry.groups:
                yield from self._of_group(entry, group)

    def _of_group(self, entry: ConfigEntry, group: DeviceGroup) -> Iterator[DeviceFact]:
        found = [self._paths(part) for part in group.paths] + [self._of_usb(part) for part in group.usb]
        made = sets(group, [[hit.match for hit in some] for some in found])
        if not made and entry.required:
            found = [[self._literal(part)] for part in group.paths]
            made = [tuple((number, 0) for number in needed(group))]
        for chosen in made:
            if (device := self._device(entry, group, found, chosen)) is not None:
                yield device

    # --- what parts of a group mean ----------------------------------------------------------------------------------
    def _paths(self, part: PathPart) -> list[_Found]:
        if not is_pattern(part.path):
            return [self._literal(part)] if self._is_there(part) else []
        found = (path for path in self._expanded(part.path) if part.mount or self._is_node(path))
        return [
            _Found(
                match=Match(path, match_text(path, part.path)),
                nodes=() if part.mount else (path,),
                path=path if part.mount else "",
            )
            for path in found
        ]

    def _literal(self, part: PathPart) -> _Found:
        if part.mount:
            return _Found(match=Match(part.path), path=part.path)
        return _Found(match=Match(part.path), nodes=self._below(part.path) or (part.path,))

    def _is_there(self, part: PathPart) -> bool:
        """Folders of the host that are not mounted here are taken for granted, unless they are optional."""
        if part.mount and not part.path.startswith(_VISIBLE):
            return not part.optional or _exists(self._outside(part.path))
        there = self.roots.place(part.path)
        return bool(self._below(part.path)) if not part.mount and _is_folder(there) else _exists(there)

    def _below(self, folder: str) -> tuple[str, ...]:
        """The device nodes of a folder of /dev and of those in it, such as /dev/snd: what container runtimes make of
        it. A link is another name of a node, as in /dev/snd/by-path."""
        found: list[str] = []
        todo = [folder] if _is_folder(self.roots.place(folder)) else []
        while todo and len(found) <= MAX_NODES:
            at = todo.pop(0)
            folders = set(self.roots.names(self.roots.place(at), folders=True))
            for name in self.roots.names(self.roots.place(at)):
                path = f"{at}/{name}"
                if name in folders:
                    todo.append(path)
                elif self.roots.has_node(path) and not self.roots.target(self.roots.place(path)):
                    found.append(path)
        return tuple(found)

    def _is_node(self, path: str) -> bool:
        return self.roots.has_node(path) and not _is_folder(self.roots.place(path))

    def _outside(self, path: str) -> Path:
        """A path of the host that is no /dev, /sys or /proc: below the driver root, if that is the host's."""
        base = self.system.driver_root
        return (base if base is not None and base.is_dir() else self.system.root) / path.lstrip("/")

    def _expanded(self, pattern: str) -> list[str]:
        """Return the paths that match, in natural order."""
        found = [""]
        for part in pattern[1:].split("/"):
            if is_pattern(part):
                found = [f"{folder}/{name}" for folder in found for name in self._names(folder) if matches(name, part)][
                    :MAX_ENTRIES
                ]
            else:
                found = [f"{folder}/{part}" for folder in found]
        return [path for path in found if _exists(self._seen_at(path))]

    def _names(self, folder: str) -> tuple[str, ...]:
        return self.roots.names(self._seen_at(folder)) if folder else ()

    def _seen_at(self, path: str) -> Path:
        if path == "/dev" and self.roots.devices is not None:
            return self.roots.devices
        return self.roots.place(path) if f"{path}/".startswith(_VISIBLE) else self._outside(path)

    def _of_usb(self, part: UsbPart) -> list[_Found]:
        if self._usb is None:
            self._usb = usb.devices(self.system)
        mine = [
            device
            for device in self._usb
            if device.vendor == part.vendor
            and part.product in {"", device.product}
            and part.serial in {"", device.serial}
        ]
        return [
            _Found(
                match=Match(_usb_id(device, self._usb)),
                nodes=tuple(node for node, subsystem in device.nodes if subsystem in part.nodes),
                usb=device,
            )
            for device in mine
        ]

    # --- a device ----------------------------------------------------------------------------------------------------
    def _device(
        self, entry: ConfigEntry, group: DeviceGroup, found: Sequence[Sequence[_Found]], chosen: Set
    ) -> DeviceFact | None:
        members = [(number, found[number][at]) for number, at in chosen]
        alone = [member for member in members if _is_alone(group, member[0])]
        lasting = [member for member in members if member[0] in needed(group)]
        if not lasting:  # where all are optional the same one whichever of them are there
            lasting = [member for member in members if _is_wild(group, member[0])] or members
        first = next((member for member in lasting if member in alone), lasting[0])[1]
        found_by = first.match.id
        if group.paths and not needed(group) and not any(is_pattern(part.path) for part in group.paths):
            found_by = group.paths[0].path
        id_ = _group_id(entry, group) if group.together else _id(found_by)
        own = [node for _, member in alone for node in member.nodes]
        common = [node for number, member in members if not _is_alone(group, number) for node in member.nodes]
        if not self._may_have(entry, id_, own, common):
            return None
        nodes = list(dict.fromkeys((*own, *common)))
        ok = [node for node in nodes if len(node) <= MAX_DEVICE_NODE and re.fullmatch(DEVICE_NODE, node)]
        part_of = {node: number for number, member in reversed(members) for node in member.nodes}
        plugged = next((member.usb for _, member in members if member.usb), None)
        place = self._place(plugged, ok)
        error = None
        if len(ok) > MAX_NODES:
            error = f"{len(ok)} device nodes; a device can have at most {MAX_NODES}"
        elif len(ok) < len(nodes):
            error = text(f"{_first(nodes, ok)}: a device node of this name cannot be given to a container", MAX_MESSAGE)
        mounted = {number: member.path for number, member in members if member.path}
        paths = {number: path for number, path in mounted.items() if is_pattern(group.paths[number].path)}
        if too_long := [path for path in paths.values() if len(path) > MAX_TEXT]:
            error = error or f"{too_long[0]}: only paths of at most {MAX_TEXT} characters can be mounted by a wildcard"
        ok = ok[:MAX_NODES]
        extra: dict[str, str | int | bool | None] = {
            names.ENTRY: entry.name,
            names.SHAPE: shape(entry, group),
            names.PARTS: ",".join(str(part_of[node]) for node in ok),
            names.MOUNTS: ",".join(map(str, mounted)),
            names.MATCH: text(next((member.match.key for _, member in members if member.match.key), "")),
            names.SERIAL: plugged.serial if plugged else "",
            names.PORT: plugged.port if plugged else "",
            **{names.mount_of(number): path for number, path in paths.items() if len(path) <= MAX_TEXT},
            names.EXCLUSIVE: len([node for node in ok if node in own]),
        }
        missing = not all(self.roots.has_node(node) for node in ok)
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
            readings=Readings(error=error, conditions=(NODE_MISSING,) if missing else ()),
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

    def _place(self, plugged: usb.UsbDevice | None, nodes: Iterable[str]) -> PciePlace:
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
    search = _Search(system=system)
    found = tuple(islice(search.devices(config), MAX_DEVICES + 1))
    if len(found) > MAX_DEVICES:
        message = f"more than {MAX_DEVICES} devices match; only the first {MAX_DEVICES} are reported"
        search.problems.append(Problem(code="TooManyDevices", message=message))
    numbered = tuple(replace(device, index=index) for index, device in enumerate(found[:MAX_DEVICES]))
    return numbered, tuple(search.problems)


def _is_alone(group: DeviceGroup, part: int) -> bool:
    """True when what a part means is one device's, and one pod's at a time."""
    return group.count == 1 and (not group.paths or group.paths[part].limit == 1)


def _is_wild(group: DeviceGroup, part: int) -> bool:
    return bool(group.paths) and is_pattern(group.paths[part].path)


def _id(found_by: str) -> str:
    """`/dev/net/tun` -> dev-net-tun; with a hash where that says less than it should."""
    plain = found_by.removeprefix("/").replace("/", "-")
    same = re.fullmatch(r"/[A-Za-z0-9._/]+|[A-Za-z0-9][A-Za-z0-9._:-]*", found_by)
    if same and is_device_id(plain):
        return plain
    digest = hashlib.sha256(found_by.encode()).hexdigest()[:10]
    clean = re.sub("^:|:{2,}", "-", re.sub("[^A-Za-z0-9._:-]", "-", plain))
    return f"{clean[: MAX_DEVICE_ID - 11]}-{digest}"


def _usb_id(device: usb.UsbDevice, others: Iterable[usb.UsbDevice]) -> str:
    ids = f"usb:{device.vendor}:{device.product}"
    alike = [other for other in others if (other.vendor, other.product) == (device.vendor, device.product)]
    if device.serial and [other.serial for other in alike].count(device.serial) == 1:
        return f"{ids}:{device.serial}"
    return f"{ids}:at-{device.port}"


def _group_id(entry: ConfigEntry, group: DeviceGroup) -> str:
    return _id(f"all:{entry.name}" if len(entry.groups) == 1 else f"all:{entry.name}:{shape(entry, group)}")


def _name(entry: ConfigEntry, first: _Found) -> str | None:
    """For people, in a ResourceSlice: serial-ttyusb0, or fuse where the file is called like the entry."""
    short = entry.name.rpartition("/")[2]
    last = f"{first.usb.vendor}-{first.usb.product}" if first.usb else first.match.id.rpartition("/")[2]
    whole = short if last == short else f"{short}-{last}"
    return re.sub("[^a-z0-9]+", "-", whole.lower()).strip("-")[:MAX_DEVICE_NAME].strip("-") or None


def _first(nodes: Sequence[str], ok: Sequence[str]) -> str:
    return next(node for node in nodes if node not in ok)


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except (OSError, ValueError):  # a loop of links
        return False


def _is_folder(place: Path) -> bool:
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False


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
