"""The base of probes that read what kernel modules show in sysfs: AMD's and Intel's GPUs, FPGAs, network cards.

Such a probe says what it finds and nothing about the machine, the driver's version, or what there is to say where the
driver is not loaded: that is done here, alike for all.

A read that hangs in the kernel cannot be ended from outside. `BoundedReads` reads several devices side by side, each
for a bounded time: a thread that hangs is left alone until it returns; meanwhile the device is "not answering" and is
not read again, so that one broken device keeps no other waiting, and costs one thread and not one with every poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Generic, TypeVar

from nodedevices_probe.loop import NONE_NEEDED, Source, SourceFacts
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import System, neighbours, unbound
from nodedevices_probe.protocol import Attribute, DeviceFact, Driver, DriverState, Machine, Problem

KERNEL = "linux"  # the driver's name where any driver will do


Found = tuple[Sequence[DeviceFact], Sequence[Problem]]


@dataclass(slots=True, kw_only=True)
class SysfsSource(Source):
    system: System = field(default_factory=System)

    @property
    def roots(self) -> Roots:
        return self.system.roots

    def has_paths(self, _: DeviceFact) -> bool:
        """True when PCIe paths to and from a device are reported: not where it is a part of another one."""
        return True

    def _placed(self, devices: Sequence[DeviceFact]) -> Iterator[DeviceFact]:
        """Yield them, those on PCI with their places, links and the paths between them."""
        places = {device.id: self.system.place(device.pci_bus_id) for device in devices if device.pci_bus_id}
        near = neighbours(
            {device.id: places[device.id] for device in devices if device.id in places and self.has_paths(device)}
        )
        for device in devices:
            if (place := places.get(device.id)) is None:
                yield device
                continue
            yield replace(
                device,
                pcie_root=place.root,
                numa_node=place.numa_node,
                pcie=near.get(device.id, ()),
                readings=self.system.with_pcie_link(device.readings, device.pci_bus_id),
            )

    def gpus(
        self, modules: Sequence[str], pci_vendor: str, folders: tuple[str, ...], devices: Callable[[], list[DeviceFact]]
    ) -> SourceFacts:
        """Return the facts of one maker's GPUs, which its drivers list in these folders, and which on the PCI bus no
        driver has. Where virtual machines have all of them, no driver is missing."""
        accelerators = self.system.accelerators(pci_vendor)

        def find() -> Found:
            listed = devices()
            return listed, unbound(accelerators, listed)

        facts = self.facts(modules, find, on_bus=len(accelerators), folders=folders)
        if facts.driver.state is not DriverState.LOADED and self.system.only_for_guests(pci_vendor):
            return SourceFacts(driver=NONE_NEEDED, machine=facts.machine)
        return facts

    def facts(
        self,
        modules: Sequence[str],
        find: Callable[[], Found],
        *,
        on_bus: int = 0,
        folders: Sequence[str] = (),
    ) -> SourceFacts:
        """Return what `find` finds, where one of these kernel modules is loaded (none given: any kernel has them). The
        first of them that is loaded is the driver. `on_bus`: SourceFacts.accelerators_on_bus. `folders`: of PCI
        devices. One that left them while it was read is left out: what was read of it is not all, and is not to stand
        in the place of what was known before."""
        roots, machine = self.roots, Machine(type=self.system.machine_type())
        loaded = next((module for module in modules if roots.exists(f"sys/module/{module}")), "" if modules else KERNEL)
        if not loaded:
            return SourceFacts(
                driver=Driver(state=DriverState.NOT_LOADED, name=modules[0]),
                machine=machine,
                accelerators_on_bus=on_bus,
                problems=(Problem(code="DriverNotLoaded", message=_not_loaded(modules)),),
            )
        # Of a module that comes apart from the kernel; Xilinx' have the commit after a comma.
        version = roots.word(f"sys/module/{loaded}/version").partition(",")[0]
        found, problems = find()
        placed = list(self._placed(found))
        there = {id_ for folder in folders for id_ in self.system.bus_ids(folder)}
        return SourceFacts(
            driver=Driver(
                state=DriverState.LOADED, name=loaded, version=version or roots.word("proc/sys/kernel/osrelease")
            ),
            machine=machine,
            accelerators_on_bus=on_bus,
            problems=tuple(problems),
            devices=_numbered(
                device for device in placed if not folders or not device.pci_bus_id or device.pci_bus_id in there
            ),
        )


def _numbered(devices: Iterable[DeviceFact]) -> tuple[DeviceFact, ...]:
    """With their indexes in this order; each type counts for itself."""
    numbers: dict[str, Iterator[int]] = {}
    return tuple(replace(device, index=next(numbers.setdefault(device.type, count()))) for device in devices)


def attributes(values: Mapping[str, str | int | bool | None]) -> dict[str, Attribute]:
    """Return attributes in the form of a line, without those that are not known: None, or an empty text."""
    return {name: attribute(value) for name, value in values.items() if value is not None and value != ""}


def attribute(value: str | int | bool) -> Attribute:
    if isinstance(value, bool):
        return Attribute(boolean=value)
    return Attribute(integer=value) if isinstance(value, int) else Attribute(string=value)


def _not_loaded(modules: Sequence[str]) -> str:
    if len(modules) == 1:
        return f"the kernel module {modules[0]} is not loaded"
    return f"none of the kernel modules {', '.join(modules[:-1])} and {modules[-1]} is loaded"


# --- reads that may hang ----------------------------------------------------------------------------------------------
READ_SECONDS = 2.0
T = TypeVar("T")


class _Reading(threading.Thread, Generic[T]):
    def __init__(self, read: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._read = read
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._read()
        except BaseException as error:  # raised where the result is asked for
            self.error = error


@dataclass(slots=True, kw_only=True)
class BoundedReads(Generic[T]):
    """`seconds`: for all of one call together."""

    seconds: float = READ_SECONDS
    _hanging: dict[str, _Reading[T]] = field(default_factory=dict)

    def read(self, jobs: Mapping[str, Callable[[], T]]) -> dict[str, T | None]:
        """Return each job's result; None: it, or an earlier one of that key, has not returned. Raises what a job
        raises."""
        deadline = time.monotonic() + self.seconds
        started = {}
        for key, job in jobs.items():
            hanging = self._hanging.pop(key, None)
            if hanging is not None and hanging.is_alive():
                self._hanging[key] = hanging
                continue
            started[key] = _Reading(job)
            started[key].start()
        found: dict[str, T | None] = dict.fromkeys(jobs)
        for key, reading in started.items():
            reading.join(max(0.0, deadline - time.monotonic()))
            if reading.is_alive():
                self._hanging[key] = reading
            elif reading.error is not None:
                raise reading.error
            else:
                found[key] = reading.result
        return found
