"""The format of a probe's line: one JSON snapshot of the complete state.

A probe observes and never decides. Each line stands alone: the agent keeps the latest good one and forgets the rest.
The types here are the line format, in Python's names; on the wire the keys are camelCase. They are plain standard
library dataclasses, because a probe must stay small and imports neither pydantic nor grpc nor kubernetes. The bounds
are metadata: the agent's reader enforces them on every line, and the published
JSON Schema (crds/probe-line.schema.json) is generated from them. What reaches the report is bounded as there
(nodedevices_api.bounds). A probe keeps to all this by itself (see `text`), because one field out of bounds costs the
whole line.

`None` means "the hardware or driver does not say", never "zero" or "fine".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeVar

from nodedevices_api.bounds import (
    ATTRIBUTE_NAME_PATTERN,
    DEVICE_NAME_PATTERN,
    INT32_MAX,
    MAX_ATTRIBUTE_NAME,
    MAX_CAPACITIES,
    MAX_DEVICE_ID,
    MAX_DEVICE_NAME,
    MAX_DEVICES,
    MAX_EXTRA,
    MAX_INDEX,
    MAX_MINOR,
    MAX_NUMA_NODE,
    MAX_PARTITION_INDEX,
    MAX_PARTITIONS,
    SEMANTIC_VERSION_PATTERN,
    WORD_PATTERN,
)
from nodedevices_common.quantity import QUANTITY_PATTERN, to_bytes

PROTOCOL = "nodedevices.io/probe/v1alpha1"
MAX_LINE_BYTES = 1 << 20
MAX_LINE_PARTITIONS = 512  # of all devices together: what one pass of the agent can take without keeping others waiting
MAX_EVENTS = 256
MAX_DETAILS = 8  # of one event: a link and its seven registers
MAX_COUNTERS = 32  # of one device
MAX_OWN = 18  # `extra` and `capacity` together: of a ResourceSlice's 32 the rest is for what all devices have
MAX_TEXT = 64  # what a ResourceSlice attribute may hold
MAX_MESSAGE = 512  # NodeDevices status: health.message
MAX_INTEGER = (1 << 53) - 1  # every JSON reader keeps integers up to here exact

# Neither control characters nor the invisible ones that reorder or hide text on a terminal.
PLAIN_TEXT = r"^[^\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]*$"
# Narrower than the contract's (bounds): no "::", which separates a share's number from its device, and no colon at an
# end, which would make one with it.
DEVICE_ID = r"^[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+)*$"
SWITCH = "switch"  # the other end of a link to a switch
SWITCH_KINDS = frozenset({"sxid", "sxid-fatal"})  # events of a switch
DEVICE_TYPE = r"^[A-Za-z][A-Za-z0-9]{0,31}$"  # a device is named by it: gpu-3
PROFILE = r"^[A-Za-z0-9]([A-Za-z0-9._+-]{0,46}[A-Za-z0-9])?$"  # a resource is named by it: nvidia.com/mig-1g.10gb.me
WORD = r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$"
# As the kernel and udev name them (/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0); no "..": a container gets
# what this names.
DEVICE_NODE = r"^/dev(/[A-Za-z0-9_][A-Za-z0-9._:+@=,#~-]*)+$"
MAX_DEVICE_NODE = 160


class Bounds:
    """Bounds of a value, by pydantic's names: ge, le, max_length, pattern.

    A core schema is a plain dictionary, so that this needs no import (annotated_types would bring three).
    """

    __slots__ = ("limits",)

    def __init__(self, **limits: int | str) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        schema = {**handler(source), **self.limits}
        return _then(schema, lambda found: dict(sorted(found.items()))) if schema["type"] == "dict" else schema


class InUtc:
    """A time with its zone, which is read as one in UTC."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return _then(handler(source), _in_utc)


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("it names no time zone")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("it is not a valid time") from None


