"""Facts of GPUs from KFD, the compute side of the amdgpu driver: /sys/class/kfd/kfd/topology/nodes.

Source: kfd_topology.c of the Linux kernel. A node is a CPU (no SIMDs) or a GPU; a GPU that is cut into compute
partitions has a node for each of them. Which partition one is stands in `location_id`: some kernels have it in bits
31:28, others in bits 2:0, where the PCI function is. So a node's GPU is known by PCI domain, bus and device alone, as
AMD's device plugin has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodedevices_probe.node.roots import Roots

NODES = "sys/class/kfd/kfd/topology/nodes"
PROCESSES = "sys/class/kfd/kfd/proc"  # a folder for each process, of any container (kfd_procfs_init, Linux 5.8)
MAX_PROCESSES = 1024
MAX_LINKS = 64  # of one node
XGMI = 11  # kfd_crat.h CRAT_IOLINK_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU or a compute partition."""

    number: int
    slot: str  # 0000:19:00, the PCI address of its GPU without the function
    function: int  # of the PCI address, or which partition of its GPU it is
    partition: int  # which of its GPU, of kernels that have it apart
    render_minor: int  # of /dev/dri/renderD<N>
    simds: int
    compute_units: int
    gfx: str  # gfx942
    memory_bytes: int
    xgmi: frozenset[int] = frozenset()  # nodes with a direct link; of a GPU that is cut its first partition's


def gpu_nodes(roots: Roots) -> tuple[KfdNode, ...]:
    """Every node that is a GPU, by number. Partitions of one GPU have the same links to other GPUs, each a file: in CPX
    some four thousand on one machine, so that they are read of the first alone."""
    found = (_node(roots, int(name)) for name in roots.names(NODES) if name.isdecimal() and len(name) < 6)
    slots, nodes = set[str](), list[KfdNode]()
    for node in filter(None, found):
        nodes.append(node if node.slot in slots else replace(node, xgmi=_xgmi(roots, node.number)))
        slots.add(node.slot)
    return tuple(nodes)


def _node(roots: Roots, number: int) -> KfdNode | None:
    said = roots.properties(f"{NODES}/{number}/properties")
    simds, location = said.get("simd_count", 0), said.get("location_id", 0)
    if simds <= 0 or location <= 0:
        return None
    return KfdNode(
        number=number,
        slot=f"{said.get('domain', 0) & 0xFFFFFFFF:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}",
        function=location & 7,
        partition=location >> 28 & 0xF,
        render_minor=said.get("drm_render_minor", 0),
        simds=simds,
        compute_units=simds // max(said.get("simd_per_cu", 0), 1),
        gfx=gfx_name(said.get("gfx_target_version", 0)),
        memory_bytes=_memory(roots, number) or max(said.get("local_mem_size", 0), 0),
    )


def memory_of_processes(roots: Roots, gpus: Mapping[str, Sequence[KfdNode]]) -> dict[str, list[int]] | None:
    """Return for each of these GPUs how much of its memory each process has, without those that have none: KFD shows a
    process on every GPU that it may open. None: this kernel does not say."""
    if not roots.exists(PROCESSES):
        return None
    owners = {
        f"vram_{roots.number(f'{NODES}/{node.number}/gpu_id')}": bus_id for bus_id in gpus for node in gpus[bus_id]
    }
    found: dict[str, list[int]] = {bus_id: [] for bus_id in gpus}
    for process in roots.names(PROCESSES)[:MAX_PROCESSES]:
        for name in roots.names(f"{PROCESSES}/{process}"):
            if name in owners and (held := roots.number(f"{PROCESSES}/{process}/{name}") or 0) > 0:
                found[owners[name]].append(held)
    return found


def by_gpu(nodes: Iterable[KfdNode], bus_ids: Iterable[str]) -> dict[str, list[KfdNode]]:
    """The nodes of each of these GPUs, by PCI address. Where several functions of one slot are GPUs, a node belongs to
    the one that it names."""
    every = list(bus_ids)
    found: dict[str, list[KfdNode]] = {}
    for node in nodes:
        if gpus := [bus_id for bus_id in every if bus_id.startswith(f"{node.slot}.")]:
            named = f"{node.slot}.{node.function}"
            found.setdefault(named if named in gpus else gpus[0], []).append(node)
    return found


def partition_numbers(bus_id: str, nodes: Sequence[KfdNode]) -> tuple[int, ...]:
    """Return the partition's number of each of the nodes of a GPU: by the order of the nodes where the kernel does not
    tell them apart."""
    apart = any(node.partition for node in nodes)
    own = int(bus_id.rpartition(".")[2])
    numbers = tuple(node.partition if apart else node.function - own for node in nodes)
    distinct = len(set(numbers)) == len(numbers) and min(numbers, default=0) >= 0
    return numbers if distinct else tuple(range(len(nodes)))


def gfx_name(version: int) -> str:
    """Return the name of a version: 90402 -> gfx942, 90010 -> gfx90a; "" for none."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}" if version > 0 else ""


def _memory(roots: Roots, number: int) -> int:
    """Return the memory of its own banks together: on MI300 `local_mem_size` is 0."""
    banks = f"{NODES}/{number}/mem_banks"
    return sum(
        max(roots.properties(f"{banks}/{bank}/properties").get("size_in_bytes", 0), 0)
        for bank in roots.names(banks)[:16]
    )


def _xgmi(roots: Roots, number: int) -> frozenset[int]:
    linked = set[int]()
    for folder in ("io_links", "p2p_links"):
        path = f"{NODES}/{number}/{folder}"
        for link in roots.names(path)[:MAX_LINKS]:
            said = roots.properties(f"{path}/{link}/properties")
            if said.get("type") == XGMI and said.get("node_from") == number:
                linked.add(said.get("node_to", number))
    return frozenset(linked - {number})
