"""The simulated probe: devices from a YAML file that may change at any time, or from a named profile.

docs/simulated-devices.md describes the file for people, `rules` has its keys. It is looked at ten times a second
(files.WatchedFile). One that cannot be understood changes nothing: the last good state stays and the line carries the
Problem `FileInvalid`, with place, value and what would be right. No file is a node without a driver. An event in the
file happens once, when its id first appears while the probe runs; those that were there at the start are history, as on
hardware. Who uses a device is said where the agent asks for it, as by a driver's probe.
"""

from __future__ import annotations

import os
import platform
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_common.quantity import MEBIBYTE, from_bytes

from nodedevices_probe import nic, nvidia
from nodedevices_probe.files import FILE_MISSING, CheckError, WatchedFile, load, wrong
from nodedevices_probe.loop import NO_DRIVER, EventKey, Source, SourceFacts
from nodedevices_probe.node.sysfs import nearest, parse_mig_minors, unbound
from nodedevices_probe.protocol import (
    MAX_OWN,
    DeviceFact,
    Driver,
    DriverState,
    Link,
    Machine,
    PcieNeighbour,
    PciePath,
    Problem,
    Readings,
    camel,
    normal_bus_id,
)
from nodedevices_probe.simulated.boards import Board, Seat, function_bus_id, pci_bus_id
from nodedevices_probe.simulated.nvidia import KEYS, PLAIN, NvidiaBoard
from nodedevices_probe.simulated.rules import MODELS, READINGS, RULES, TEXTS, Planned, check_words, parse_profile
from nodedevices_probe.source import attribute

