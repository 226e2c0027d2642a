"""NVIDIA's device nodes (which ones a device needs, and where they are on the host), and the CDI specifications
(Container Device Interface) that are made of them: names of devices, the minimal specs that we write where there are no
others, and how nvidia-ctk makes a whole one.

What a GPU needs is what the probe reports. Which other nodes exist (control nodes, IMEX channels, GDRCopy, GDS, MOFED)
is an input, read where the host's /dev is visible: a node that does not exist keeps a container from starting. Memory
shared between GPUs of several nodes needs an IMEX channel in the container. Channel 0 is all there is: NVIDIA's plugin
takes [] or [0], and gives the channel to every container, if its node exists.

One spec per class, under NVIDIA's plugin's kinds and file names. A spec has device nodes and what goes with them, no
libraries: where those come from is vendors.cdi's matter. The container toolkit's own spec (kind nvidia.com/gpu) is
preferred for every device that it has, else one of our kind. A class without devices has no spec, and no name in an
answer either. nvidia-ctk runs in this container, where the driver root may be mounted at another place than on the
host.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct, field
from nodedevices_probe.nvidia import DISPLAY_PRODUCTS, NVIDIA_CTK, VENDOR as NVIDIA, mig_enabled
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory, InventoryDevice, Unit
from nodedevices_plugin.vendors.cdi import CdiSource, CdiSpec, Libraries, SpecRequest, ToolkitDevice, version

TYPES = frozenset({"gpu"})
DEFAULT_PREFIX = "nvidia.com"
# Needed with any GPU; each is passed only if it exists (NVIDIA's plugin alike).
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
NEEDED = CONTROL_NODES[:2]  # without which no program can use a GPU
GPU_NODES = "/dev/nvidia[0-9]*"
# What goes with a GPU on request: nodes by glob, and files of the host (NVIDIA's container toolkit looks for the same).
FEATURE_NODES: Mapping[str, tuple[str, ...]] = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs*",),
    "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
}
FEATURE_FILES: Mapping[str, tuple[str, ...]] = {"gds": ("/etc/cufile.json", "/run/udev")}
# All that an adapter has to find besides the devices of the line, as globs.
OPTIONAL_PATHS = (
    *CONTROL_NODES,
    GPU_NODES,
    "/dev/nvidia-caps-imex-channels/channel*",
    *(path for paths in FEATURE_NODES.values() for path in paths),
    *(path for paths in FEATURE_FILES.values() for path in paths),
)


def computing_gpus(devices: Iterable[InventoryDevice]) -> tuple[InventoryDevice, ...]:
    """NVIDIA's GPUs without display adapters, in their order."""
    return tuple(
        device
        for device in devices
        if device.fact.type in TYPES
        and device.fact.vendor == NVIDIA
        and device.fact.product_name not in DISPLAY_PRODUCTS
    )


def units_by_id(inventory: Inventory) -> Mapping[str, Unit]:
    """Return GPUs and MIG devices by id. Missing devices are in it with their last facts."""
    gpus = computing_gpus(inventory.devices)
    return {unit.id: unit for device in gpus for unit in (Unit(device), *device.partitions)}


def nodes_of(unit: Unit) -> tuple[str, ...]:
    """`/dev/nvidia<minor>`, and for a MIG device those of its GPU instance and its compute instance."""
    own = unit.partition.device_nodes if unit.partition else ()
    return (*_gpu_nodes(unit.device.fact), *own)


def _gpu_nodes(fact: DeviceFact) -> tuple[str, ...]:
    if fact.device_nodes or fact.minor is None:
        return fact.device_nodes
    return (f"/dev/nvidia{fact.minor}",)


def control_nodes(existing: Set[str]) -> tuple[str, ...]:
    return tuple(path for path in CONTROL_NODES if path in existing)


def seen(existing: Set[str]) -> bool:
    """True when one of NVIDIA's nodes is there; else this agent does not see the host's /dev, since the driver's own
    library needs them as well."""
    return not existing.isdisjoint(CONTROL_NODES) or any(fnmatchcase(path, GPU_NODES) for path in existing)


def missing(fact: DeviceFact, existing: Set[str]) -> tuple[str, ...]:
    """Return what a container with this GPU would lack."""
    of_gpu = (path for path in _gpu_nodes(fact) if fnmatchcase(path, GPU_NODES))
    return tuple(path for path in (*NEEDED, *of_gpu) if path not in existing)


def feature_nodes(feature: str, existing: Set[str]) -> tuple[str, ...]:
    """The nodes of `gdrcopy`, `gds` or `mofed` on this node, sorted; empty: it is not to be had here."""
    globs = FEATURE_NODES[feature]
    return tuple(sorted(path for path in existing if any(fnmatchcase(path, glob) for glob in globs)))


