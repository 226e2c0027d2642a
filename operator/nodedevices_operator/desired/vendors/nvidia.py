"""The labels of NVIDIA's GPU Feature Discovery, by the same names and values.

They say what the NodeDevices says, and use nothing else. Where GPU Feature Discovery and this differ:

- several models on one node: the labels are those of the model with the most GPUs, at equal numbers of the one with
  the lowest index (whole GPUs before GPUs in MIG mode); theirs change from run to run. `count` is that model's, too.
- a GPU that is off the bus counts until the driver no longer lists it. Of a node that has lost all, the labels go on
  saying what they were, and `count` is 0: a policy that selects by the product does not leave because of a fault.
- `gfd.timestamp` is when one of the other labels last changed; theirs is when the configuration was last read.
- the resource's own name may be any: sharing is read from what the node offers.
- a third sharing-strategy, `memory`: `replicas` is then how many units of memory a GPU has, and the product stays.
- what is no label value (a character, more than 63 of them) is left out of the value, of a product the end of the
  model's name and not its MIG profile or -SHARED; theirs loses the whole label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from msgspec import Struct

from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord
from nodedevices_operator.records.shared import DeviceModel, PartitionProfile, Platform

VENDOR = "nvidia"  # of its devices, and the name of its driver
DOMAIN = "nvidia.com"
PREFIXES = (f"{DOMAIN}/",)
TIMESTAMP = f"{DOMAIN}/gfd.timestamp"
MAX_VALUE = 63
STRATEGIES = {"timeSlicing": "time-slicing", "mps": "mps", "memory": "memory"}  # none is the rest
# By the major number of the compute capability, as GPU Feature Discovery names them; each from a minor number on, the
# highest first.
FAMILIES = {
    1: {0: "tesla"},
    2: {0: "fermi"},
    3: {0: "kepler"},
    5: {0: "maxwell"},
    6: {0: "pascal"},
    7: {5: "turing", 0: "volta"},
    8: {9: "ada-lovelace", 0: "ampere"},
    9: {0: "hopper"},
    10: {0: "blackwell"},
    12: {0: "blackwell"},
    13: {0: "rubin"},
}
_NOT_IN_PRODUCT = re.compile(r"[^A-Za-z0-9_. -]")
_PROFILE = re.compile(r"(?:(?P<ci>[0-9]+)c\.)?(?P<gi>[0-9]+)g\..*")


def labels(record: NodeDevicesRecord) -> dict[str, str]:
    listed = [device for device in record.devices if device.model.vendor == VENDOR]
    if not listed:
        return {}
    devices = [device for device in listed if not device.health.missing] or listed
    platform = record.platform
    mig = any(_mig_enabled(device) for device in devices)
    mps = any(resource.sharing == "mps" for resource in record.resources if resource.served)
    found = {
        "gpu.machine": _clean((platform.machine or "unknown").replace(" ", "-")),
        "gpu.mode": platform.mode if platform.mode in {"compute", "graphics"} else "unknown",
        "mig.capable": str(any(device.model.attribute("migCapable") is True for device in devices)).lower(),
        "mps.capable": str(mps and not mig).lower(),
        **_versions(platform),
        **_models(record, [device for device in devices if device.model.product]),
    }
    if platform.clique:
        found["gpu.clique"] = _clean(platform.clique)
    if platform.vgpu_version or platform.vgpu_branch:
        found["vgpu.present"] = "true"
        found["vgpu.host-driver-version"] = _clean(platform.vgpu_version)
        found["vgpu.host-driver-branch"] = _clean(platform.vgpu_branch)
    return {f"{DOMAIN}/{key}": value for key, value in found.items()}


def _versions(platform: Platform) -> dict[str, str]:
    """Driver and CUDA, under today's names and the deprecated ones; nothing while no driver is loaded."""
    labels: dict[str, str] = {}
    loaded = platform.driver(VENDOR)
    driver = loaded.version.split(".")
    if 2 <= len(driver) <= 3 and all(part.isdigit() for part in driver):
        major, minor, revision = (*driver, "")[:3]
        labels |= {
            "cuda.driver-version.major": major,
            "cuda.driver-version.minor": minor,
            "cuda.driver-version.revision": revision,
            "cuda.driver-version.full": loaded.version,
            "cuda.driver.major": major,
            "cuda.driver.minor": minor,
            "cuda.driver.rev": revision,
        }
    cuda = loaded.cuda_version.split(".")
    if len(cuda) == 2 and all(part.isdigit() for part in cuda):
        labels |= {
            "cuda.runtime-version.major": cuda[0],
            "cuda.runtime-version.minor": cuda[1],
            "cuda.runtime-version.full": loaded.cuda_version,
            "cuda.runtime.major": cuda[0],
            "cuda.runtime.minor": cuda[1],
        }
    return labels


