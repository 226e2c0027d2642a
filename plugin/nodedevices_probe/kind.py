"""The port of a kind of hardware: a command of `nodedevices-probe`, which the agent has by its name (`--probe NAME`).

A kind is a package, and a line of `registry`. The agent and all other kinds import the package itself, so what reads
the hardware is a module in it, which is loaded in the probe's process alone.

Whether the hardware is there at all (`auto`) is checked without that module: a check (`ProbeKind.present`) reads names
and small files of /sys, /proc and /dev, never the hardware or its library, and says why it found something:
"0000:1b:00.0 is a PCI device of vendor 0x10de". It is about what is there, not about what works: a GPU without its
driver is there.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

from nodedevices_probe.loop import Source
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import FOR_GUESTS, PCI_DEVICE, PCI_DEVICES


# --- which hardware is there ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One folder of /sys/bus/pci/devices. `pci_class`: 0x030200, of which the last two digits are the interface."""

    address: str
    vendor: str
    pci_class: str


@dataclass
class Hardware:
    """Hardware that a machine shows below these roots; the PCI bus is read once, at the first question."""

    roots: Roots

    @cached_property
    def pci(self) -> tuple[PciFunction, ...]:
        return tuple(
            PciFunction(
                address=name,
                vendor=self.roots.word(f"{PCI_DEVICES}/{name}/vendor"),
                pci_class=self.roots.word(f"{PCI_DEVICES}/{name}/class"),
            )
            for name in self.roots.names(PCI_DEVICES)
            if PCI_DEVICE.fullmatch(name)
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
    return lambda hardware: next((f"/{path} has {name}" for name in hardware.roots.names(path)), "")


def any_of(*checks: PresenceCheck) -> PresenceCheck:
    """Return a check that gives the first reason that one of these gives."""
    return lambda hardware: next(filter(None, (check(hardware) for check in checks)), "")


# --- a kind -----------------------------------------------------------------------------------------------------------
DRIVER_ROOT = "driver-root-ctr-path"  # a flag of most kinds, and an option of the agent
DEVICES_DIR = "devices-dir"  # an option of the agent: the folder of files that describe devices
# Options of the agent by name, and paths of device files by theirs; "" and False: not given, not there.
AgentValue = str | bool | tuple[str, ...]
AgentOptions = Mapping[str, AgentValue]
Flags = Mapping[str, Mapping[str, Any]]
# Of kinds that look for device nodes, and of those that have readings which say nothing about health.
DRIVER_ROOT_FLAG: Flags = {
    DRIVER_ROOT: {
        "default": "/driver-root",
        "metavar": "DIR",
        "help": "look for device nodes in DIR/dev if it is there: the host's /dev, mounted (default: /driver-root)",
    }
}
TELEMETRY_FLAG: Flags = {
    "telemetry": {
        "action": "store_true",
        "help": "read fan, utilization, memory used and clocks, too (default: no)",
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeKind:
    """`reads`: the module whose `source(options) -> Source` makes what reads the hardware; it may raise CheckError.
    `flags`: the kind's own, with what argparse is told of each, beside those that all have, of which `options.root` is
    the folder where the machine's /sys, /proc, /dev and /run are. `alternatives`: those of which only one may be given,
    and one has to be where the kind requires something. `interval`: what happens every `interval_seconds`, for --help.

    `passed_on`: which of its flags get the value of which of the agent's options, or the path of which device file.
    `opens`: those with paths that it opens, which a probe server has by its own settings (serving.requests). `choices`:
    further flags that it takes from an agent: what people may give a probe of their own, and no path among it.
    `passes`: whether a flag gets this value, where flags share an option. `requires`: options of the agent, or of its
    `files` those, without which it cannot run, and what each is, for people; `alone`: the options are for this kind
    alone, and an error without it. `check` raises CheckError, with the agent's flag in it, for what is passed on and
    cannot be.

    `files`: names of device files (DEVICES_DIR) that describe devices of the kind. `requires`: those of them without
    which it cannot run, and what each is, for people.

    `auto` starts the kind where `present` says why its hardware is there, and where one of its `files` is there: then
    it runs beside any others, too. A kind with neither is never started by it. `lists_devices`: False for one that only
    says something of other probes' devices: the agent does not wait for its first line.
    """

    name: str
    help: str
    reads: str
    flags: Flags = field(default_factory=dict)
    alternatives: frozenset[str] = frozenset()
    interval: str = "between polls of the hardware"
    interval_seconds: float = 5.0
    passed_on: Mapping[str, str] = field(default_factory=dict)
    opens: frozenset[str] = frozenset()
    choices: frozenset[str] = frozenset()
    passes: Callable[[str, AgentValue], bool] = lambda _flag, _value: True
    requires: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    check: Callable[[AgentOptions], None] = lambda _: None
    present: PresenceCheck = never
    files: tuple[str, ...] = ()
    lists_devices: bool = True

    @property
    def automatic(self) -> bool:
        """True when `auto` may ever start it."""
        return self.present is not never or bool(self.files)

    def wanted(self, hardware: Hardware, given: AgentOptions) -> str:
        """Why `auto` starts it on this machine, with these options of the agent; "": it does not."""
        return self.configured(given) or self.present(hardware)

    def configured(self, given: AgentOptions) -> str:
        """Why `auto` starts it whatever the hardware is; "": it does not."""
        return next((f"{given[name]} is there" for name in self.files if given.get(name)), "")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the kind's own flags."""
        either = parser.add_mutually_exclusive_group(required=bool(self.requires)) if self.alternatives else parser
        for flag, said in self.flags.items():
            (either if flag in self.alternatives else parser).add_argument(f"--{flag}", **said)

    def source(self, options: Namespace) -> Source:
        made: Source = import_module(self.reads).source(options)
        return made

    def arguments(self, given: AgentOptions) -> list[str]:
        """Return the command with what the agent passes on."""
        values = {flag: given[option] for flag, option in self.passed_on.items() if self.passes(flag, given[option])}
        return [
            self.name,
            *(f"--{flag}" if value is True else f"--{flag}={value}" for flag, value in values.items() if value),
        ]
