"""The two machines of a chaos run, and what can be configured on them: tables, and what follows from them.

What a node offers is only guessed here (`names`), so that most requests can be met: what is right is judged by what is
observed (invariants.py), never by this guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

NODES = ("n1", "n2")
PROFILES = {
    "n1": "h100 x 4, mi300x-cpx, connectx-7 x 2",
    "n2": "l4 x 4, u250, connectx-7",
}
# By index, as the profiles number them.
DEVICES: Mapping[str, tuple[str, ...]] = {
    "n1": ("h100", "h100", "h100", "h100", "mi300x", "nic", "nic"),
    "n2": ("l4", "l4", "l4", "l4", "u250", "nic"),
}
# Of the second probe, which policies add and take away: a NIC of its own on each node.
EXTRA = {"devices": [{"index": 20, "id": "0000:e1:00.0", "type": "nic", "vendor": "extra", "pciBusId": "0000:e1:00.0"}]}

GPU, RENAMED, SHARED, SOME = "nvidia.com/gpu", "example.com/gpu", "example.com/gpu.shared", "example.com/gpu.some"
MEMORY, MEMORY_3 = "nodedevices.io/gpu-memory", "example.com/gpu-memory-3gi"
VCUDA_MEMORY, VCUDA_CORE = "tencent.com/vcuda-memory", "tencent.com/vcuda-core"
REPLICATED = (GPU, RENAMED, SHARED, SOME)  # where a policy has replicas
AMD, NIC, EXTRA_NIC = "amd.com/gpu", "example.com/nic", "example.com/extra-nic"
MIB = "nodedevices.io/gpu-memory-mib"
MIG = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb")

FAULTS: Mapping[str, tuple[str, ...]] = {
    "h100": ("lost", "absent", "xid79"),
    "l4": ("lost", "absent", "xid79"),
    "mi300x": ("absent", "ecc"),
    "nic": ("linkDown", "absent"),
    "u250": ("firewall", "absent"),
}
UNUSED = ("linkDown",)  # Degraded where nobody has the device and no resource: an unused port is no fault of the node
CUTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "three-small": [{"profile": "1g.10gb", "gi": 7 + each, "start": each} for each in range(3)],
    "two-large": [{"profile": "3g.40gb", "gi": 1 + each, "start": 4 * each} for each in range(2)],
    "one-of-each": [
        {"profile": "3g.40gb", "gi": 1, "start": 4},
        {"profile": "2g.20gb", "gi": 3, "start": 0},
        {"profile": "1g.10gb", "gi": 9, "start": 2},
    ],
}

STORM = 100  # equal events of one id at once
BUDGET = {"maxUnavailable": "100%", "perHour": 200}
# Section of a policy -> choice -> what it says; a choice that is not here is no policy at all.
SHARING: Mapping[str, Mapping[str, Any]] = {
    "four": {"strategy": "timeSlicing", "resources": [{"replicas": 4}]},
    "two": {"strategy": "timeSlicing", "resources": [{"replicas": 2}]},
    "three-renamed": {"strategy": "timeSlicing", "resources": [{"replicas": 3, "rename": SHARED}]},
    "some": {"strategy": "timeSlicing", "resources": [{"replicas": 3, "rename": SOME, "devices": ["0", "1"]}]},
    "memory": {"strategy": "memory", "resources": [{"memoryUnit": "1Gi"}]},
    "memory-2": {"strategy": "memory", "resources": [{"memoryUnit": "2Gi"}]},
    "memory-3": {"strategy": "memory", "resources": [{"memoryUnit": "3Gi", "rename": MEMORY_3}]},
    "memory-some": {"strategy": "memory", "resources": [{"memoryUnit": "1Gi", "devices": ["0", "2"]}]},
    "cores": {"strategy": "memory", "resources": [{"memoryUnit": "1Gi", "cores": True}]},
    "vcuda": {
        "strategy": "memory",
        "resources": [
            {
                "memoryUnit": "256Mi",
                "rename": VCUDA_MEMORY,
                "devices": ["0", "1"],
            }
        ],
    },
}
UNITS = {"memory": 1, "memory-2": 2, "memory-3": 3, "memory-some": 1, "cores": 1}  # GiB
_OTHERS = (
    {"match": {"type": "nic", "vendor": "extra"}, "name": EXTRA_NIC},
    {"match": {"type": "nic"}, "name": NIC},
)
RESOURCES: Mapping[str, Mapping[str, Any]] = {
    "nics": {"devices": [*_OTHERS]},
    "renamed": {"devices": [*_OTHERS, {"match": {"vendor": "nvidia"}, "name": RENAMED}]},
    "without-1": {"devices": [*_OTHERS], "exclude": ["{1}"]},
}
PARTITIONS: Mapping[str, Mapping[str, Any]] = {"mixed": {"strategy": "mixed"}, "single": {"strategy": "single"}}
ACTIONS: Mapping[str, Mapping[str, Any]] = {
    "taint": {"taintEffect": "NoSchedule", "budget": BUDGET},
    "evict": {
        "evictMode": "Immediate",
        "budget": BUDGET,
        "breakerPercent": 100,
    },
    "marks": {"podCondition": "Always"},
}
DISCOVERY: Mapping[str, Mapping[str, Any]] = {
    "without-extra": {"probes": ["simulated"]},
    "extra-first": {"probes": ["extra", "simulated"]},
}
CAPACITY: Mapping[str, Any] = {"memory": [{"name": MIB, "sumOf": "memoryMiB"}]}
SERVING: Mapping[str, Mapping[str, Any]] = {"dra": {"api": "DRA"}}
BESIDE: Mapping[str, Mapping[str, Any]] = {"serving": {"injection": {"deviceListStrategies": ["cdi-cri"]}}}
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "sharing": SHARING,
    "resources": RESOURCES,
    "partitions": PARTITIONS,
    "faults": ACTIONS,
    "discovery": DISCOVERY,
    "capacity": CAPACITY,
    "serving": SERVING,
}


def section(name: str, chosen: Mapping[str, str], ids: Mapping[int, str]) -> Any:
    """What the policy of a section says; None: there is none. `ids`: the node's devices by index."""
    said = SECTIONS[name].get(chosen.get(name, ""))
    if said is None:
        return None
    if name == "sharing":
        whole = RENAMED if chosen.get("resources") == "renamed" else GPU
        return {**said, "resources": [{"name": whole, **each} for each in said["resources"]]}
    if "exclude" in said:
        return {**said, "exclude": [ids.get(int(each.strip("{}")), "none") for each in said["exclude"]]}
    return said