# --- models and MIG --------------------------------------------------------------------------------------------------
class _Offer(Struct, frozen=True):
    """How a kind of device is shared."""

    replicas: int = 1
    strategy: str = "none"
    suffix: bool = False  # shared under its own name: the product says -SHARED


def _models(record: NodeDevicesRecord, devices: Sequence[DeviceRecord]) -> dict[str, str]:
    if not devices:
        return {}
    whole = [device for device in devices if not _mig_enabled(device)]
    # Of the model with the most GPUs; the first by index where several have as many.
    counts = Counter(device.model.product for device in whole or devices)
    chosen = max(whole or devices, key=lambda device: counts[device.model.product])
    same = [device for device in devices if device.model.product == chosen.model.product]
    # A GPU in MIG mode is not offered itself.
    offer = (_by_memory(record, same) or _offer(record, "gpu")) if whole else _Offer(replicas=0)
    count = sum(not device.health.missing for device in same)
    labels = _common("gpu", chosen.model.product, (), count, offer)
    if chosen.model.memory_mib:
        labels["gpu.memory"] = str(chosen.model.memory_mib)
    labels |= _architecture(chosen.model)
    strategy = record.platform.mig_strategy
    if strategy not in {"single", "mixed"}:
        return labels
    labels["mig.strategy"] = strategy
    return labels | (_single(record, devices) if strategy == "single" else _mixed(record, devices))


def _mig_enabled(device: DeviceRecord) -> bool:
    return device.model.attribute("migEnabled") is True


def _common(key: str, model: str, ending: Sequence[str], count: int, offer: _Offer) -> dict[str, str]:
    return {
        f"{key}.product": _product(model, *ending, *(("SHARED",) if offer.suffix else ())),
        f"{key}.count": str(count),
        f"{key}.replicas": str(offer.replicas),
        f"{key}.sharing-strategy": offer.strategy,
    }


def _architecture(model: DeviceModel) -> dict[str, str]:
    parts = str(model.attribute("cudaComputeCapability") or "").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return {}
    major, minor = int(parts[0]), int(parts[1])
    family = next((name for least, name in FAMILIES.get(major, {}).items() if minor >= least), "undefined")
    return {"gpu.family": family, "gpu.compute.major": str(major), "gpu.compute.minor": str(minor)}


def _single(record: NodeDevicesRecord, devices: Sequence[DeviceRecord]) -> dict[str, str]:
    """MIG devices take the GPU's labels, if all GPUs are in MIG mode, none is empty and there is one profile only."""
    parents = [device for device in devices if _mig_enabled(device)]
    if not parents:
        return {}
    profiles = _profiles(parents)
    if len(parents) < len(devices) or any(not _present(device) for device in parents) or len(profiles) != 1:
        product = _product(parents[0].model.product, "MIG", "INVALID")
        return {"gpu.product": product, "gpu.count": "0", "gpu.replicas": "0", "gpu.memory": "0"}
    [(profile, (product, count))] = profiles.items()
    return _mig("gpu", profile, product, count, _offer(record, "gpu"))


