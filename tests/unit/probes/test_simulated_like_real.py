"""A simulated device of another maker says what the real probe says of such a device: compared on trees of sysfs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.fpga import MANAGEMENT_NODES
from nodedevices_probe.fpga.probe import FpgaSource
from nodedevices_probe.intel.probe import IntelSource
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact
from nodedevices_probe.simulated.probe import from_profile
from support.fpga_trees import alveo
from support.nic_trees import CONNECTX_7, E810, INTEL, MELLANOX, SFC9250, SOLARFLARE, Nics
from support.trees import MAX_1550, flex, mi300x


def amd(root: Path, *, cut: bool) -> tuple[DeviceFact, ...]:
    mi300x(root, gpus=1, compute="CPX" if cut else "SPX", memory="NPS4" if cut else "NPS1")
    return AmdSource(system=System(root)).poll().devices


def connectx(root: Path) -> tuple[DeviceFact, ...]:
    nics = Nics(root)
    card = nics.card("0000:17:00.0", vendor=MELLANOX, device=CONNECTX_7, driver="mlx5_core", sriov_totalvfs=16)
    nics.rdma("mlx5_0", card)
    nics.interface("ens10np0", card, speed=400_000)
    return NicSource(system=System(root)).poll().devices


def e810(root: Path) -> tuple[DeviceFact, ...]:
    nics = Nics(root)
    card = nics.card("0000:17:00.0", vendor=INTEL, device=E810, driver="ice")
    nics.interface("ens30f0", card)
    nics.rdma("irdma0", card, rate="100 Gb/sec (4X EDR)")
    for index, part in enumerate(
        nics.virtual_functions("0000:17:00.0", 4, vendor=INTEL, device="0x1889", driver="iavf", most=128)
    ):
        nics.interface(f"ens30f0v{index}", part)
    return NicSource(system=System(root)).poll().devices


def solarflare(root: Path) -> tuple[DeviceFact, ...]:
    nics = Nics(root)
    card = nics.card("0000:17:00.0", vendor=SOLARFLARE, device=SFC9250, driver="sfc")
    nics.interface("ens50f0np0", card, speed=25_000)
    return NicSource(system=System(root)).poll().devices


def intel(root: Path, **shape: str) -> tuple[DeviceFact, ...]:
    flex(root, gpus=1, **shape)  # type: ignore[arg-type]
    return IntelSource(system=System(root)).poll().devices


def u250(root: Path) -> tuple[DeviceFact, ...]:
    alveo(root, cards=1)
    return FpgaSource(system=System(root)).poll().devices


REAL: Mapping[str, Callable[[Path], tuple[DeviceFact, ...]]] = {
    "mi300x": lambda root: amd(root, cut=False),
    "mi300x-cpx": lambda root: amd(root, cut=True),
    "flex": intel,
    "pvc": lambda root: intel(root, driver="xe", device=MAX_1550),
    "connectx-7": connectx,
    "e810": e810,
    "sfn-x2": solarflare,
    "u250": u250,
}


@pytest.mark.parametrize("profile", REAL)
def test_what_a_simulated_device_says_is_what_the_real_probe_says(profile: str, tmp_path: Path) -> None:
    simulated = from_profile(profile, node="n").facts.devices
    found = REAL[profile](tmp_path)
    assert [outline(each) for each in simulated] == [outline(each) for each in found]


def outline(fact: DeviceFact) -> dict[str, object]:
    """Without what differs from one device to the next, and without device nodes, which simulated ones lack."""
    fixed = ("deviceID", "pciVendor", "driver", "linkType", "speedGbps", "deviceType", "partitionProfile", "vfIndex")
    return {
        "is": (fact.vendor, fact.type, fact.brand, fact.product_name, fact.architecture),
        "id": fact.id == fact.pci_bus_id,
        "has": (bool(fact.uuid), bool(fact.firmware), bool(fact.pcie_root), fact.numa_node is not None),
        "extra": {
            name: value if name in fixed else "" for name, value in fact.extra.items() if name != MANAGEMENT_NODES
        },
        "capacity": fact.capacity.keys(),
        "partitions": [(part.profile, part.index, part.capacity) for part in fact.partitions],
        "well": {
            name: getattr(fact.readings, name)
            for name in ("lost", "error", "recovery_action", "remap_failure", "remap_pending", "conditions")
        },
        "hot": fact.readings.thermal_slowdown,
    }
