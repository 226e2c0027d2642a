"""The probe of NVIDIA GPUs: everything that NVML and the kernel say, without ever losing the rest over one of them.

- No library or no driver is a normal case: the line says NotLoaded and the probe keeps polling, for both.
- A driver upgraded under us needs a new mapping of the library: the line says VersionMismatch and the process exits.
- A GPU that does not answer stays in the line with its last known identity, or what the kernel knows of it.
- One odd return code (UNKNOWN, TIMEOUT, ...) is no fault yet: the GPU is polled again a second later, and until then
  the line has what it said before. A lost GPU is reported at once, and so is every other one.
- GPUs and MIG devices may come and go at any time; so may their events.
A call that hangs hangs this process and nothing else: the agent sees the silence and kills it.
"""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml
from nodedevices_api.bounds import MAX_DEVICES

from nodedevices_probe import nvidia
from nodedevices_probe.loop import NONE_NEEDED, SourceFacts
from nodedevices_probe.node.sysfs import System, nearest, unbound
from nodedevices_probe.nvidia.calls import DriverGoneError, Library, Monitor, NvmlCalls, describe
from nodedevices_probe.nvidia.facts import (
    PCIE_PATHS,
    GpuIdentity,
    identify,
    kernel_gpus,
    links_of,
    read_links,
    read_mig,
)
from nodedevices_probe.nvidia.readings import (
    COMPLETED,
    SLOW_SECONDS,
    read_fabric,
    read_health,
    read_slow,
    read_telemetry,
    read_use,
)
from nodedevices_probe.protocol import (
    DeviceFact,
    Driver,
    DriverState,
    Machine,
    PcieNeighbour,
    Problem,
    Readings,
    is_device_id,
    problem,
    text,
)
from nodedevices_probe.source import SysfsSource

PCI_VENDOR = "0x10de"
DRIVER_NAME = "nvidia"
MODULE = "sys/module/nvidia"
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
DOUBTS = 2  # odd answers that are no fault yet
DOUBTS_WITHIN_POLLS = 20


@dataclass(slots=True)
class _Gpu:
    """One GPU during one poll. `handle` is None when it does not answer."""

    fact: DeviceFact
    known: GpuIdentity | None = None
    handle: Any = None