def _then(schema: dict[str, Any], made: Callable[[Any], Any]) -> dict[str, Any]:
    return {"type": "function-after", "schema": schema, "function": {"type": "no-info", "function": made}}


DeviceId = Annotated[str, Bounds(pattern=DEVICE_ID, max_length=MAX_DEVICE_ID)]
Text = Annotated[str, Bounds(pattern=PLAIN_TEXT, max_length=MAX_TEXT)]
Message = Annotated[str, Bounds(pattern=PLAIN_TEXT, max_length=MAX_MESSAGE)]
Word = Annotated[str, Bounds(pattern=WORD)]
PlainWord = Annotated[str, Bounds(pattern=WORD_PATTERN)]
Name = Annotated[str, Bounds(pattern=DEVICE_NAME_PATTERN, max_length=MAX_DEVICE_NAME)]
AttributeName = Annotated[str, Bounds(pattern=ATTRIBUTE_NAME_PATTERN, max_length=MAX_ATTRIBUTE_NAME)]
Quantity = Annotated[str, Bounds(pattern=QUANTITY_PATTERN, max_length=32)]
Capacity = Annotated[dict[AttributeName, Quantity], Bounds(max_length=MAX_CAPACITIES)]
NodePath = Annotated[str, Bounds(pattern=DEVICE_NODE, max_length=MAX_DEVICE_NODE)]
Count = Annotated[int, Bounds(ge=0, le=MAX_INTEGER)]
MAX_SMALL = 65535
Small = Annotated[int, Bounds(ge=0, le=MAX_SMALL)]
Xid = Annotated[int, Bounds(ge=0, le=INT32_MAX)]
Time = Annotated[datetime, InUtc]
Celsius = Annotated[int, Bounds(ge=-300, le=1000)]

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)

T = TypeVar("T")
UpTo16 = Annotated[tuple[T, ...], Bounds(max_length=16)]
UpTo64 = Annotated[tuple[T, ...], Bounds(max_length=64)]


_TYPES = {"integer": "int", "boolean": "bool"}  # the keys of an attribute's value, as a ResourceSlice has them


@functools.cache
def camel(name: str) -> str:
    """Return the key on the wire: `pcie_root` -> `pcieRoot`."""
    if name in _TYPES:
        return _TYPES[name]
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def normal_bus_id(bus_id: str) -> str:
    """`00000000:1B:00.0` (NVML) or `1b:00.0` -> `0000:1b:00.0` (sysfs); "" when it is no PCI address."""
    match = _BUS_ID.fullmatch(bus_id.strip())
    if not match:
        return ""
    domain = int(match.group(1) or "0", 16)
    return f"{domain:04x}:{match.group(2)}:{match.group(3)}.{match.group(4)}".lower()


class _AtAddress:
    """What has a PCI address: it is kept as the kernel spells it, so that equal ones are equal texts."""

    __slots__ = ()
    pci_bus_id: str

    def __post_init__(self) -> None:
        if normal := normal_bus_id(self.pci_bus_id):
            object.__setattr__(self, "pci_bus_id", normal)