def _mixed(record: NodeDevicesRecord, devices: Sequence[DeviceRecord]) -> dict[str, str]:
    """Return one group of labels for each profile."""
    labels: dict[str, str] = {}
    for profile, (product, count) in _profiles(devices).items():
        key = f"mig-{profile.name.replace('+', '.')}"
        labels |= _mig(key, profile, product, count, _offer(record, key))
    return labels


def _present(device: DeviceRecord) -> list[PartitionProfile]:
    """Return the MIG devices that are there; one that only a pod still holds is none."""
    return [part.profile for part in device.parts if part.profile is not None and not part.health.missing]


def _profiles(devices: Sequence[DeviceRecord]) -> dict[PartitionProfile, tuple[str, int]]:
    """Profile -> the product that it is of (the first, by index) and how many there are. One entry for each name."""
    first: dict[str, tuple[PartitionProfile, str]] = {}
    counts: Counter[str] = Counter()
    for device in devices:
        for profile in _present(device):
            first.setdefault(profile.name, (profile, device.model.product))
            counts[profile.name] += 1
    return {profile: (product, counts[name]) for name, (profile, product) in first.items()}


def _mig(key: str, profile: PartitionProfile, product: str, count: int, offer: _Offer) -> dict[str, str]:
    labels = _common(key, product, ("MIG", profile.name), count, offer)
    shape = _PROFILE.fullmatch(profile.name)
    gi = int(shape["gi"]) if shape is not None else None
    facts = {
        "memory": profile.memory_mib,
        "multiprocessors": profile.count("multiprocessors"),
        "slices.gi": gi,
        "slices.ci": int(shape["ci"]) if shape is not None and shape["ci"] else gi,  # unnamed: all of the instance
        "engines.copy": profile.count("copyEngines"),
        "engines.decoder": profile.count("decoders"),
        "engines.encoder": profile.count("encoders"),
        "engines.jpeg": profile.count("jpegEngines"),
        "engines.ofa": profile.count("ofaEngines"),
    }
    return labels | {f"{key}.{name}": str(value) for name, value in facts.items() if value is not None}


def _offer(record: NodeDevicesRecord, base: str) -> _Offer:
    """Return how the resource of that name (after the slash) is shared.

    Where it has another name, for whole GPUs: of all names that are not a MIG profile's, the one with most replicas.
    """
    served = [replace(it, name=it.name.partition("/")[2]) for it in record.resources if it.served]
    found = [it for it in served if it.name in {base, f"{base}.shared"}]
    if not found and base == "gpu":
        found = [it for it in served if not it.name.startswith("mig-")]
    most = max(found, key=lambda it: it.replicas, default=None)
    if most is None or most.replicas < 2:
        return _Offer()
    return _Offer(most.replicas, STRATEGIES.get(most.sharing, "none"), suffix=most.name == base)


def _by_memory(record: NodeDevicesRecord, devices: Sequence[DeviceRecord]) -> _Offer | None:
    """GPUs of one model that are shared by memory, all or some of them: their resource has a name of its own, and as
    many shares of each as its memory has units."""
    if not any(it.sharing == "memory" for it in record.resources if it.served):
        return None
    shares = max(device.shares for device in devices)
    return _Offer(shares, STRATEGIES["memory"]) if shares else None


# --- values ----------------------------------------------------------------------------------------------------------
def _product(model: str, *ending: str) -> str:
    """Return the product: of one that is too long, as many words of the model as leave room for the whole ending."""
    name, end = _clean(model), "".join(f"-{_clean(part)}" for part in ending)
    room = max(0, MAX_VALUE - len(end))
    if len(name) > room:
        name = name[: room + 1].rpartition("-")[0] or name[:room]
    return _clean(f"{name}{end}")


def _clean(text: str) -> str:
    """The text as a label value: GPU Feature Discovery's rule, and what Kubernetes takes."""
    return "-".join(_NOT_IN_PRODUCT.sub("", text).split())[:MAX_VALUE].strip("-_.")