@dataclass(slots=True, kw_only=True)
class NvmlSource(SysfsSource):
    """NVIDIA GPUs."""

    name: str = "nvml"
    telemetry: bool = False
    library: Library = field(default_factory=Library)
    _driver: Driver | None = None  # None: NVML is not initialised
    _known: dict[str, GpuIdentity] = field(default_factory=dict)
    _last: dict[int, DeviceFact] = field(default_factory=dict)  # by NVML's index, from when it last answered
    _monitor: Monitor | None = None
    _watched: dict[str, bool] = field(default_factory=dict)  # id -> whether it was well at the last poll
    _answered: dict[str, DeviceFact] = field(default_factory=dict)  # id -> as in the last line, if that was no error
    _odd: frozenset[str] = frozenset()  # ids that answered the last poll with an error
    _polls: int = 0
    _doubted: dict[str, list[int]] = field(default_factory=dict)  # id -> the polls in which it was in doubt, lately
    _began: bool = False  # the GPUs of this driver were polled before
    _completed: set[str] = field(default_factory=set)  # ids that this driver's fabric has registered

    def poll(self) -> SourceFacts:
        try:
            if self._driver is None:
                self._initialise()
            return self._facts()
        except DriverGoneError as gone:
            return self._without_driver(gone.code, clean=self._forget())

    def _initialise(self) -> None:
        self.library.load()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverGoneError(error.value) from None
        nvml = NvmlCalls()
        cuda = nvml.call("nvmlSystemGetCudaDriverVersion_v2", telemetry=True)
        self._driver = Driver(
            state=DriverState.LOADED,
            name=DRIVER_NAME,
            version=text(nvml.call("nvmlSystemGetDriverVersion", telemetry=True) or ""),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    def _without_driver(self, code: int, *, clean: bool) -> SourceFacts:
        """Only one code says that no driver is loaded, and the kernel may say so of GPUs that are there. A container
        without permission, or whose driver root is not mounted yet, is no evidence: what is loaded anew is healed."""
        if self.system.only_for_guests(PCI_VENDOR):
            machine = Machine(type=self.system.machine_type())
            return SourceFacts(driver=NONE_NEEDED, machine=machine, needs_fresh_process=not clean)
        on_bus = len(self.system.accelerators(PCI_VENDOR))
        state, reason = DriverState.UNKNOWN, "DriverNotLoaded"
        if mismatch := code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            state, reason = DriverState.VERSION_MISMATCH, "DriverVersionMismatch"
        elif code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED or (on_bus and not self.roots.exists(MODULE)):
            state = DriverState.NOT_LOADED
        why = self.library.missing() if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else describe(code)
        return SourceFacts(
            driver=Driver(state=state, name=DRIVER_NAME),
            machine=Machine(type=self.system.machine_type()),
            accelerators_on_bus=on_bus,
            problems=(problem(reason, f"failed to initialise NVML: {why}"),),
            needs_fresh_process=mismatch or not clean,
        )

    def _forget(self) -> bool:
        """Let go of the driver, which cannot be unloaded before. False when a thread still hangs in it.

        Handles, events and what was read belong to the driver that has gone; identities by index do not.
        """
        monitor, self._monitor = self._monitor, None
        clean = monitor is None or monitor.ended()
        if self._driver is not None and clean:  # NVML does not promise that it can be shut down under a waiting thread
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._driver, self._watched, self._began = None, {}, False
        self._known.clear()
        self._completed.clear()
        return clean

    def _facts(self) -> SourceFacts:
        assert self._driver is not None  # noqa: S101  poll() initialises first
        nvml = NvmlCalls()
        count = nvml.call("nvmlDeviceGetCount")
        problems = []
        if count is None:  # without the count no GPU can be polled: none of those known answers
            why = nvml.error or str(nvml.refused)
            gpus = [_Gpu(replace(fact, readings=Readings(error=why))) for _, fact in sorted(self._last.items())]
            problems.append(Problem(code="NvmlError", message=why))
        else:
            gpus = self._gpus(min(count, MAX_DEVICES))
        devices, doubts = self._doubt(self._joined(gpus))
        before_any = bool(doubts) and not self._began  # the first line is a whole one: what it lacks is missing
        self._began = True
        accelerators = self.system.accelerators(PCI_VENDOR)
        problems += [*doubts, *unbound(accelerators, devices)]
        problems += self._watch({gpu.fact.id: gpu.handle for gpu in gpus if gpu.handle is not None}, devices)
        return SourceFacts(
            driver=self._driver,
            machine=self._machine(gpus),
            accelerators_on_bus=len(accelerators),
            problems=tuple(problems),
            devices=devices,
            poll_again=bool(doubts),
            silent=before_any,
        )

    def _doubt(self, devices: tuple[DeviceFact, ...]) -> tuple[tuple[DeviceFact, ...], list[Problem]]:
        """The devices as the line may have them, and who is in doubt: an error seen in one poll alone is
        not reported yet, unless there were others lately. A new device that is in doubt is left out until the second
        poll."""
        odd = frozenset(fact.id for fact in devices if fact.readings.error is not None and not fact.readings.lost)
        self._polls += 1
        doubted = frozenset(id_ for id_ in odd - self._odd if self._benefit_of_doubt(id_))
        problems, reported = [], []
        for fact in devices:
            if fact.id not in doubted:
                reported.append(fact)
                continue
            problems.append(problem("OddAnswer", f"GPU {fact.index}: {fact.readings.error}; retrying"))
            if fact.id in self._answered:
                reported.append(replace(self._answered[fact.id], index=fact.index))
        self._odd = odd
        self._answered = {fact.id: fact for fact in reported if fact.readings.error is None}
        return tuple(reported), problems

    def _benefit_of_doubt(self, id_: str) -> bool:
        """True when an error after a good answer is to be seen again first. A GPU that fails every other poll, and is
        well at each retry, has a fault."""
        lately = [poll for poll in self._doubted.get(id_, ()) if poll > self._polls - DOUBTS_WITHIN_POLLS]
        self._doubted[id_] = [*lately, self._polls]
        return len(lately) < DOUBTS

    def _gpus(self, count: int) -> list[_Gpu]:
        asked = [NvmlCalls() for _ in range(count)]
        answers = [self._gpu(nvml, index) for index, nvml in enumerate(asked)]
        answering = {gpu.fact.id for gpu in answers if gpu is not None}
        every = [
            gpu or _Gpu(self._unanswering(index, count, answering, nvml))
            for index, (gpu, nvml) in enumerate(zip(answers, asked, strict=True))
        ]
        gpus = [gpu for gpu in every if gpu.fact.product_name not in nvidia.DISPLAY_PRODUCTS]
        self._last = {index: fact for index, fact in self._last.items() if index < count}
        self._last |= {gpu.fact.index: gpu.fact for gpu in gpus}
        self._known = {identity: known for identity, known in self._known.items() if identity in answering}
        return gpus

    def _gpu(self, nvml: NvmlCalls, index: int) -> _Gpu | None:
        """Return one GPU, if it answers with at least its id."""
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        identity = nvml.call("nvmlDeviceGetUUID", handle) if handle is not None else None
        if not identity or not is_device_id(identity):
            return None
        known = self._known.get(identity)
        if known is None or not known.whole:
            read = identify(nvml, handle, identity, index, self.system)
            if nvml.lost or nvml.error:  # half an identity is not worth remembering
                before = next((fact for fact in self._last.values() if fact.id == identity), read.fact)
                return _Gpu(replace(before, index=index, readings=Readings(lost=nvml.lost, error=nvml.error)))
            known = self._known.setdefault(identity, read)
            known.fact, known.whole = read.fact, read.whole
        fact = known.fact
        inactive = read_links(nvml, handle, known)
        now = time.monotonic()
        if now - known.slow_read_at >= SLOW_SECONDS:
            known.slow, known.slow_read_at = read_slow(nvml, handle, sorted(known.link_ends)), now
        # One that has answered once has MIG: that it does not say now is an answer neither way.
        mode = (nvml.call if known.mig_enabled is None else nvml.needed)("nvmlDeviceGetMigMode", handle)
        if mode:
            known.mig_enabled = bool(mode[0])
        partitions = read_mig(nvml, handle, known, self.system)
        readings = self._beside(read_health(nvml, handle, known, nvlinks_inactive=inactive), nvml, handle, known)
        if self.telemetry:
            readings = read_telemetry(nvml, handle, readings)
        if self.use:
            sees_all = self.roots.link("proc/self/ns/pid") == FIRST_PID_NAMESPACE
            readings = read_use(nvml, handle, readings, sees_all=sees_all)
        if nvml.lost:  # it fell off the bus meanwhile: its previous facts still describe it
            before = next((last for last in self._last.values() if last.id == identity), fact)
            return _Gpu(replace(before, index=index, readings=Readings(lost=True)), known)
        fact = replace(
            fact,
            index=index,
            extra=fact.extra
            | nvidia.attributes(mig_capable=known.mig_enabled is not None, mig_enabled=known.mig_enabled or False),
            partitions=partitions,
            readings=readings,
        )
        return _Gpu(fact, known, handle)

    def _beside(self, readings: Readings, nvml: NvmlCalls, handle: Any, known: GpuIdentity) -> Readings:
        """The readings with those of what is beside the GPU: its fabric, and its PCIe link, which the kernel knows."""
        fact = known.fact
        readings, clique = read_fabric(nvml, handle, readings)
        if readings.fabric_state == COMPLETED:
            self._completed.add(fact.id)
        if readings.fabric_state is not None:
            known.clique = clique
            readings = replace(readings, fabric_was_completed=fact.id in self._completed)
        return self.system.with_pcie_link(readings, fact.pci_bus_id)

    def _unanswering(self, index: int, count: int, answering: set[str], nvml: NvmlCalls) -> DeviceFact:
        """A GPU that does not answer: its last identity, or what the kernel's driver knows of the one in this place."""
        readings = Readings(
            lost=nvml.lost, error=None if nvml.lost else nvml.error or nvml.refused or "it has no valid id"
        )
        last = self._last.get(index)
        if last is not None and last.id not in answering:
            return replace(last, readings=readings)
        gpus = kernel_gpus(self.system)
        if len(gpus) == count and gpus[index].id not in answering:
            return replace(gpus[index], readings=readings)
        return DeviceFact(id=f"nvml-index-{index}", index=index, type="gpu", vendor=nvidia.VENDOR, readings=readings)

    def _joined(self, gpus: list[_Gpu]) -> tuple[DeviceFact, ...]:
        """The devices with what connects them: NVLinks and PCIe paths, read once per pair."""
        ids_by_bus = {gpu.fact.pci_bus_id: gpu.fact.id for gpu in gpus if gpu.fact.pci_bus_id}
        devices = []
        for gpu in gpus:
            if gpu.known is None or gpu.handle is None:
                devices.append(gpu.fact)
                continue
            paths = []
            for other in gpus:
                if other is gpu:
                    continue
                path = gpu.known.paths.get(other.fact.id)
                if path is None and other.handle is not None:
                    level = NvmlCalls().call(
                        "nvmlDeviceGetTopologyCommonAncestor", gpu.handle, other.handle, telemetry=True
                    )
                    path = PCIE_PATHS.get(level)
                if path is not None:
                    gpu.known.paths[other.fact.id] = path
                    paths.append(PcieNeighbour(to=other.fact.id, path=path))
            fact = replace(gpu.fact, links=links_of(gpu.known, ids_by_bus), pcie=nearest(paths, len(gpus)))
            self._last[fact.index] = fact
            devices.append(fact)
        return tuple(devices)

    def _watch(self, gpus: dict[str, Any], devices: tuple[DeviceFact, ...]) -> list[Problem]:
        """Have every answering GPU's events watched; what cannot be is a problem."""
        problems = []
        failed = self._monitor.failed if self._monitor else None
        # A reset may end the recording of events, so a GPU that becomes well is registered again, like a new one.
        watched = {device.id: _is_well(device) for device in devices if device.id in gpus}
        is_new = watched.keys() != self._watched.keys() or any(watched[id_] > self._watched[id_] for id_ in watched)
        self._watched = watched
        if failed or is_new:
            before, self._monitor = self._monitor, None
            try:
                self._monitor = Monitor(gpus, self.events) if gpus else None
            except pynvml.NVMLError as error:
                failed, self._watched = describe(error.value), {}
            if before is not None:
                before.stop()
        if failed:
            problems.append(problem("EventsUnavailable", f"waiting for events: {failed}"))
        names = {device.id: f"GPU {device.index}" for device in devices}
        if self._monitor is not None and self._monitor.unmonitored:
            whys = sorted(f"{names.get(id_, id_)}: {why}" for id_, why in self._monitor.unmonitored.items())
            problems.append(problem("Unmonitored", "no events from " + ", ".join(whys)))
        return problems

    def _machine(self, gpus: list[_Gpu]) -> Machine:
        modes = {self.system.display_mode(gpu.fact.pci_bus_id) for gpu in gpus if gpu.fact.pci_bus_id}
        return Machine(
            type=self.system.machine_type(),
            mode=modes.pop() if len(modes) == 1 else "",
            clique=next((gpu.known.clique for gpu in gpus if gpu.known and gpu.known.clique), ""),
        )


def _is_well(device: DeviceFact) -> bool:
    readings = device.readings
    return not readings.lost and readings.error is None and readings.recovery_action in {None, "None"}


def source(options: Namespace) -> NvmlSource:
    """Return the source for its arguments (kind)."""
    return NvmlSource(
        poll_seconds=options.interval_seconds,
        telemetry=options.telemetry,
        system=System(options.root),
        library=Library(options.driver_root_ctr_path),
    )