def host_path(root: str, path: str) -> str:
    """Return the path of `/dev/...` on the host, below the root that has the devices: `/run/nvidia/driver/dev/nvidia0`.

    A root may be given with its `/dev` or without.
    """
    base = posixpath.normpath(root or "/")
    if base == "/dev" or base.endswith("/dev"):
        base = base[: -len("/dev")] or "/"
    return posixpath.join(base, path.lstrip("/"))


IMEX_VARIABLE = "NVIDIA_IMEX_CHANNELS"


def imex_node(channel: int) -> str:
    return f"/dev/nvidia-caps-imex-channels/channel{channel}"


# --- CDI --------------------------------------------------------------------------------------------------------------
VENDOR = "k8s.device-plugin.nvidia.com"
GPU_KIND = f"{VENDOR}/gpu"
TOOLKIT_KIND = "nvidia.com/gpu"  # of NVIDIA's container toolkit
VERSION = "0.5.0"  # the least that has hostPath, and names that begin with a digit
FEATURES = ("gdrcopy", "gds", "mofed")  # in the order of NVIDIA's answers
SOURCE = CdiSource(
    kind=TOOLKIT_KIND,
    toolkit_files=frozenset({"nvidia.yaml", "nvidia.json"}),  # as the toolkit's own service and documentation say
    files=frozenset(f"{VENDOR}-{name}.json" for name in ("gpu", "imex-channel", *FEATURES)),  # as _spec makes them
    libraries_file=f"{VENDOR}-gpu.json",
)
LIBRARIES = Libraries(
    node_prefix="/dev/nvidia",
    remedy="have the container toolkit's own specification on the node (nvidia-ctk cdi generate "
    "--output=/etc/cdi/nvidia.yaml), or show nvidia-ctk to the agent (the component driver-root), or accept device "
    "nodes alone (NODEDEVICES_CDI_WITHOUT_LIBRARIES=true)",
)
ALL = "all"


class Host(Struct, frozen=True, kw_only=True):
    """The facts of the node that an answer or a spec needs, besides its devices.

    driver_root, dev_root: paths on the host (--driver-root, --dev-root); an empty dev_root is the driver root.
    existing: those of OPTIONAL_PATHS that exist there. imex_channels: those that exist .
    """

    driver_root: str = "/"
    dev_root: str = ""
    existing: Set[str] = field(default_factory=frozenset)
    features: tuple[str, ...] = ()  # of FEATURES: those that are switched on
    imex_channels: tuple[int, ...] = ()

    def path(self, path: str) -> str:
        """Return the path of a device node on the host."""
        return host_path(self.dev_root or self.driver_root, path)

    def features_present(self) -> tuple[str, ...]:
        """The features that are switched on and have a device node on this node."""
        return tuple(
            feature for feature in FEATURES if feature in self.features and feature_nodes(feature, self.existing)
        )


def toolkit_names(inventory: Inventory, devices: Sequence[ToolkitDevice]) -> dict[str, str]:
    """Device or MIG device id -> its name there: its id, else its index. One without all its device nodes is not it.

    The nodes show a spec that is out of date: an index may be another GPU's by now.
    """
    by_name = {device.name: device for device in devices}
    found = {}
    for unit in present_units(inventory) if devices else ():
        own = nodes_of(unit)
        for name in (unit.id, unit.index):
            candidate = by_name.get(name)
            if candidate is not None and own and candidate.nodes.issuperset(own):
                found[unit.id] = name
                break
    return found


def present_units(inventory: Inventory) -> tuple[Unit, ...]:
    """Return the units that can have a name: GPUs that are here, and instead of one in MIG mode its MIG devices."""
    return tuple(
        unit
        for device in computing_gpus(inventory.devices)
        if device.present
        for unit in (device.partitions if mig_enabled(device.fact) else (Unit(device),))
        if unit.partition is None or unit.id not in device.departed_partitions
    )


