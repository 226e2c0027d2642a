"""The hardware of one node: what is wrong with it in truth, and the lines that its probes would write of it.

An `Injury` is one symptom on one device. What the probes say follows from the injuries that are not cured: the worst
action that the driver requires, and nothing else of a device that is lost. Events go through the probes' own EventLog
(folded, numbered, repeated for a minute); a line that an event causes has the readings of before, as LineLoop writes
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from nodedevices_probe import nic as nic_names
from nodedevices_probe.loop import EventKey, EventLog
from nodedevices_probe.protocol import Attribute, DeviceFact, Driver, DriverState, Readings, Snapshot
from support.facts import START, gpu, well
from support.replay.kinds import GPUS, Away, Cure, Kind, Severity, Symptom

NVML, NIC = "nvml", "nic"  # names of the probes
PROBES = (NVML, NIC)
_ACTIONS = ("None", "DrainP2P", "ResetDevice", "DrainAndReset", "RebootNode")  # NVML field 230, the worst last
_UNLOADED = Driver(state=DriverState.NOT_LOADED, name="nvidia")
_DRIVERS = {
    NVML: Driver(state=DriverState.LOADED, name="nvidia", version="570.148.08", cuda_version="12.8"),
    NIC: Driver(state=DriverState.LOADED, name="mlx5_core"),
}


@dataclass(slots=True, eq=False)
class Incident:
    """One failure of the table; what of it was seen by when. `at`: seconds since the beginning, as all times here."""

    kind: Kind
    at: float
    away: Away | None
    injuries: list[Injury] = field(default_factory=list)
    noticed_away: bool = False  # the node was shown as away
    seen: float = -math.inf  # the last of its injuries


@dataclass(slots=True, eq=False)
class Injury:
    """A symptom on a device. None: not yet."""

    incident: Incident
    symptom: Symptom
    device: str
    cure: Cure
    evident: bool = True  # it shows in readings now: a flapping link does not always
    read: bool = False  # the last line has it in its readings
    first_shown: float | None = None  # by a line
    last_shown: float = -math.inf
    last_event: float = -math.inf
    seen: float | None = None  # the verdict says so
    cured: float | None = None
    cleared: float | None = None  # the first line that shows the device well, or a person's word that it is gone
    gone: bool = False  # nothing may be shown of it any more

    @property
    def severity(self) -> Severity:
        return self.symptom.severity


@dataclass(slots=True, eq=False)
class Device:
    fact: DeviceFact
    injuries: list[Injury] = field(default_factory=list)
    earlier: set[str] = field(default_factory=set)  # reasons of those that are over, since it was last well

    @property
    def probe(self) -> str:
        return NVML if self.fact.type == "gpu" else NIC

    @property
    def shows_nothing(self) -> bool:
        return any(each.cured is None and each.symptom.hides_others for each in self.injuries)

    def listed(self) -> DeviceFact | None:
        """The device as its probe reads it now; None: it is not there."""
        found = [each for each in self.injuries if each.cured is None and each.evident]
        if not found:
            return self.fact
        if any(each.symptom.absent for each in found):
            return None
        return replace(self.fact, readings=_readings(self.fact, found))


def _readings(fact: DeviceFact, injuries: Iterable[Injury]) -> Readings:
    every: dict[str, Any] = {}
    for each in injuries:
        for name, value in each.symptom.readings.items():
            if name == "recovery_action":
                every[name] = max(every.get(name, "None"), value, key=_ACTIONS.index)
            elif name == "conditions":
                every[name] = tuple(sorted({*every.get(name, ()), *value}))
            else:
                every[name] = value
    if "lost" in every or "error" in every:
        return Readings(lost=every.get("lost", False), error=None if "lost" in every else every["error"])
    return _well(**every) if fact.type == "gpu" else Readings(**every)


def _well(**every: Any) -> Readings:
    """An H100 answers for all of these."""
    known = {"ecc_uncorrectable_volatile": 0, "sram_threshold_exceeded": False, "thermal_slowdown": False}
    return well(**{**known, **every})


@dataclass(slots=True)
class Probe:
    """One process of a probe after the other."""

    name: str
    instance: str
    log: EventLog
    sequence: int = 0
    facts: tuple[DeviceFact, ...] = ()  # of the last poll
    read_after: int = 0


class Machine:
    """A node. `clock` returns the seconds since the beginning."""

    def __init__(self, number: int, clock: Callable[[], float]) -> None:
        self.name = f"node-{number}"
        self.number = number
        self.up = True
        self.loaded = True  # the GPUs' driver
        self._clock = clock
        self._boots = 0
        self._replaced = 0
        self._processes = 0
        self.devices: dict[str, Device] = {}
        for index in range(GPUS):
            self._add(_gpu(number, index, 0))
            self._add(_nic(number, index))
        self.removed: dict[str, Device] = {}  # GPUs that were replaced, until a person says so
        self.probes = {name: self._probe(name) for name in PROBES}

    def of(self, probe: str) -> list[Device]:
        return [each for each in self.devices.values() if each.probe == probe]

    def boot(self) -> None:
        """Another boot: the probes are other processes."""
        self._boots += 1
        self.restart_probes()

    def restart_probes(self, *names: str) -> None:
        for name in names or PROBES:
            self.probes[name] = self._probe(name)

    def replace_gpu(self, device: str) -> Device:
        """Another GPU in its place."""
        old = self.devices.pop(device)
        self.removed[device] = old
        self._replaced += 1
        return self._add(_gpu(self.number, old.fact.index, self._replaced))

    def happened(self, device: str, xids: Iterable[int], count: int = 1) -> None:
        for xid in xids:
            key = EventKey(kind="xid", device_id=device, xid=xid)
            self.probes[NVML].log.record(key, when=START + timedelta(seconds=self._clock()), count=count)

    def line(self, name: str, *, polled: bool) -> Snapshot:
        """The line that the probe writes now: after a poll, or at once for an event."""
        probe = self.probes[name]
        loaded = self.loaded or name != NVML
        if polled:
            probe.read_after = probe.log.newest()
            read = (each.listed() for each in self.of(name)) if loaded else ()
            probe.facts = tuple(fact for fact in read if fact is not None)
        probe.sequence += 1
        return Snapshot(
            probe=name,
            probe_version="1",
            instance=probe.instance,
            sequence=probe.sequence,
            time=START + timedelta(seconds=self._clock()),
            boot_id=f"boot-{self._boots}",
            driver=_DRIVERS[name] if loaded else _UNLOADED,
            devices=probe.facts,
            events=probe.log.for_line(),
            read_after=probe.read_after,
        )

    def _add(self, fact: DeviceFact) -> Device:
        self.devices[fact.id] = device = Device(fact)
        return device

    def _probe(self, name: str) -> Probe:
        self._processes += 1
        return Probe(name, f"{name}-{self._processes}", EventLog(clock=self._clock))


def _gpu(number: int, index: int, replaced: int) -> DeviceFact:
    return gpu(
        index,
        readings=_well(),
        id=f"GPU-{number:08d}-{index:04d}-{replaced:04d}-0000-000000000000",
        pci_bus_id=f"0000:{16 * index + 8:02x}:00.0",
        device_nodes=(f"/dev/nvidia{index}",),
    )


def _nic(number: int, index: int) -> DeviceFact:
    """Known by its PCI address, so that one that is replaced is the same for its probe (docs/devices/rdma.md)."""
    address = f"0000:{16 * index + 4:02x}:00.0"
    return DeviceFact(
        id=address,
        index=index,
        type=nic_names.PHYSICAL,
        vendor="mellanox",
        product_name="ConnectX-7",
        pci_bus_id=address,
        numa_node=index // (GPUS // 2),
        extra={nic_names.RDMA_DEVICE: Attribute(string=f"mlx5_{index}")},
        device_nodes=(f"/dev/infiniband/uverbs{index}",),
    )