def names(node: str, chosen: Mapping[str, str], cut: Iterable[str]) -> dict[str, int]:
    """Resources that the node probably offers, each with the most that a container should request of it."""
    whole = RENAMED if chosen.get("resources") == "renamed" else GPU
    found: dict[str, int] = {}
    match chosen.get("sharing"):
        case "four" | "two":
            found[whole] = 4
        case "three-renamed":
            found[SHARED] = 3
        case "some":
            found |= {whole: 1, SOME: 2}
        case "memory" | "cores":
            found[MEMORY] = 14
        case "memory-2":
            found[MEMORY] = 8
        case "memory-3":
            found[MEMORY_3] = 5
        case "memory-some":
            found |= {whole: 1, MEMORY: 14}
        case "vcuda":
            found |= {whole: 1, VCUDA_MEMORY: 30}
        case _:
            found[whole] = 2
    if node == "n1":
        found[AMD] = 3
        if chosen.get("partitions") == "mixed":
            found |= {f"nvidia.com/mig-{part['profile']}": 1 for each in cut for part in CUTS[each]}
            found["amd.com/cpx_nps4"] = found.pop(AMD)
    if chosen.get("resources"):
        found[NIC] = 1
        if chosen.get("discovery") != "without-extra":
            found[EXTRA_NIC] = 1
    return found


def hardware(
    node: str,
    faults: Iterable[tuple[int, str, str]],
    cut: Mapping[int, str],
    *,
    silent: bool = False,
    storm: str = "",
) -> str:
    """The simulated devices file: faults by index, kind and the name that the event has, and what is cut up.

    `storm`: the name of a burst of events, each device's own, that mean errors of programs and no fault.
    """
    devices: dict[int, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    for index, layout in cut.items():
        devices[index] = {"migEnabled": True, "mig": [dict(each) for each in CUTS[layout]]}
    for index, kind, event in faults:
        device = devices.setdefault(index, {})
        match kind:
            case "lost":
                device["lost"] = True
            case "absent":
                devices[index] = {"absent": True}
            case "xid79":
                device["recoveryAction"] = "ResetBus"
                events.append({"id": event, "device": index, "xid": 79})
            case "ecc":
                device["eccUncorrectableVolatile"] = 1
            case "linkDown":
                device["conditions"] = ["linkDown"]
            case "firewall":
                device["conditions"] = ["firewallTripped"]
    if storm:
        gpus = [index for index, kind in enumerate(DEVICES[node]) if kind in ("h100", "l4")]
        events += [
            {"id": f"{storm}-{index}-{xid}", "device": index, "xid": xid, "count": STORM}
            for index in gpus
            for xid in (13, 31, 43)
        ]
    text: dict[str, Any] = {"profile": PROFILES[node]}
    if devices:
        text["devices"] = [{"index": index, **said} for index, said in sorted(devices.items())]
    if events:
        text["events"] = events
    if silent:
        text["silent"] = True
    return yaml.safe_dump(text)