def specs(
    inventory: Inventory, host: Host, *, id_strategy: str = "uuid", elsewhere: Set[str] = frozenset()
) -> tuple[CdiSpec, ...]:
    """The specs of this node, by kind. Devices that left have no entry, and a GPU in MIG mode only its MIG devices.

    elsewhere: devices and MIG devices that another's spec names. Where that has all of them, none is needed here; else
    ours has all, because containers may have been given its names before.
    """
    units = present_units(inventory)
    if all(unit.id in elsewhere for unit in units):
        units = ()
    gpus = {unit.index if id_strategy == "index" else unit.id: nodes_of(unit) for unit in units}
    control = control_nodes(host.existing)
    # The legacy runtime reads this variable too, and an image may set it to `all`.
    common = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], **(_edits(control, host) if control else {})}
    channels = {str(channel): (imex_node(channel),) for channel in host.imex_channels}
    found = [_spec("gpu", gpus, host, common=common), _spec("imex-channel", channels, host)]
    for feature in host.features_present():
        files = [path for path in FEATURE_FILES.get(feature, ()) if path in host.existing]
        found.append(_spec(feature, {ALL: feature_nodes(feature, host.existing)}, host, files=files))
    return tuple(sorted((spec for spec in found if spec is not None), key=lambda spec: spec.kind))


def _spec(
    device_class: str,
    devices: Mapping[str, Sequence[str]],
    host: Host,
    *,
    common: Mapping[str, Any] | None = None,
    files: Sequence[str] = (),
) -> CdiSpec | None:
    entries = [{"name": name, "containerEdits": _edits(paths, host, files)} for name, paths in devices.items() if paths]
    if not entries:
        return None
    document: dict[str, Any] = {"cdiVersion": VERSION, "kind": f"{VENDOR}/{device_class}", "devices": entries}
    if common:
        document["containerEdits"] = common
    libraries = LIBRARIES if document["kind"] == GPU_KIND else None
    file_name = f"{VENDOR}-{device_class}.json"
    return CdiSpec(kind=document["kind"], file_name=file_name, document=document, libraries=libraries)


def _edits(paths: Sequence[str], host: Host, files: Sequence[str] = ()) -> dict[str, Any]:
    edits: dict[str, Any] = {"deviceNodes": [{"path": path, "hostPath": host.path(path)} for path in paths]}
    if files:
        options = ["ro", "nosuid", "nodev", "bind"]
        edits["mounts"] = [
            {"hostPath": host_path(host.driver_root, path), "containerPath": path, "options": options} for path in files
        ]
    return edits


class CtkRequest(SpecRequest, frozen=True, kw_only=True):
    """A request to nvidia-ctk for a spec."""

    program = NVIDIA_CTK

    id_strategy: str = "uuid"
    host: Host
    hook_path: str = ""
    feature_flags: tuple[str, ...] = ()
    disable_hooks: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        return [
            *(f"--vendor={VENDOR}", "--class=gpu", f"--device-name-strategy={self.id_strategy}"),
            *([f"--nvidia-ctk-path={self.hook_path}"] if self.hook_path else []),
            *(f"--feature-flag={flag}" for flag in self.feature_flags),
            *(f"--disable-hook={hook}" for hook in self.disable_hooks),
        ]

    def accepted(self, document: Mapping[str, Any], driver_root: str) -> dict[str, Any]:
        if document["kind"] != GPU_KIND:
            raise ValueError(f"is of kind {document['kind']}")
        missing = sorted(self.names - {device["name"] for device in document["devices"]})
        if missing:
            raise ValueError(f"has no {', '.join(missing[:3])}")
        return rerooted(document, self.host, mounted=driver_root)


def rerooted(document: Mapping[str, Any], host: Host, *, mounted: str = "") -> dict[str, Any]:
    """Return a valid spec with the host's paths in place of this container's.

    mounted: where the driver root is mounted here; device nodes come from there or from this container's own /dev.
    """
    prefix = mounted.rstrip("/")

    def inside(path: str) -> str:
        return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path

    def node(entry: Mapping[str, Any]) -> dict[str, Any]:
        place = host.path(inside(str(entry.get("hostPath") or entry["path"])))
        return {**entry, "hostPath": place} if place != entry["path"] or "hostPath" in entry else dict(entry)

    def mount(entry: Mapping[str, Any]) -> dict[str, Any]:
        moved = inside(str(entry["hostPath"]))
        return dict(entry) if moved == entry["hostPath"] else {**entry, "hostPath": host_path(host.driver_root, moved)}

    def edits(before: Mapping[str, Any]) -> dict[str, Any]:
        changes = (("deviceNodes", node), ("mounts", mount))
        return {**before, **{key: [change(edit) for edit in before[key]] for key, change in changes if before.get(key)}}

    after = {
        **document,
        "devices": [{**device, "containerEdits": edits(device["containerEdits"])} for device in document["devices"]],
    }
    if document.get("containerEdits"):
        after["containerEdits"] = edits(document["containerEdits"])
    if version(str(document["cdiVersion"])) < version(VERSION):
        after["cdiVersion"] = VERSION  # for hostPath
    return after
