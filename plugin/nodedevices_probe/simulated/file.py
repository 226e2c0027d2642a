"""The simulated devices file: text in, facts out, or a CheckError that names place, value and what would be right.

docs/simulated-devices.md is the description for people, `simulated_rules` has the keys. Pure: no file is opened here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_api.quantity import from_bytes

from nodedevices_probe.check import CheckError, wrong
from nodedevices_probe.events import EventKey
from nodedevices_probe.loop import Facts
from nodedevices_probe.nvidia import attributes as nvidia
from nodedevices_probe.protocol import (
    DeviceFact,
    Driver,
    DriverState,
    Link,
    Machine,
    PcieNeighbour,
    PciePath,
    Problem,
    Readings,
    nearest,
)
from nodedevices_probe.simulated.mig import partitions
from nodedevices_probe.simulated.profiles import MODELS, Model, device_id, parse_profile, pci_bus_id
from nodedevices_probe.simulated.rules import READINGS, RULES, TEXTS
from nodedevices_probe.sysfs import normal_bus_id, parse_mig_minors

MAX_FILE_BYTES = 1 << 20
MIB = 1 << 20
# What a board of a profile reads while nothing is wrong. A reading that is not there says nothing, so that a fault that
# is taken out of the file would never end.
WELL: Mapping[str, Any] = {
    "remap_pending": False,
    "remap_failure": False,
    "ecc_uncorrectable_volatile": 0,
    "sram_threshold_exceeded": False,
    "thermal_slowdown": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEvent:
    key: EventKey
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedState:
    """What a good file says."""

    facts: Facts
    events: Mapping[str, SimulatedEvent]  # by the file's id: it happens once, when its id first appears
    hang: bool = False


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML readers silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise CheckError(f"line {key.start_mark.line + 1}: {key.value}: is there twice; keep one")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def parse(text: str, *, node: str) -> SimulatedState:
    """What the file's text says. Raises CheckError."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise CheckError(f"line {line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckError(f"not YAML: {str(error).splitlines()[0] if str(error) else 'nested too deep'}") from None
    if value is None:
        raise CheckError("is empty; give a profile or devices, for example 'profile: h100 x 8'")
    RULES.check("", value)
    return _state(value, node)


def from_profile(profile: str, *, node: str) -> SimulatedState:
    """What a file with nothing but this profile says. Raises CheckError."""
    return _state({"profile": profile}, node)


def _state(value: Mapping[str, Any], node: str) -> SimulatedState:
    entries, model = _entries(value)
    supported = value.get("recoveryActionSupported", True)
    minors = parse_mig_minors("\n".join(value.get("migMinors", ())))
    every = [
        _device(place, entry, len(entries), node=node, supported=supported, mig_minors=minors)
        for place, entry in entries
    ]
    every.sort(key=lambda device: device.index)
    absent = {entry["index"] for _, entry in entries if entry.get("absent")}
    devices = [each for each in every if each.index not in absent and each.product_name not in nvidia.DISPLAY_PRODUCTS]
    _refuse_repeats(devices)
    driver = {
        "state": "Loaded",
        "name": "nvidia",
        "version": "570.148.08",
        "cudaVersion": "12.8",
        **value.get("driver", {}),
    }
    state = DriverState(driver["state"])
    machine = value.get("machine", {})
    facts = Facts(
        driver=Driver(
            state=state,
            name=driver["name"],
            version=driver["version"] if state is DriverState.LOADED else "",
            cuda_version=driver["cudaVersion"] if state is DriverState.LOADED else "",
        ),
        machine=Machine(
            type=machine.get("type", model.machine_type if model else ""),
            mode=machine.get("mode", "compute"),
            clique=machine.get("clique", _clique(model)),
            vgpu_version=machine.get("vgpuVersion", ""),
            vgpu_branch=machine.get("vgpuBranch", ""),
        ),
        accelerators_on_bus=value.get("acceleratorsOnBus", len(devices)),
        problems=tuple(Problem(code=each["code"], message=each["message"]) for each in value.get("problems", ())),
        devices=_connected(
            devices,
            value.get("links", ()),
            {entry["index"]: MODELS[entry["model"]].nvlinks_to_pair for _, entry in entries if "model" in entry},
        )
        if state is DriverState.LOADED
        else (),
        silent=value.get("silent", False),
    )
    events = _events(value.get("events", ()), {device.index: device.id for device in every})
    return SimulatedState(facts=facts, events=events, hang=value.get("hang", False))


def _entries(value: Mapping[str, Any]) -> tuple[list[tuple[str, Mapping[str, Any]]], Model | None]:
    """Every device with the place it was written at: the profile's, changed and extended by the file's own."""
    model: Model | None = None
    by_index: dict[int, tuple[str, dict[str, Any]]] = {}
    if "profile" in value:
        try:
            model, count = parse_profile(value["profile"])
        except ValueError as error:
            raise CheckError(f"profile: {error}") from None
        name = next(key for key, each in MODELS.items() if each is model)
        by_index = {index: ("profile", {"index": index, "model": name}) for index in range(count)}
    written: set[int] = set()
    for number, entry in enumerate(value.get("devices", ())):
        place = f"devices[{number}]"
        if model and "index" not in entry:
            raise CheckError(f"{place}.index: is missing; beside a profile it says which device is meant")
        index = entry.get("index", number)
        if index in written:
            raise CheckError(f"{place}.index: {index} is there twice; give each device its own")
        written.add(index)
        by_index[index] = (place, {**by_index.get(index, ("", {}))[1], **entry, "index": index})
    if len(by_index) > MAX_DEVICES:
        raise CheckError(f"devices: {len(by_index)} together with the profile are too many; give at most {MAX_DEVICES}")
    if not model:
        models = {entry["model"] for _, entry in by_index.values() if "model" in entry}
        model = MODELS[models.pop()] if len(models) == 1 else None
    return list(by_index.values()), model


