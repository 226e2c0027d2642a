"""What KFD, the compute side of the amdgpu driver, says of GPUs: /sys/class/kfd/kfd/topology/nodes.

Source: kfd_topology.c of the Linux kernel. A node is a CPU (no SIMDs) or a GPU; a GPU that is cut into compute
partitions has a node for each of them, at one PCI address.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nodedevices_probe.roots import Roots

NODES = "sys/class/kfd/kfd/topology/nodes"
MAX_LINKS = 64  # of one node


class LinkType(IntEnum):
    """kfd_crat.h CRAT_IOLINK_TYPE."""

    PCIE = 2
    XGMI = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU or a compute partition."""

    number: int
    bus_id: str  # 0000:19:00.0
    partition: int  # which of its GPU
    render_minor: int  # of /dev/dri/renderD<N>
    simds: int
    compute_units: int
    gfx: str  # gfx942
    memory_bytes: int
    unique_id: int
    xgmi: frozenset[int]  # nodes with a direct link


def gpu_nodes(roots: Roots) -> tuple[KfdNode, ...]:
    """Every node that is a GPU, by number."""
    found = (_node(roots, int(name)) for name in roots.names(NODES) if name.isdecimal() and len(name) < 6)
    return tuple(each for each in found if each is not None)


def _node(roots: Roots, number: int) -> KfdNode | None:
    said = roots.properties(f"{NODES}/{number}/properties")
    simds, location = said.get("simd_count", 0), said.get("location_id", 0)
    if simds <= 0 or location <= 0:
        return None
    return KfdNode(
        number=number,
        bus_id=_bus_id(said.get("domain", 0), location),
        partition=location >> 28 & 0xF,
        render_minor=said.get("drm_render_minor", 0),
        simds=simds,
        compute_units=simds // max(said.get("simd_per_cu", 0), 1),
        gfx=gfx_name(said.get("gfx_target_version", 0)),
        memory_bytes=_memory(roots, number) or max(said.get("local_mem_size", 0), 0),
        unique_id=said.get("unique_id", 0),
        xgmi=_xgmi(roots, number),
    )


def _bus_id(domain: int, location: int) -> str:
    """A location is bus, device and function as in a PCI address; a partition's number stands in its highest bits."""
    return f"{domain & 0xFFFFFFFF:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def gfx_name(version: int) -> str:
    """90402 -> gfx942, 90010 -> gfx90a; "" for none."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}" if version > 0 else ""


def _memory(roots: Roots, number: int) -> int:
    """Of its own banks together: on MI300 `local_mem_size` is 0."""
    banks = f"{NODES}/{number}/mem_banks"
    sizes = (roots.properties(f"{banks}/{bank}/properties").get("size_in_bytes", 0) for bank in roots.names(banks)[:16])
    return sum(size for size in sizes if size > 0)


def _xgmi(roots: Roots, number: int) -> frozenset[int]:
    linked = set[int]()
    for folder in ("io_links", "p2p_links"):
        path = f"{NODES}/{number}/{folder}"
        for link in roots.names(path)[:MAX_LINKS]:
            said = roots.properties(f"{path}/{link}/properties")
            if said.get("type") == LinkType.XGMI and said.get("node_from") == number:
                linked.add(said.get("node_to", number))
    return frozenset(linked - {number})
