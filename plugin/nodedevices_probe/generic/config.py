"""The configuration file of generic devices: bytes in, a GenericConfig out, or an error for each entry that is wrong.

docs/devices/generic.md is the description for people. The format is a superset of what squat's generic-device-plugin
takes with `--config` and, as one entry each, with `--device`. The probe and the agent both read the file with it.

The file decides which device nodes and folders of the node containers get, so a user who may write it is root on the
node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodedevices_api.bounds import MAX_DEVICES

from nodedevices_probe.files import (
    ANYTHING,
    DOMAIN,
    FLAG,
    NAME,
    CheckError,
    Rule,
    entries,
    integer,
    keyed,
    list_of,
    load,
    one_of,
    variables,
    written,
    wrong,
)
from nodedevices_probe.generic import glob

MAX_COUNT = 1000  # pods on one device; a kubelet runs some hundred
MAX_PARTS = 16  # of a group; as many device nodes as a device has
MAX_GROUPS = 32
MAX_WILD_MOUNTS = 8  # each is an attribute of its own in the probe's line
USB_NODE, TTY = "usb", "tty"
BY_ORDER, BY_MATCH = "order", "match"
DEVICE_FIELDS = ("id", "index", "match", "serial")
FIELDS = (*DEVICE_FIELDS, "path", "count")

_NO_DOTS = r"(?!.*/\.\.?(/|$))"  # neither . nor .. as a part of a path


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """Files of the host by a pattern. `limit`: in so many devices of a group each file may be; `mount`: they are bind
    mounts, and no device nodes. `container_path` empty: where they are on the host; with a slash at its end: a folder,
    where they have their own names."""

    path: str
    container_path: str = ""
    permissions: str = "rw"
    limit: int = 1
    optional: bool = False
    mount: bool = False
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbPart:
    """USB devices by their ids, four hexadecimal digits each. `nodes`: of which kernel subsystems they bring the nodes;
    `usb` is the one below /dev/bus/usb."""

    vendor: str
    product: str = ""  # empty: any
    serial: str = ""
    nodes: tuple[str, ...] = (USB_NODE, TTY)
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """What belongs together: each device has one match of every path that is not optional, or is one USB device that
    one of the parts means. `count`: how many pods may have a device at a time. `pair`: which matches are one
    device's, the first ones, the second ones, ... (BY_ORDER) or those in which the wildcards stand for the same
    (BY_MATCH). `together`: all matches are one device's."""

    paths: tuple[PathPart, ...] = ()
    usb: tuple[UsbPart, ...] = ()
    count: int = 1
    pair: str = BY_ORDER
    together: bool = False

    @property
    def parts(self) -> tuple[PathPart | UsbPart, ...]:
        return (*self.paths, *self.usb)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMount:
    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """The devices of one name. `required`: a node without them has a fault."""

    name: str
    groups: tuple[DeviceGroup, ...]
    required: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[HostMount, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericConfig:
    domain: str = ""
    devices: tuple[ConfigEntry, ...] = ()


PRESETS: Mapping[str, Mapping[str, Any]] = {  # what an entry has where the file says nothing
    name: {"name": name, "count": 100, "paths": [{"path": path}]}
    for name, path in (("fuse", "/dev/fuse"), ("tun", "/dev/net/tun"), ("kvm", "/dev/kvm"))
}


def _check_pattern(place: str, value: Any) -> None:
    """A path of the host, where wildcards may be."""
    if not isinstance(value, str):
        raise wrong(place, value, "a path, in quotes")
    if problem := glob.problem_of(value.strip()):
        raise CheckError(f"{place}: {ascii(value)[:60]} is not allowed; {problem}")


_PLAIN_PATH = _NO_DOTS + r"/[^/\x00-\x1f\x7f:]+(/[^/\x00-\x1f\x7f:]+)*"
_CONTAINER_PATH = written(_PLAIN_PATH, "an absolute path", 255, DEVICE_FIELDS)
_PART_PATH = written(_PLAIN_PATH + "/?", "an absolute path", 255, DEVICE_FIELDS)
_COUNT = integer(1, MAX_COUNT)
_PERMISSIONS = written(r"(?!.*(.).*\1)[rwm]+", "some of r, w and m, such as rw", 3)
_HEX = written("[0-9A-Fa-f]{4}", "four hexadecimal digits, such as 1a86", 4)
_PATH_KEYS: Mapping[str, Rule] = {
    "path": _check_pattern,
    "containerPath": _PART_PATH,
    "mountPath": _PART_PATH,
    "permissions": _PERMISSIONS,
    "readOnly": FLAG,
    "type": one_of("Device", "Mount"),
    "limit": _COUNT,
    "optional": FLAG,
}
_USB_KEYS: Mapping[str, Rule] = {
    "vendor": _HEX,
    "product": _HEX,
    "serial": written(r"[^\x00-\x1f\x7f]+", "a serial number", 63),
    "nodes": list_of(written(r"[a-z0-9_]+", "a subsystem of the kernel, such as tty", 32), MAX_PARTS),
    "permissions": _PERMISSIONS,
}
_GROUP_KEYS: Mapping[str, Rule] = {
    "count": _COUNT,
    "paths": list_of(keyed(_PATH_KEYS, required=("path",)), MAX_PARTS),
    "usb": list_of(keyed(_USB_KEYS, required=("vendor",)), MAX_PARTS),
    "pair": one_of(BY_ORDER, BY_MATCH),
    "together": FLAG,
}
_MOUNT_KEYS: Mapping[str, Rule] = {
    "hostPath": written(_NO_DOTS + r"/[^\x00-\x1f\x7f:]*", "an absolute path", 255, DEVICE_FIELDS),
    "containerPath": _CONTAINER_PATH,
    "readOnly": FLAG,
}


_ENTRY = keyed(
    {
        "preset": one_of(*PRESETS),
        "name": NAME,
        "groups": list_of(keyed(_GROUP_KEYS), MAX_GROUPS),
        **_GROUP_KEYS,
        "required": FLAG,
        "env": variables(FIELDS),
        "mounts": list_of(keyed(_MOUNT_KEYS, required=("hostPath",)), 32),
        "cdiDevices": list_of(
            written(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+=[A-Za-z0-9._:-]+", "a name such as a.com/b=c", 255, DEVICE_FIELDS),
            32,
        ),
    },
    what="a mapping with a name and groups, or a preset",
)
# What squat's plugin has in its file besides: read, and of no meaning, for the agent has flags of its own for it.
_SQUATS = ("plugin-directory", "log-level", "listen", "version")


def parse(raw: bytes) -> GenericConfig:
    """Return what the file says. Raises InputError with what is wrong with each of its entries."""
    value = load(raw, aliases=False)
    if value is None:
        raise CheckError("is empty; give devices, for example 'devices: [{preset: fuse}]'")
    top: Any = {"devices": value} if isinstance(value, list) else value
    listed = list_of(ANYTHING, MAX_DEVICES)
    keyed(
        {"device": listed, "devices": listed, "domain": DOMAIN, **dict.fromkeys(_SQUATS, ANYTHING)},
        what="a mapping with devices, or a list of them",
    )("", top)
    if ("devices" in top) == ("device" in top):
        raise CheckError("devices: is missing" if "devices" not in top else "device: devices is given, too; keep one")
    place = "devices" if "devices" in top else "device"
    return GenericConfig(
        domain=top.get("domain", ""), devices=entries(place, top[place], _entry, "put both into groups of one")
    )


def _entry(place: str, value: Any) -> ConfigEntry:
    _ENTRY(place, value)
    odd = [key for key in ("groups", "paths", "usb", "pair", "together") if key in value and "preset" in value]
    if odd:
        raise CheckError(f"{place}.{odd[0]}: cannot be combined with a preset; write the groups without one")
    value = {**PRESETS.get(value.get("preset", ""), {}), **value}
    if "name" not in value:
        raise CheckError(f"{place}.name: is missing")
    own = {key: value[key] for key in _GROUP_KEYS if key in value}
    if "groups" in value and own:
        raise CheckError(f"{place}.{next(iter(own))}: cannot be combined with groups; put it into one of them")
    places = [f"{place}.groups[{number}]" for number in range(len(value.get("groups", ())))] or [place]
    entry = ConfigEntry(
        name=value["name"],
        groups=tuple(map(_group, places, value.get("groups", [own]))),
        required=value.get("required", False),
        env=dict(value.get("env", {})),
        mounts=tuple(
            _mount(f"{place}.mounts[{number}]", mount) for number, mount in enumerate(value.get("mounts", ()))
        ),
        cdi_devices=tuple(value.get("cdiDevices", ())),
    )
    _check_whole(place, entry)
    return entry


def _check_whole(place: str, entry: ConfigEntry) -> None:
    """Raises CheckError for what is right by itself, and not together."""
    shapes = [shape(entry, group) for group in entry.groups]
    again = next((at for at, each in enumerate(shapes) if each in shapes[:at]), None)
    if again is not None:
        raise CheckError(
            f"{place}.groups[{again}]: the same parts as in groups[{shapes.index(shapes[again])}]; use count"
        )
    if entry.required:
        loose = [part.path for group in entry.groups for part in group.paths if glob.is_pattern(part.path)]
        if loose or any(group.usb for group in entry.groups):
            raise CheckError(f"{place}.required: only for paths without wildcards, which say what is to be there")
        if not all(map(needed, entry.groups)):
            raise CheckError(f"{place}.required: all paths are optional; one must not be")


def _group(place: str, value: Mapping[str, Any]) -> DeviceGroup:
    paths, usb = value.get("paths", ()), value.get("usb", ())
    if bool(paths) == bool(usb):
        raise CheckError(
            f"{place}.usb: cannot be combined with paths; make it a group of its own"
            if paths
            else f"{place}.paths: is missing; give paths or usb"
        )
    group = DeviceGroup(
        paths=tuple(_path(f"{place}.paths[{number}]", part) for number, part in enumerate(paths)),
        usb=tuple(map(_usb, usb)),
        count=value.get("count", 1),
        pair=value.get("pair", BY_ORDER),
        together=value.get("together", False),
    )
    wild = [part for part in group.paths if part.mount and glob.is_pattern(part.path)]
    if wild and group.together:
        several = f"{wild[0].path} of type Mount, which may be several paths"
        raise CheckError(f"{place}.together: cannot be combined with {several}")
    if len(wild) > MAX_WILD_MOUNTS:
        raise CheckError(f"{place}.paths: give at most {MAX_WILD_MOUNTS} of type Mount that have wildcards")
    if group.pair == BY_MATCH and not any(glob.is_pattern(part.path) for part in group.paths if not part.optional):
        raise CheckError(f"{place}.pair: match needs a path with a wildcard that is not optional")
    return group


def _usb(value: Mapping[str, Any]) -> UsbPart:
    return UsbPart(
        vendor=value["vendor"].lower(),
        product=value.get("product", "").lower(),
        serial=value.get("serial", ""),
        nodes=tuple(value.get("nodes", (USB_NODE, TTY))),
        permissions=value.get("permissions", "rw"),
    )


def _path(place: str, value: Mapping[str, Any]) -> PathPart:
    if "containerPath" in value and "mountPath" in value:
        raise CheckError(f"{place}.mountPath: containerPath is given, too; keep one")
    mount = value.get("type", "Device") == "Mount"
    path = value["path"].strip()
    if not mount and not path.startswith("/dev/"):
        raise CheckError(f"{place}.path: {ascii(path)[:60]} is not allowed; give a path in /dev, or type: Mount")
    for key, right in (("permissions", not mount), ("readOnly", mount)):
        if key in value and not right:
            raise CheckError(f"{place}.{key}: only for type: {'Mount' if mount is False else 'Device'}")
    return PathPart(
        path=path,
        container_path=value.get("containerPath", value.get("mountPath", "")),
        permissions=value.get("permissions", "rw"),
        limit=value.get("limit", 1),
        optional=value.get("optional", False),
        mount=mount,
        read_only=value.get("readOnly", False),
    )


def _mount(place: str, value: Mapping[str, Any]) -> HostMount:
    host = value["hostPath"]
    if "containerPath" not in value:
        _CONTAINER_PATH(f"{place}.containerPath", host)
    return HostMount(
        host_path=host, container_path=value.get("containerPath", host), read_only=value.get("readOnly", True)
    )


def find(config: GenericConfig, name: str, of_shape: str) -> tuple[ConfigEntry, DeviceGroup] | None:
    """The group of an entry by its shape; None: this file has it not."""
    found = ((entry, group) for entry in config.devices if entry.name == name for group in entry.groups)
    return next((pair for pair in found if shape(*pair) == of_shape), None)


def needed(group: DeviceGroup) -> list[int]:
    """Return the parts that every device has: numbers of paths."""
    return [number for number, part in enumerate(group.paths) if not part.optional]


def shape(entry: ConfigEntry, group: DeviceGroup) -> str:
    """Return a text for what a group's parts are, by their numbers: devices that the probe found with another shape of
    the file, older or newer than this one, are told apart by it."""
    parts = [
        entry.name,
        *(f"{part.path} {part.mount}" for part in group.paths),
        *(f"{part.vendor} {part.product} {part.serial}" for part in group.usb),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