class _Wire:
    """Spelling of the keys, for pydantic, without importing it.

    Unknown keys are ignored: within one protocol version a newer probe may say more than this agent knows.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"alias_generator": camel, "extra": "ignore"}


class DriverState(StrEnum):
    """Whether devices can be queried at all."""

    LOADED = "Loaded"
    NOT_LOADED = "NotLoaded"  # certainly. Once it is loaded again, it has reset its devices
    UNKNOWN = "Unknown"  # it cannot be queried, loaded or not: no library, no permission, NVML_ERROR_UNKNOWN
    VERSION_MISMATCH = "VersionMismatch"  # NVML_ERROR_LIB_RM_VERSION_MISMATCH: a driver upgrade is under way


class PciePath(StrEnum):
    """The nearest common ancestor of two devices on PCIe (nvml.h nvmlGpuTopologyLevel_t), nearest first."""

    INTERNAL = "internal"
    SINGLE = "single"
    MULTIPLE = "multiple"
    HOSTBRIDGE = "hostbridge"
    NODE = "node"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver(_Wire):
    state: DriverState
    name: Text = ""  # "nvidia"
    version: Text = ""  # as the driver prints it: 570.148.08
    cuda_version: Text = ""  # 12.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(_Wire):
    """What node labels need and no single device has."""

    type: Text = ""  # DMI product name
    mode: Text = ""  # compute | graphics
    clique: Text = ""  # <cluster uuid>.<clique id> of the NVLink fabric
    vgpu_version: Text = ""
    vgpu_branch: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(_Wire):
    """A direct connection to another device, or to a switch."""

    kind: PlainWord  # NVLink | XGMI
    to: DeviceId  # device id, or SWITCH
    count: Annotated[int, Bounds(ge=1, le=1024)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieNeighbour(_Wire):
    to: DeviceId
    path: PciePath


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute(_Wire):
    """The value of an attribute, in the form of a ResourceSlice: exactly one of the fields."""

    string: Text | None = None
    integer: Annotated[int, Bounds(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None
    boolean: bool | None = None
    version: Annotated[str, Bounds(pattern=SEMANTIC_VERSION_PATTERN, max_length=MAX_TEXT)] | None = None  # 9.0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(_Wire):
    """A part of a device: a MIG device, a partition of AMD's, a virtual function. It has its device's attributes."""

    id: DeviceId  # MIG-<uuid>
    name: Name | None = None  # in a ResourceSlice; None: the agent makes one
    profile: Annotated[str, Bounds(pattern=PROFILE)]  # 1g.10gb
    index: Annotated[int, Bounds(ge=0, le=MAX_PARTITION_INDEX)]  # NVML's MIG index: "<gpu>:<index>" is its index id
    gi: Small | None = None  # NVIDIA: GPU instance and compute instance
    ci: Small | None = None
    start: Small | None = None  # placement: first memory slice
    size: Small | None = None
    capacity: Capacity = field(default_factory=dict)  # memory: 9856Mi, multiprocessors: "16"
    # /dev/nvidia-caps/nvidia-cap<N> of the GPU instance and the compute instance
    device_nodes: Annotated[tuple[NodePath, ...], Bounds(max_length=4)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings(_Wire):
    """Facts that bear on health, as read this time. `None`: not supported here."""

    lost: bool = False  # NVML_ERROR_GPU_IS_LOST, or an equivalent
    error: Message | None = None  # why the device did not answer otherwise
    recovery_action: PlainWord | None = (
        None  # NVML field 230, in the names of health.recoveryAction ("None", "ResetDevice", ...); None: no field
    )
    remap_pending: bool | None = None  # field 144
    remap_failure: bool | None = None  # field 145
    remapped_correctable: Count | None = None
    remapped_uncorrectable: Count | None = None
    ecc_uncorrectable_volatile: Count | None = None
    ecc_uncorrectable_aggregate: Count | None = None
    sram_threshold_exceeded: bool | None = None
    nvlinks_inactive: Small | None = None
    pcie_replays: Count | None = None
    thermal_slowdown: bool | None = None
    temperature_celsius: Celsius | None = None
    power_milliwatts: Count | None = None
    # What slows a device down, or limits it, beside its temperature.
    hw_slowdown: bool | None = None  # by the hardware, whatever for: with thermal_slowdown or power_brake because of it
    power_brake: bool | None = None  # the machine's power supply asks for it
    clocks_limited: bool | None = None  # by a setting
    persistence_mode: bool | None = None
    power_limit_milliwatts: Count | None = None  # now
    power_default_limit_milliwatts: Count | None = None
    temperature_margin_celsius: Celsius | None = None  # up to the temperature that it may work at; falls below 0
    temperature_slowdown_margin_celsius: Celsius | None = None  # the margin at which its hardware slows it down: -2
    switch_links_inactive: Small | None = None  # NVLinks, of a device that has others to a switch
    nvlink_generation: Small | None = None
    nvlink_megabytes_per_second: Count | None = None  # of the slowest one that is up
    nvlink_errors_per_exabit: Count | None = None  # of the worst one, in 10^18 bits, that were not corrected
    # The NVLink fabric: NotSupported | NotStarted | InProgress | Completed, of the GPU's registration.
    fabric_state: PlainWord | None = None
    fabric_was_completed: bool | None = None  # it is, or was since the probe knows this driver
    fabric_error: Message | None = None  # why a registration that is Completed has failed; None: it has not
    fabric_conditions: UpTo16[PlainWord] = ()  # what the driver says is wrong with it: managerDisconnected
    # Its PCIe link, by lanes and generation, and what both ends of it can do. None: it has no link of its own.
    pcie_width: Small | None = None
    pcie_width_possible: Small | None = None
    pcie_generation: Small | None = None
    pcie_generation_possible: Small | None = None
    # Telemetry: says nothing about health; read where it is switched on.
    fan_percent: Small | None = None
    utilization_percent: Small | None = None
    memory_used_bytes: Count | None = None
    sm_clock_mhz: Small | None = None
    memory_clock_mhz: Small | None = None
    # Who uses the device: read where the agent asks for it (loop.LineLoop.want), with utilization_percent.
    processes: Small | None = None  # with a context on it; None also where those of other containers are not seen
    memory_allocated_bytes: Count | None = None  # by programs: without what driver and firmware keep for themselves
    conditions: UpTo16[PlainWord] = ()  # what else holds now, by the vendor's names: linkDown
    # Totals of errors, by the vendor's names: symbolError. One may begin again at 0; one that cannot be read is absent.
    counters: Annotated[dict[PlainWord, Count], Bounds(max_length=MAX_COUNTERS)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFact(_AtAddress, _Wire):
    """One physical device. A device that answers nothing still has an id and `readings.error` or `readings.lost`."""

    id: DeviceId  # GPU-<uuid>, a serial number, a PCI address: the same after every restart
    name: Name | None = None  # in a ResourceSlice; None: the agent makes one, <type>-<minor or index>
    index: Annotated[int, Bounds(ge=0, le=MAX_INDEX)]  # the driver's order; each of a type has its own
    minor: Annotated[int, Bounds(ge=0, le=MAX_MINOR)] | None = None  # of its device node: /dev/nvidia<minor>
    type: Annotated[str, Bounds(pattern=DEVICE_TYPE)]  # gpu | nic | fpga | vf | dpu | generic | ...
    vendor: Word  # nvidia | amd | mellanox | xilinx | ...
    uuid: Text = ""  # what the maker's tools show, where it is not the id
    product_name: Text = ""
    brand: Text = ""
    architecture: Text = ""
    firmware: Text = ""
    pci_bus_id: Text = ""  # 0000:1b:00.0, as the kernel spells it; 00000000:1B:00.0 and 1b:00.0 are read as the same
    pcie_root: Text = ""  # pci0000:16
    numa_node: Annotated[int, Bounds(ge=0, le=MAX_NUMA_NODE)] | None = None  # sysfs; -1 is None
    # What only some devices have, by the names of their DRA drivers' attributes.
    extra: Annotated[dict[AttributeName, Attribute], Bounds(max_length=MAX_EXTRA)] = field(default_factory=dict)
    capacity: Capacity = field(default_factory=dict)  # memory: 81559Mi, vfs: "16"
    partitions: Annotated[tuple[Partition, ...], Bounds(max_length=MAX_PARTITIONS)] = ()
    links: UpTo64[Link] = ()
    pcie: UpTo64[PcieNeighbour] = ()
    device_nodes: UpTo16[NodePath] = ()  # /dev/nvidia<minor>
    readings: Readings = field(default_factory=Readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEvent(_AtAddress, _Wire):
    """An edge: it happened. Repeated in later lines for a while; the agent drops the sequence numbers it has seen.

    `count` folds a flood: that many of the same (device, xid, instance) happened since the event before. `pci_bus_id`
    instead of `device_id`: it concerns the devices at that address, whichever probe lists them; of kind SWITCH_KINDS, a
    switch there, and with it the devices that have a link to SWITCH. `details`: what else was said of it, for people
    and for the device's vendor; of folded events those of the first.
    """

    sequence: Count  # rises by at least one within one probe instance
    time: Time
    kind: Word  # xid | recovery-action | gpu-unavailable | dram-retirement | poison | mig-config | ecc-storm | ...
    device_id: DeviceId | None = None  # None: the driver did not say which
    pci_bus_id: Text = ""  # 0000:1b:00.0
    xid: Xid | None = None  # the vendor's number; of kind sxid an SXID
    gi: Small | None = None  # None: the whole GPU
    ci: Small | None = None
    count: Annotated[int, Bounds(ge=1, le=MAX_INTEGER)] = 1
    # link: "14", register3: "0x10000"
    details: Annotated[dict[PlainWord, Text], Bounds(max_length=MAX_DETAILS)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_Wire):
    """The probe's own difficulty: it goes on, and says so."""

    code: Word  # DriverNotLoaded, EventsUnavailable, FileInvalid, Unmonitored, ...
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(_Wire):
    protocol: Text = PROTOCOL
    probe: Word  # nvml | simulated | ...
    probe_version: Text
    instance: DeviceId  # random per process start: sequence numbers belong to it
    sequence: Count  # of this line
    time: Time
    boot_id: Text  # /proc/sys/kernel/random/boot_id
    driver: Driver
    machine: Machine = field(default_factory=Machine)
    accelerators_on_bus: Small = 0  # PCI display/3D/processing-accelerator class devices of known accelerator vendors
    problems: UpTo64[Problem] = ()
    devices: Annotated[tuple[DeviceFact, ...], Bounds(max_length=MAX_DEVICES)] = ()
    events: Annotated[tuple[ProbeEvent, ...], Bounds(max_length=MAX_EVENTS)] = ()
    # The devices were read after the events up to this sequence number had happened. None: the probe does not say, and
    # then an event is taken to be newer than the readings of the line that reports it first.
    read_after: Count | None = None
    # How long it took to ask all devices. None: not measured, or an earlier line has said so of the same reading.
    read_milliseconds: Count | None = None


