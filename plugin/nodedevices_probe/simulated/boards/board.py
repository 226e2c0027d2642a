"""A kind of board, and what a device of that kind has where the simulated file says nothing.

A board of the base class is what most makers' devices are: known by its PCI address, with attributes and amounts that
are the same for all of a kind, and without device nodes, so that a container starts on a machine that has no such
hardware. What the file says of a device (`entry`) comes first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodedevices_probe.protocol import Attribute, Driver, DriverState, Link, Partition

_NAMESPACE = uuid.UUID("3d0a9d3e-3f5c-5a0e-9d0b-6e6f64646576")  # any constant: it keeps our ids apart from others'


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a device is. `index`: its number in the file. `place`: which of its kind in the profile; of a virtual
    function, which of its physical one. `parent`: of a virtual function, its physical one. `mig_minors`: the machine's
    capability nodes, as its driver numbers them; none: as drivers usually do."""

    node: str
    index: int
    bus_id: str
    place: int = 0
    parent: Seat | None = None
    mig_minors: Mapping[tuple[int, int, int | None], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Differences between makers' devices."""

    id: str
    uuid: str = ""
    minor: int | None = None
    extra: Mapping[str, Attribute] = field(default_factory=dict)
    partitions: tuple[Partition, ...] = ()
    links: tuple[Link, ...] = ()
    device_nodes: tuple[str, ...] = ()


def loaded(name: str, version: str, cuda_version: str = "") -> Driver:
    return Driver(state=DriverState.LOADED, name=name, version=version, cuda_version=cuda_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """`well`: the readings of a device that nothing is wrong with. A reading that is not there says nothing, so that a
    fault that is taken out of the file would never end. `extra`: attributes, as YAML has them. `xgmi`: all of them are
    linked. `function`: of its PCI address. `functions`: virtual ones that a profile has for each. `beside_gpus`: in a
    profile each is on the PCIe root of a GPU."""

    type: str = "gpu"
    vendor: str
    driver: Driver
    product_name: str = ""
    brand: str = ""
    architecture: str = ""
    firmware: str = ""
    machine_type: str = ""
    clique: str = ""
    memory_mib: int = 0
    capacity: Mapping[str, str] = field(default_factory=dict)  # beside memory
    extra: Mapping[str, str | int | bool] = field(default_factory=dict)
    well: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1  # in one machine
    xgmi: bool = False
    bridged: int = 0  # NVLinks that a bridge makes between devices 0 and 1, 2 and 3, ...
    function: int = 0
    functions: int = 0
    beside_gpus: bool = False
    more: Callable[[Seat], Mapping[str, str | int | bool]] = lambda seat: {}  # attributes of one device

    def details(self, seat: Seat, entry: Mapping[str, Any], place: str) -> Details:
        """`place`: of `entry`, for errors. Raises CheckError."""
        said = {**self.extra, **self.more(seat)}
        return Details(id=seat.bus_id, extra={name: attribute(value) for name, value in said.items()})


def attribute(value: str | int | bool) -> Attribute:
    """Return a value of YAML's as a probe's line has it."""
    if isinstance(value, bool):
        return Attribute(boolean=value)
    return Attribute(integer=value) if isinstance(value, int) else Attribute(string=value)


def identity(node: str, *what: int | str) -> uuid.UUID:
    """The same after every restart, different on every node."""
    return uuid.uuid5(_NAMESPACE, "/".join((node, *map(str, what))))


def pci_bus_id(index: int) -> str:
    """Two devices every 16 buses, as on the machines these boards come in; 64 in a PCI domain."""
    domain, index = divmod(index, 64)
    return f"{domain:04x}:{0x17 + 0x10 * (index // 2) % 0xE0 + index % 2 + 2 * (index // 28):02x}:00.0"


def function_bus_id(parent: str, number: int) -> str:
    """The address of a virtual function, from its physical one's."""
    device, function = divmod(number, 8)
    return f"{parent[:-4]}{1 + device:02x}.{function}"
