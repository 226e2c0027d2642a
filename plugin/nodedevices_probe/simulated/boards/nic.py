"""NICs: NVIDIA's ConnectX, Intel's E810 with virtual functions, Solarflare's X2. In a profile each is beside a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodedevices_probe import nic
from nodedevices_probe.nic.models import SOLARFLARE, maker, model
from nodedevices_probe.simulated.boards.board import Board, Seat, identity, loaded

KERNEL = "6.8.0-45-generic"


def _guid(seat: Seat) -> str:
    guid = f"{identity(seat.node, seat.index).int >> 64:016x}"
    return ":".join(guid[at : at + 4] for at in range(0, 16, 4))


def _mellanox(seat: Seat) -> Mapping[str, str | int]:
    name = f"ens{10 + seat.place}np0"
    return {
        nic.IF_NAME: name,
        nic.PF_NAME: name,
        nic.RDMA_DEVICE: f"mlx5_{seat.place}",
        nic.NODE_GUID: _guid(seat),
    }


def _e810_name(seat: Seat) -> str:
    return f"ens{30 + seat.place}f0"


def _e810(seat: Seat) -> Mapping[str, str | int]:
    name = _e810_name(seat)
    return {
        nic.IF_NAME: name,
        nic.PF_NAME: name,
        nic.RDMA_DEVICE: f"irdma{seat.place}",
        nic.NODE_GUID: _guid(seat),
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


def _card(
    vendor: str,
    device_id: str,
    driver: str,
    more: Callable[[Seat], Mapping[str, str | int]],
    *,
    speed: int,
    firmware: str = "",
    most_functions: int = 0,
    functions: int = 0,
    kind: str = nic.PHYSICAL,
) -> Board:
    """`speed`: in Gbit/s."""
    made_by = maker(vendor)
    extra: dict[str, str | int] = {
        nic.PCI_VENDOR: vendor,
        nic.DEVICE_ID: device_id,
        nic.DRIVER: driver,
        nic.LINK_TYPE: nic.ETHER,
    }
    return Board(
        type=kind,
        vendor=made_by.word,
        brand=made_by.brand,
        product_name=model(vendor, device_id),
        driver=loaded("linux", KERNEL),
        firmware=firmware,
        capacity={nic.VFS: str(most_functions)} if most_functions else {},
        extra={**extra, nic.SPEED: speed},
        more=more,
        beside_gpus=True,
        functions=functions,
    )


E810_VFS = 4
BOARDS = {
    "connectx-7": _card("15b3", "1021", "mlx5_core", _mellanox, speed=400, firmware="28.39.1002", most_functions=16),
    "e810": _card("8086", "1592", "ice", _e810, speed=100, firmware="1.71", most_functions=128, functions=E810_VFS),
    "e810-vf": _card("8086", "1889", "iavf", _e810_function, speed=100, kind=nic.VIRTUAL),
    "sfn-x2": _card(SOLARFLARE, "0b03", "sfc", _solarflare, speed=25),
}
