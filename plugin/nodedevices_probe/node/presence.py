"""Presence of the hardware of a kind of probe on a machine: what `auto` asks of each kind (kind.ProbeKind.present).

A check reads names and small files of /sys, /proc and /dev, never the hardware or its library, and says why it found
something: "0000:1b:00.0 is a PCI device of vendor 0x10de". It is about what is there, not about what works: a GPU
without its driver is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import FOR_GUESTS, PCI_DEVICE, PCI_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One folder of /sys/bus/pci/devices. `pci_class`: 0x030200, of which the last two digits are the interface."""

    address: str
    vendor: str
    pci_class: str


class Hardware:
    """Hardware that a machine shows below these roots; the PCI bus is read once, at the first question."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots

    @cached_property
    def pci(self) -> tuple[PciFunction, ...]:
        names = (name for name in self.roots.names(PCI_DEVICES) if PCI_DEVICE.fullmatch(name))
        return tuple(
            PciFunction(
                address=name,
                vendor=self.roots.word(f"{PCI_DEVICES}/{name}/vendor"),
                pci_class=self.roots.word(f"{PCI_DEVICES}/{name}/class"),
            )
            for name in names
        )

    def driver(self, function: PciFunction) -> str:
        """The kernel driver that has it; "" where none has."""
        return self.roots.link(f"{PCI_DEVICES}/{function.address}/driver")


PresenceCheck = Callable[[Hardware], str]  # why the hardware is there; "" where it is not


def never(_: Hardware) -> str:
    """Return no reason: no hardware makes `auto` start it."""
    return ""


def on_pci(vendor: str, classes: Collection[str], drivers: Collection[str] = ()) -> PresenceCheck:
    """A PCI device of the vendor (0x10de) in one of the classes (0x0302), or one that one of these drivers has; but not
    one that the node gives to a virtual machine."""

    def present(hardware: Hardware) -> str:
        for function in hardware.pci:
            if function.vendor != vendor:
                continue
            if function.pci_class[:6] in classes and hardware.driver(function) not in FOR_GUESTS:
                return f"{function.address} is a PCI device of vendor {vendor} and class {function.pci_class}"
            if drivers and (driver := hardware.driver(function)) in drivers:
                return f"{function.address} is a PCI device of vendor {vendor} with the driver {driver}"
        return ""

    return present


def exists(path: str) -> PresenceCheck:
    """A file or folder below the root: sys/module/nvidia."""
    return lambda hardware: f"/{path} is there" if hardware.roots.exists(path) else ""


def has_entries(path: str) -> PresenceCheck:
    """A folder below the root in which there is something: sys/class/infiniband."""

    def present(hardware: Hardware) -> str:
        first = next(iter(hardware.roots.names(path)), "")
        return f"/{path} has {first}" if first else ""

    return present


def any_of(*checks: PresenceCheck) -> PresenceCheck:
    """Return a check that gives the first reason that one of these gives."""
    return lambda hardware: next(filter(None, (check(hardware) for check in checks)), "")
