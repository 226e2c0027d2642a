"""What versions before this one wrote into the state file in another way, as this one has it. Pure.

A configuration is read whole or not at all, and a node that forgets which one its pods were started by would wait for
the operator before it registers; so a section or field that was renamed is read under both names. What is odd is left
as it is: the reader says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodedevices_api.quantity import from_bytes
from nodedevices_api.sections import MAX_REASONS
from nodedevices_api.versions import dra_version
from nodedevices_probe.nvidia.attributes import CUDA_COMPUTE_CAPABILITY, MIG_CAPABLE, MIG_ENABLED
from nodedevices_probe.nvidia.attributes import VENDOR as NVIDIA

NVIDIAS_PREFIX = "nvidia.com"
_COUNTS = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")


def as_written_now(document: Mapping[str, Any]) -> dict[str, Any]:
    """The whole document of a state file with the names that its parts have today."""
    result = dict(document)
    for part, within in (("applied", "sections"), ("spec", "config")):
        whole = document.get(part)
        if isinstance(whole, Mapping) and isinstance(sections := whole.get(within), Mapping):
            node = whole.get("node")
            result[part] = {**whole, within: _sections(sections, node if isinstance(node, Mapping) else {})}
            if (
                isinstance(node, Mapping) and "vendors" not in node
            ):  # what only NVIDIA's flags say stood beside the rest
                result[part]["node"] = {**node, "vendors": {NVIDIA: node}}
    applied = result.get("applied")
    if "probes" not in document and isinstance(applied, Mapping) and applied.get("resourcePrefix") == NVIDIAS_PREFIX:
        result["applied"] = {**applied, "resourcePrefix": ""}  # it was the default for all, and is NVIDIA's own
    if isinstance(devices := document.get("devices"), list):
        result["devices"] = [_device(each) if isinstance(each, Mapping) else each for each in devices]
    if isinstance(verdicts := document.get("verdicts"), Mapping):
        result["verdicts"] = {key: _verdict(each) for key, each in verdicts.items()}
    older = document.get("mps")  # when MPS was the only sharing mode with clients
    if "clients" not in document and isinstance(older, Mapping):
        result["clients"] = {"helpers": older.get("daemons", {}), "clients": older.get("clients", {})}
    return result


def _verdict(verdict: object) -> object:
    """With the names that recovery actions have today: one that is not known would require more than any other."""
    if not isinstance(verdict, Mapping):
        return verdict
    result = _renamed_action(verdict, "recovery_action")
    if isinstance(faults := verdict.get("faults"), list):
        result["faults"] = [_renamed_action(it, "action") if isinstance(it, Mapping) else it for it in faults]
    return result


def _renamed_action(of: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {**of, key: "ResetDevice"} if of.get(key) == "ResetGPU" else dict(of)


def _device(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """A device of NVIDIA's, when what only these have stood beside what all devices have."""
    fact = device.get("fact")
    if not isinstance(fact, Mapping) or "capacity" in fact:
        return device
    capability, capable, enabled = (fact.get(key) for key in ("computeCapability", "migCapable", "migEnabled"))
    version = dra_version(capability) if isinstance(capability, str) else None
    extra = {
        CUDA_COMPUTE_CAPABILITY: {"version": version} if version else None,
        MIG_CAPABLE: {"bool": capable} if isinstance(capable, bool) else None,
        MIG_ENABLED: {"bool": enabled} if isinstance(enabled, bool) else None,
    }
    parts = fact.get("partitions")
    fact = {**fact, "extra": {name: value for name, value in extra.items() if value is not None}}
    if isinstance(parts, list):
        fact["partitions"] = [{**it, "capacity": _capacity(it)} if isinstance(it, Mapping) else it for it in parts]
    return {**device, "fact": {**fact, "capacity": _capacity(fact)}}


def _capacity(older: Mapping[str, Any]) -> dict[str, str]:
    memory = older.get("memoryBytes")
    counts = {name: older.get(name) for name in _COUNTS}
    capacity = {name: str(count) for name, count in counts.items() if isinstance(count, int)}
    return ({"memory": from_bytes(memory)} if isinstance(memory, int) and memory > 0 else {}) | capacity


def _sections(sections: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(sections)
    if isinstance(health := sections.get("health"), Mapping):
        result["health"] = _health(health, node)
    if "mig" in result:
        result.setdefault("partitions", result.pop("mig"))
    return result


def _health(health: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """XIDs as rules by reason. `node` had what of NVIDIA's variables no list could say."""
    result = dict(health)
    lists = [(result.pop("fatalXids", None), "Unhealthy"), (result.pop("ignoreXids", None), "Ignored")]
    rules = [
        {"reasons": [f"Xid{number}" for number in xids[first : first + MAX_REASONS]], "state": state}
        for xids, state in lists
        if isinstance(xids, list)
        for first in range(0, len(xids), MAX_REASONS)
    ]
    every = [(node.get("fatal_all_xids"), "Unhealthy"), (node.get("ignore_all_xids"), "Ignored")]
    rules += [{"reasons": ["Xid*"], "state": state} for said, state in every if said is True]
    return {**result, "rules": rules} if rules else result
