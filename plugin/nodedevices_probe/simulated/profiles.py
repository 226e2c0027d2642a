"""What real machines look like, for the simulated probe: data with a little arithmetic, no I/O.

Memory is what nvidia-smi shows as total on such a board. Device ids are made from node name and index, so that they
are the same after every restart and differ between nodes.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from nodedevices_api.bounds import MAX_DEVICES

_NAMESPACE = uuid.UUID("3d0a9d3e-3f5c-5a0e-9d0b-6e6f64646576")  # any constant: it keeps our ids apart from others'


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One kind of board, and how machines put several together."""

    product_name: str
    brand: str
    architecture: str
    compute_capability: str
    memory_mib: int
    mig_capable: bool = False
    mig_multiprocessors: int | None = None  # of one compute slice
    nvlinks_to_switch: int = 0
    nvlinks_to_pair: int = 0  # a bridge joins devices 0 and 1, 2 and 3, ...
    machine_type: str = ""
    count: int = 1  # in one machine of this type
    fabric: bool = False  # the NVLink domain spans machines and has a clique


MODELS: dict[str, Model] = {
    "h100": Model(
        product_name="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        compute_capability="9.0",
        memory_mib=81559,
        mig_capable=True,
        mig_multiprocessors=16,
        nvlinks_to_switch=18,
        machine_type="DGXH100",
        count=8,
    ),
    "h200": Model(
        product_name="NVIDIA H200",
        brand="Nvidia",
        architecture="Hopper",
        compute_capability="9.0",
        memory_mib=143771,
        mig_capable=True,
        mig_multiprocessors=16,
        nvlinks_to_switch=18,
        machine_type="DGXH200",
        count=8,
    ),
    "a100": Model(
        product_name="NVIDIA A100-SXM4-80GB",
        brand="Nvidia",
        architecture="Ampere",
        compute_capability="8.0",
        memory_mib=81920,
        mig_capable=True,
        mig_multiprocessors=14,
        nvlinks_to_switch=12,
        machine_type="DGXA100",
        count=8,
    ),
    "b200": Model(
        product_name="NVIDIA B200",
        brand="Nvidia",
        architecture="Blackwell",
        compute_capability="10.0",
        memory_mib=183359,
        mig_capable=True,
        mig_multiprocessors=18,
        nvlinks_to_switch=18,
        machine_type="DGXB200",
        count=8,
    ),
    "gb200": Model(
        product_name="NVIDIA GB200",
        brand="Nvidia",
        architecture="Blackwell",
        compute_capability="10.0",
        memory_mib=189471,
        mig_capable=True,
        mig_multiprocessors=18,
        nvlinks_to_switch=18,
        machine_type="GB200 NVL",
        count=4,
        fabric=True,
    ),
    "l40s": Model(
        product_name="NVIDIA L40S",
        brand="Nvidia",
        architecture="Ada Lovelace",
        compute_capability="8.9",
        memory_mib=46068,
        count=4,
    ),
    "l4": Model(
        product_name="NVIDIA L4",
        brand="Nvidia",
        architecture="Ada Lovelace",
        compute_capability="8.9",
        memory_mib=23034,
        count=4,
    ),
    "t4": Model(
        product_name="Tesla T4",
        brand="Nvidia",
        architecture="Turing",
        compute_capability="7.5",
        memory_mib=15360,
        count=4,
    ),
    "h100nvl": Model(
        product_name="NVIDIA H100 NVL",
        brand="Nvidia",
        architecture="Hopper",
        compute_capability="9.0",
        memory_mib=95830,
        mig_capable=True,
        mig_multiprocessors=16,
        nvlinks_to_pair=12,
        count=2,
    ),
}

PROFILE_SYNTAX = re.compile(r"\s*([a-z]+[0-9]+[a-z]*?)\s*(?:x\s*(-?[0-9]{1,9})\s*)?", re.IGNORECASE)


def parse_profile(profile: str) -> tuple[Model, int]:
    """`h100 x 8` -> the model and how many; `h100` alone is what one machine has. Raises ValueError for people."""
    match = PROFILE_SYNTAX.fullmatch(profile)
    model = MODELS.get(match.group(1).lower()) if match else None
    if match is None or model is None:
        known = ", ".join(sorted(MODELS))
        raise ValueError(f"{profile!a} is not a known profile; give a model and a number, such as 'h100 x 8': {known}")
    count = int(match.group(2)) if match.group(2) else model.count
    if not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"{profile!a}: {count} devices are not possible; give 1 to {MAX_DEVICES}")
    return model, count


def device_id(node: str, index: int) -> str:
    """The id of a simulated GPU."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def partition_id(node: str, index: int, gi: int, ci: int) -> str:
    """The id of a simulated MIG device."""
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{node}/{index}/{gi}/{ci}')}"


def pci_bus_id(index: int) -> str:
    """Two devices every 16 buses, as on the machines these boards come in; 64 in a PCI domain."""
    domain, index = divmod(index, 64)
    return f"{domain:04x}:{0x17 + 0x10 * (index // 2) % 0xE0 + index % 2 + 2 * (index // 28):02x}:00.0"