def _device(
    place: str,
    entry: Mapping[str, Any],
    count: int,
    *,
    node: str,
    supported: bool,
    mig_minors: dict[tuple[int, int, int | None], int],
) -> DeviceFact:
    model = MODELS[entry["model"]] if "model" in entry else None
    index = entry["index"]
    minor = entry.get("minor", index)
    bus_id = normal_bus_id(entry["pciBusId"]) if "pciBusId" in entry else pci_bus_id(index)
    if not bus_id:
        raise wrong(f"{place}.pciBusId", entry["pciBusId"], "a PCI address such as 0000:17:00.0")
    numa = entry.get("numaNode", (0 if index < (count + 1) // 2 else 1) if model else None)
    memory = entry.get("memoryBytes", model.memory_mib * MIB if model else 0)
    mig = entry.get("mig", [])
    texts = {name: entry.get(key, getattr(model, name, "")) for key, name in TEXTS.items()}
    texts["pcie_root"] = entry.get(
        "pcieRoot", f"pci{bus_id[:5]}{max(int(bus_id[5:7], 16) - 1, 0):02x}" if model else ""
    )
    to_switch = entry.get("nvlinksToSwitch", model.nvlinks_to_switch if model else 0)
    written = {name: entry[key] for key, (name, _) in READINGS.items() if key in entry}
    readings = {**(WELL if model else {}), **written}
    return DeviceFact(
        id=entry.get("id", device_id(node, index)),
        index=index,
        minor=minor,
        type=entry.get("type", "gpu"),
        vendor=entry.get("vendor", nvidia.VENDOR),
        **texts,
        pci_bus_id=bus_id,
        numa_node=numa if numa is not None and numa >= 0 else None,
        extra=nvidia.attributes(
            compute_capability=entry.get("computeCapability", model.compute_capability if model else ""),
            mig_capable=entry.get("migCapable", bool(mig) or (model.mig_capable if model else None)),
            mig_enabled=entry.get("migEnabled", bool(mig)),
        ),
        capacity={"memory": from_bytes(memory)} if memory else {},
        partitions=partitions(
            mig,
            place=f"{place}.mig",
            node=node,
            index=index,
            minor=minor,
            memory_bytes=memory,
            multiprocessors_per_slice=model.mig_multiprocessors if model else None,
            mig_minors=mig_minors,
        ),
        links=(Link(kind="NVLink", to="switch", count=to_switch),) if to_switch else (),
        device_nodes=tuple(entry.get("deviceNodes", (f"/dev/nvidia{minor}",))),
        readings=Readings(
            **{**readings, "recovery_action": readings.get("recovery_action", "None") if supported else None}
        ),
    )


def _connected(devices: list[DeviceFact], links: Any, to_pair: Mapping[int, int]) -> tuple[DeviceFact, ...]:
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
        paths, direct = [], []
        for other in devices:
            if other.index == device.index:
                continue
            said = pairs.get(frozenset((device.index, other.index)), {})
            paths.append(PcieNeighbour(to=other.id, path=PciePath(said.get("pcie", _usual_path(device, other)))))
            bridge = to_pair.get(device.index, 0) if device.index // 2 == other.index // 2 else 0
            if count := said.get("nvlinks", bridge):
                direct.append(Link(kind="NVLink", to=other.id, count=count))
        result.append(replace(device, pcie=nearest(paths, len(devices)), links=(*device.links, *direct)))
    return tuple(result)


def _usual_path(one: DeviceFact, other: DeviceFact) -> PciePath:
    if one.numa_node != other.numa_node:
        return PciePath.SYSTEM
    return PciePath.HOSTBRIDGE if one.pcie_root and one.pcie_root == other.pcie_root else PciePath.NODE


def _events(entries: Any, ids: Mapping[int, str]) -> dict[str, SimulatedEvent]:
    events: dict[str, SimulatedEvent] = {}
    for number, entry in enumerate(entries):
        place = f"events[{number}]"
        if entry["id"] in events:
            raise CheckError(f"{place}.id: {entry['id']} is there twice; give each event its own")
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
        events[entry["id"]] = SimulatedEvent(key=key, count=entry.get("count", 1))
    return events


def _refuse_repeats(devices: list[DeviceFact]) -> None:
    seen: set[str] = set()
    for device in devices:
        for each in (device.id, *(partition.id for partition in device.partitions)):
            if each in seen:
                raise CheckError(f"devices: the id {each} is there twice; give each device its own")
            seen.add(each)


def _clique(model: Model | None) -> str:
    return f"{uuid.uuid5(uuid.NAMESPACE_DNS, 'simulated.nodedevices.io')}.1" if model and model.fabric else ""