def memory_bytes(capacity: dict[str, str]) -> int:
    """Return how much memory a device or partition has; 0 where it does not say."""
    return to_bytes(capacity["memory"]) if "memory" in capacity else 0


_NOT_PLAIN = re.compile(PLAIN_TEXT.replace("^[^", "[").replace("]*$", "]"))


def text(value: str, limit: int = MAX_TEXT) -> str:
    """The value as the line may carry it: what a driver or file says, without control characters, cut to `limit`."""
    if len(value) <= limit and value.isascii() and value.isprintable():
        return value.strip()
    clean = _NOT_PLAIN.sub(" ", value).encode("utf-8", "replace").decode("utf-8").strip()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def problem(code: str, message: str) -> Problem:
    """The problem with this text, as the line may carry it."""
    return Problem(code=code, message=text(message, MAX_MESSAGE))


def is_device_id(value: str) -> bool:
    """True when a line may carry it as the id of a device or partition."""
    return len(value) <= MAX_DEVICE_ID and re.fullmatch(DEVICE_ID, value) is not None


def within(value: int | None, low: int, high: int, *, per: int = 1) -> int | None:
    """The number, in units of so many, if the line may carry it; None for one that no hardware means, such as a failed
    reading's -1."""
    return value // per if value is not None and low <= value // per <= high else None
