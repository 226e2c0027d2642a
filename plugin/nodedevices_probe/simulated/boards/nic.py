"""NICs: NVIDIA's ConnectX, Intel's E810 with virtual functions, Solarflare's X2. In a profile each is beside a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_probe.nic import attributes as nic
from nodedevices_probe.simulated.boards.board import Board, Seat, identity, loaded

KERNEL = "6.8.0-45-generic"


def _mellanox(seat: Seat) -> Mapping[str, str | int]:
    guid = f"{identity(seat.node, seat.index).int >> 64:016x}"
    name = f"ens{10 + seat.place}np0"
    return {
        nic.IF_NAME: name,
        nic.PF_NAME: name,
        nic.RDMA_DEVICE: f"mlx5_{seat.place}",
        nic.NODE_GUID: ":".join(guid[at : at + 4] for at in range(0, 16, 4)),
    }


def _e810_name(seat: Seat) -> str:
    return f"ens{30 + seat.place}f0"


def _e810(seat: Seat) -> Mapping[str, str | int]:
    name = _e810_name(seat)
    return {
        nic.IF_NAME: name,
        nic.PF_NAME: name,
        nic.RDMA_DEVICE: f"irdma{seat.place}",
        nic.VIRTUAL_FUNCTIONS: E810_VFS,
    }


def _e810_function(seat: Seat) -> Mapping[str, str | int]:
    """One that the file has without its physical function has a number alone."""
    if seat.parent is None:
        return {nic.VF_INDEX: seat.place}
    name = _e810_name(seat.parent)
    return {
        nic.IF_NAME: f"{name}v{seat.place}",
        nic.PF_NAME: name,
        nic.PHYSICAL_FUNCTION: seat.parent.bus_id,
        nic.VF_INDEX: seat.place,
    }


def _solarflare(seat: Seat) -> Mapping[str, str | int]:
    name = f"ens{50 + seat.place}f0np0"
    return {nic.IF_NAME: name, nic.PF_NAME: name}


E810_VFS = 4
BOARDS = {
    "connectx-7": Board(
        type=nic.PHYSICAL,
        vendor="mellanox",
        driver=loaded("mlx5_core", KERNEL),
        firmware="28.39.1002",
        capacity={nic.VFS: "16"},
        extra={
            nic.PCI_VENDOR: "15b3",
            nic.DEVICE_ID: "1021",
            nic.DRIVER: "mlx5_core",
            nic.LINK_TYPE: nic.ETHER,
            nic.SPEED: 400,
        },
        more=_mellanox,
        beside_gpus=True,
    ),
    "e810": Board(
        type=nic.PHYSICAL,
        vendor="intel",
        driver=loaded("ice", KERNEL),
        firmware="4.40",
        capacity={nic.VFS: "128"},
        extra={
            nic.PCI_VENDOR: "8086",
            nic.DEVICE_ID: "1592",
            nic.DRIVER: "ice",
            nic.LINK_TYPE: nic.ETHER,
            nic.SPEED: 100,
        },
        more=_e810,
        beside_gpus=True,
        functions=E810_VFS,
    ),
    "e810-vf": Board(
        type=nic.VIRTUAL,
        vendor="intel",
        driver=loaded("ice", KERNEL),
        extra={nic.PCI_VENDOR: "8086", nic.DEVICE_ID: "1889", nic.DRIVER: "iavf", nic.LINK_TYPE: nic.ETHER},
        more=_e810_function,
        beside_gpus=True,
    ),
    "sfn-x2": Board(
        type=nic.PHYSICAL,
        vendor="solarflare",
        driver=loaded("sfc", KERNEL),
        firmware="7.8.13",
        extra={
            nic.PCI_VENDOR: "1924",
            nic.DEVICE_ID: "0b03",  # SFC9250
            nic.DRIVER: "sfc",
            nic.LINK_TYPE: nic.ETHER,
            nic.SPEED: 25,
        },
        more=_solarflare,
        beside_gpus=True,
    ),
}