# --- what a file says -------------------------------------------------------------------------------------------------
MAX_LINKS = 64
PCIE_LINK = {"pcie_width": 16, "pcie_width_possible": 16, "pcie_generation": 5, "pcie_generation_possible": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedState:
    """Content of a good file. `events`: by the file's id, with how often each happens; it does when its id first
    appears."""

    facts: SourceFacts
    events: Mapping[str, tuple[EventKey, int]]
    hang: bool = False


def parse(raw: bytes, *, node: str) -> SimulatedState:
    """Return what the file says. Raises CheckError."""
    value = load(raw)
    if value is None:
        raise CheckError("is empty; give a profile or devices, for example 'profile: h100 x 8'")
    RULES("", value)
    return _state(value, node)


def from_profile(profile: str, *, node: str) -> SimulatedState:
    """Return what a file with nothing but this profile says. Raises CheckError."""
    return _state({"profile": profile}, node)


def _state(value: Mapping[str, Any], node: str) -> SimulatedState:
    entries = _entries(value, node)
    supported = value.get("recoveryActionSupported", True)
    every = sorted((_device(entry, supported=supported) for entry in entries.values()), key=lambda fact: fact.index)
    absent = {index for index, entry in entries.items() if entry.said.get("absent")}
    devices = [fact for fact in every if fact.index not in absent and fact.product_name not in nvidia.DISPLAY_PRODUCTS]
    _refuse_repeats(devices)
    models = {entry.planned.model for entry in entries.values() if entry.planned.model}
    machine, only = value.get("machine", {}), MODELS[models.pop()] if len(models) == 1 else PLAIN
    count = sum(device.type not in nic.TYPES for device in devices)
    on_bus = value.get("acceleratorsOnBus", count)
    gone = [device.pci_bus_id for device in every if device.index in absent and device.type not in nic.TYPES]
    without_driver = dict.fromkeys(gone[: max(0, on_bus - count)], "")
    driver = _driver(value.get("driver", {}), next((entry.board for entry in entries.values()), only))
    facts = SourceFacts(
        driver=driver,
        machine=Machine(
            type=machine.get("type", only.machine_type),
            mode=machine.get("mode", "compute"),
            clique=machine.get("clique", only.clique),
            vgpu_version=machine.get("vgpuVersion", ""),
            vgpu_branch=machine.get("vgpuBranch", ""),
        ),
        accelerators_on_bus=on_bus,
        problems=(
            *(Problem(code=problem["code"], message=problem["message"]) for problem in value.get("problems", ())),
            *unbound(without_driver, devices),
        ),
        devices=_connected(devices, value.get("links", ()), entries) if driver.state is DriverState.LOADED else (),
        silent=value.get("silent", False),
    )
    events = _events(value.get("events", ()), {device.index: device.id for device in every})
    return SimulatedState(facts=facts, events=events, hang=value.get("hang", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One device: the profile's, changed and extended by the file's own. `place`: where it was written, for errors.
    `board`: what it has where the file says nothing."""

    place: str
    said: Mapping[str, Any]
    planned: Planned
    board: Board
    seat: Seat


def _entries(value: Mapping[str, Any], node: str) -> dict[int, _Entry]:
    """Return the devices by index, those of the profile first."""
    try:
        profile = parse_profile(value["profile"]) if "profile" in value else ()
    except ValueError as error:
        raise CheckError(f"profile: {error}") from None
    written: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for number, said in enumerate(value.get("devices", ())):
        place = f"devices[{number}]"
        if "profile" in value and "index" not in said:
            raise CheckError(f"{place}.index: is missing; beside a profile it says which device is meant")
        index = said.get("index", number)
        if index in written:
            raise CheckError(f"{place}.index: {index} is given twice; give each device its own")
        written[index] = place, said
    plans = {device.index: device for device in profile}
    every = dict.fromkeys((*plans, *written))
    if len(every) > MAX_DEVICES:
        raise CheckError(f"devices: {len(every)} together with the profile are too many; give at most {MAX_DEVICES}")
    minors = parse_mig_minors("\n".join(value.get("migMinors", ())))
    entries, counts = dict[int, _Entry](), Counter[str]()
    for index in every:
        place, said = written.get(index, ("profile", {}))
        plan = plans.get(index)
        model = str(said.get("model") or (plan.model if plan is not None else ""))
        if plan is None:
            first_half = index < (len(every) + 1) // 2
            plan = Planned(index=index, model=model, place=counts[model], beside=index, first_half=first_half)
        counts[model] += 1
        board = MODELS[model] if model else _unknown(said.get("vendor", nvidia.VENDOR))
        parent = None if plan.parent is None else entries[plan.parent].seat
        bus_id = _bus_id(place, said, plan, parent, board)
        seat = Seat(node=node, index=index, bus_id=bus_id, place=plan.place, parent=parent, mig_minors=minors)
        entries[index] = _Entry(place=place, said=said, planned=replace(plan, model=model), board=board, seat=seat)
    return entries


def _unknown(vendor: str) -> Board:
    """The board of a device without a model: a GPU of NVIDIA's, unless the file names another maker, of which only what
    the file says is known."""
    return PLAIN if vendor == nvidia.VENDOR else Board(vendor=vendor, driver=PLAIN.driver)


def _driver(said: Mapping[str, Any], board: Board) -> Driver:
    """The first device's maker's, where the file does not say."""
    state, usual = DriverState(said.get("state", "Loaded")), board.driver
    loaded = state is DriverState.LOADED
    return Driver(
        state=state,
        name=said.get("name", usual.name),
        version=said.get("version", usual.version) if loaded else "",
        cuda_version=said.get("cudaVersion", usual.cuda_version) if loaded else "",
    )


def _bus_id(place: str, said: Mapping[str, Any], plan: Planned, parent: Seat | None, board: Board) -> str:
    if "pciBusId" in said:
        if bus_id := normal_bus_id(said["pciBusId"]):
            return bus_id
        raise wrong(f"{place}.pciBusId", said["pciBusId"], "a PCI address such as 0000:17:00.0")
    if parent is not None:
        return function_bus_id(parent.bus_id, plan.place)
    return f"{pci_bus_id(plan.index)[:-1]}{board.function}"


def _device(entry: _Entry, *, supported: bool) -> DeviceFact:
    """`supported`: NVIDIA's driver says which recovery action it requires."""
    said, board, planned = entry.said, entry.board, entry.planned
    odd = [key for key in KEYS if key in said and not isinstance(board, NvidiaBoard)]
    if odd:
        raise CheckError(f"{entry.place}.{odd[0]}: only NVIDIA's GPUs have this; the device is one of {board.vendor}")
    own = board.device(entry.seat, said, entry.place)
    vendor, kind = said.get("vendor", board.vendor), said.get("type", board.type)
    conditions, counters = said.get("conditions", ()), said.get("counters", ())
    check_words(entry.place, vendor, kind, conditions=conditions, counters=counters)
    memory = said.get("memoryBytes", board.memory_mib * MEBIBYTE)
    texts = {name: said[camel(name)] for name in TEXTS if camel(name) in said}
    root = _pcie_root(planned, entry.seat) if planned.model else ""
    half = 0 if planned.first_half else 1  # of the devices at each of two CPUs
    numa = said.get("numaNode", half if planned.model else None)
    written = {name: said[key] for key, name in READINGS.items() if key in said}
    written |= {name: tuple(value) for name, value in written.items() if isinstance(value, list)}
    readings = {**(PCIE_LINK if planned.model else {}), **board.well, **written}
    if not supported:
        readings["recovery_action"] = None
    extra = {**own.extra, **{name: attribute(value) for name, value in said.get("extra", {}).items()}}
    capacity = {**({"memory": from_bytes(memory)} if memory else {}), **board.capacity}
    if len(extra) + len(capacity) > MAX_OWN:
        over = f"{len(extra)} attributes and {len(capacity)} amounts are too many"
        raise CheckError(f"{entry.place}.extra: {over}; give at most {MAX_OWN} together")
    return replace(
        own,
        id=said.get("id", own.id),
        minor=said.get("minor", own.minor),
        type=kind,
        vendor=vendor,
        **{"pcie_root": root, **texts},
        numa_node=numa if numa is not None and numa >= 0 else None,
        extra=extra,
        capacity=capacity,
        device_nodes=tuple(said.get("deviceNodes", own.device_nodes)),
        readings=Readings(**readings),
    )


def _pcie_root(planned: Planned, seat: Seat) -> str:
    """Each has one of its own, unless a profile puts it beside another device."""
    bus_id = seat.bus_id if planned.beside == planned.index else pci_bus_id(planned.beside)
    return f"pci{bus_id[:5]}{max(int(bus_id[5:7], 16) - 1, 0):02x}"


def _connected(devices: list[DeviceFact], links: Any, entries: Mapping[int, _Entry]) -> tuple[DeviceFact, ...]:
    """The devices with PCIe paths and direct links between them; what the file says about a pair comes first."""
    known = {device.index for device in devices}
    pairs: dict[frozenset[int], Mapping[str, Any]] = {}
    for number, link in enumerate(links):
        for end in ("a", "b"):
            if link[end] not in known:
                raise wrong(f"links[{number}].{end}", link[end], "the index of a device in this file")
        if link["a"] == link["b"]:
            raise CheckError(f"links[{number}]: joins device {link['a']} with itself; give two devices")
        pairs[frozenset((link["a"], link["b"]))] = link
    result = []
    for device in devices:
        paths, direct, own = list[PcieNeighbour](), list[Link](), entries[device.index]
        for other in devices:
            if other.index == device.index:
                continue
            said, its = pairs.get(frozenset((device.index, other.index)), {}), entries[other.index]
            paths.append(PcieNeighbour(to=other.id, path=PciePath(said.get("pcie", _usual_path(device, other)))))
            is_bridged = its.board is own.board and its.seat.place // 2 == own.seat.place // 2
            if count := said.get("nvlinks", own.board.bridged if is_bridged else 0):
                direct.append(Link(kind="NVLink", to=other.id, count=count))
            if own.board.xgmi and its.board.xgmi:
                direct.append(Link(kind="XGMI", to=other.id, count=1))
        result.append(replace(device, pcie=nearest(paths, len(devices)), links=(*device.links, *direct)[:MAX_LINKS]))
    return tuple(result)


def _usual_path(one: DeviceFact, other: DeviceFact) -> PciePath:
    if one.numa_node != other.numa_node:
        return PciePath.SYSTEM
    return PciePath.HOSTBRIDGE if one.pcie_root and one.pcie_root == other.pcie_root else PciePath.NODE


def _events(entries: Any, ids: Mapping[int, str]) -> dict[str, tuple[EventKey, int]]:
    events: dict[str, tuple[EventKey, int]] = {}
    for number, entry in enumerate(entries):
        place = f"events[{number}]"
        if entry["id"] in events:
            raise CheckError(f"{place}.id: {entry['id']} is given twice; give each event its own")
        if "device" in entry and entry["device"] not in ids:
            raise wrong(f"{place}.device", entry["device"], "the index of a device in this file")
        kind = entry.get("kind", "xid")
        if kind == "xid" and "xid" not in entry:
            raise CheckError(f"{place}.xid: is missing; give the XID's number, or another kind")
        key = EventKey(
            kind=kind,
            device_id=ids[entry["device"]] if "device" in entry else None,
            xid=entry.get("xid"),
            gi=entry.get("gi"),
            ci=entry.get("ci"),
        )
        events[entry["id"]] = key, entry.get("count", 1)
    return events


def _refuse_repeats(devices: list[DeviceFact]) -> None:
    ids = Counter(id_ for device in devices for id_ in (device.id, *(part.id for part in device.partitions)))
    if again := [id_ for id_, count in ids.items() if count > 1]:
        raise CheckError(f"devices: the id {again[0]} is given twice; give each device its own")


# --- the probe --------------------------------------------------------------------------------------------------------
FILE_POLL_SECONDS = 0.1
MAX_REMEMBERED_EVENTS = 4096


@dataclass(slots=True, kw_only=True)
class ProfileSource(Source):
    """A profile's devices, always well."""

    state: SimulatedState
    name: str = "simulated"

    def poll(self) -> SourceFacts:
        return self.state.facts


@dataclass(slots=True, kw_only=True)
class FileSource(Source):
    """A source that reports what the file says now."""

    file: WatchedFile[SimulatedState]
    name: str = "simulated"
    poll_seconds: float = FILE_POLL_SECONDS
    _remembered: dict[str, None] = field(default_factory=dict)  # ids of events, oldest first
    _had_good: bool = False

    def poll(self) -> SourceFacts:
        before = self.file.value
        self.file.refresh()
        state, problem = self.file.value, self.file.problem
        if state is not None and state is not before:
            self._fire(state)
            while state.hang:  # like a call that never comes back; only a new process reads the file again
                time.sleep(3600)
        wrong = () if problem is None else (problem,)
        if state is None or (problem is not None and problem.code == FILE_MISSING):
            return SourceFacts(driver=NO_DRIVER, problems=wrong)
        devices = state.facts.devices if self.use else tuple(map(_without_use, state.facts.devices))
        return replace(state.facts, devices=devices, problems=(*state.facts.problems, *wrong))

    def _fire(self, state: SimulatedState) -> None:
        for name, (key, count) in state.events.items():
            if name not in self._remembered and self._had_good:
                self.events.record(key, count=count)
            self._remembered[name] = None
        self._had_good = True
        while len(self._remembered) > MAX_REMEMBERED_EVENTS:
            self._remembered.pop(next(iter(self._remembered)))


def _without_use(fact: DeviceFact) -> DeviceFact:
    return replace(fact, readings=replace(fact.readings, processes=None, memory_allocated_bytes=None))


def source(options: Namespace) -> ProfileSource | FileSource:
    """From its arguments (kind). Raises CheckError when there is no such profile."""
    node = options.node_name or os.environ.get("NODE_NAME") or platform.node() or "node"
    if options.file:
        return FileSource(file=WatchedFile(path=options.file, parse=partial(parse, node=node)))
    try:
        return ProfileSource(state=from_profile(options.profile, node=node))
    except CheckError as error:
        raise CheckError(f"argument --{error}") from None
