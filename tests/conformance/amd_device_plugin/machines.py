"""The machines of AMD's own test data, as trees of /sys and /dev."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.trees import Tree

MI210, MI300X, MI308X = "mi210", "mi300x-cpx", "mi308x-cpx"
EVERY = json.loads((Path(__file__).parent / "machines.json").read_text(encoding="utf-8"))
NODES = "sys/class/kfd/kfd/topology/nodes"
DRM_NODES_OF_A_GPU = 8  # card and render nodes are there for more partitions than a GPU has
PROPERTIES = ("simd_count", "simd_per_cu", "gfx_target_version", "device_id", "domain", "drm_render_minor", "unique_id")


@dataclass(frozen=True, slots=True)
class Gpu:
    bus_id: str
    nodes: tuple[dict[str, Any], ...]  # of KFD, by partition


def gpus(machine: str) -> tuple[Gpu, ...]:
    """By PCI address."""
    found: dict[str, list[dict[str, Any]]] = {}
    for node in EVERY[machine]["nodes"]:
        location = node["location_id"]
        bus_id = f"{node['domain']:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.0"
        found.setdefault(bus_id, []).append(node)
    return tuple(Gpu(bus_id, tuple(nodes)) for bus_id, nodes in sorted(found.items()))


def build(root: Path, machine: str) -> Tree:
    tree = Tree(root)
    tree.file("sys/module/amdgpu/version", "6.12.12")
    tree.node("/dev/kfd")
    xcp = 0
    for gpu in gpus(machine):
        first = gpu.nodes[0]
        folder = _pci(tree, gpu, cut=machine != MI210)
        platform = DRM_NODES_OF_A_GPU if machine != MI210 else 1
        for part in range(platform):
            minor = first["drm_render_minor"] + part
            drm = f"{folder}/drm" if part == 0 else f"sys/devices/platform/amdgpu_xcp_{xcp}/drm"
            xcp += part > 0
            for name in (f"card{minor - 128}", f"renderD{minor}"):
                tree.file(f"{drm}/{name}/dev", "226:0")
                tree.node(f"/dev/dri/{name}")
        for node in gpu.nodes:
            _kfd(tree, machine, node)
    return tree


def number_in_high_bits(tree: Tree, machine: str) -> None:
    """From now on the number of a partition is in bits 31:28 of `location_id`."""
    for gpu in gpus(machine):
        for part, node in enumerate(gpu.nodes):
            _properties(tree, node, node["location_id"] & ~7 | part << 28)


def _pci(tree: Tree, gpu: Gpu, *, cut: bool) -> str:
    first = gpu.nodes[0]
    mode = {"current_compute_partition": "CPX", "current_memory_partition": "NPS1"} if cut else {}
    folder = tree.pci(
        gpu.bus_id,
        behind=f"pci{gpu.bus_id[:7]}",
        driver="amdgpu",
        numa_node=first["cpu"],
        vendor="0x1002",
        device=f"{first['device_id']:#x}",
        unique_id=f"{first['unique_id']:016x}",
        **mode,
    )
    tree.link(f"sys/module/amdgpu/drivers/pci:amdgpu/{gpu.bus_id}", folder)
    return folder


def _kfd(tree: Tree, machine: str, node: dict[str, Any]) -> None:
    number = node["number"]
    at = f"{NODES}/{number}"
    _properties(tree, node, node["location_id"])
    if node["memory"]:
        tree.file(f"{at}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {node['memory']}")
    linked = next(hive for hive in EVERY[machine]["hives"] if number in hive)
    for index, other in enumerate(each for each in linked if each != number):
        file = tree.root / at / f"io_links/{index}/properties"  # four thousand of them: written without a detour
        file.parent.mkdir(parents=True)
        file.write_text(f"type 11\nnode_from {number}\nnode_to {other}\n", encoding="utf-8")


def _properties(tree: Tree, node: dict[str, Any], location: int) -> None:
    said = {name: node[name] for name in PROPERTIES} | {"location_id": location}
    tree.file(f"{NODES}/{node['number']}/properties", "\n".join(f"{name} {value}" for name, value in said.items()))
