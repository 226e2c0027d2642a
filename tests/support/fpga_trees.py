"""Trees of Xilinx' cards below a folder: what XRT's drivers and ama_transcoder make, by their sources (see trees)."""

from __future__ import annotations

from pathlib import Path

from support.trees import Tree

U250_SHELL, U250_TIMESTAMP = "xilinx_u250_gen3x16_xdma_shell_4_1", "1623351600"
U250_UUID = "12c8fafb0632499db1c0c6676271b8a6"
U30_SHELL, U30_TIMESTAMP = "xilinx_u30_gen3x4_base_2", "0"


def fpga_slot(card: int) -> str:
    return f"0000:{0x3B + card:02x}:00"


def fpga_bus_id(card: int) -> str:
    """Its user function."""
    return f"{fpga_slot(card)}.1"


def management_node(card: int) -> str:
    return f"/dev/xclmgmt{(0x3B + card) << 8}"


def alveo(
    root: Path,
    *,
    cards: int = 2,
    first: int = 0,
    shell: str = U250_SHELL,
    timestamp: str = U250_TIMESTAMP,
    device: int = 0x5004,
    serials: tuple[str, ...] = (),
    management: bool = True,
    maker: str = "0x10ee",
    controller: str = "xmc.u",
    qdma: bool = False,
) -> Tree:
    """So many cards, each behind a root port of its own. `device`: of the management function; the user function's is
    the next. `management`: whether the machine has that function; a virtual machine has not."""
    tree = Tree(root)
    tree.file("sys/module/xocl/version", "2.16.204,b7ba2d2d6b5b")
    for number, card in enumerate(range(first, first + cards)):
        if management:
            tree.file("sys/module/xclmgmt/version", "2.16.204,b7ba2d2d6b5b")
            _management(tree, card, device=device, maker=maker)
        serial = serials[number] if serials else f"XFL1CARD{card:04d}"
        _user(tree, card, shell=shell, timestamp=timestamp, device=device + 1, maker=maker)
        user_services(tree, card, shell=shell, timestamp=timestamp, serial=serial, controller=controller, qdma=qdma)
    return tree


def u30(root: Path, *, cards: int = 1, management: bool = True) -> Tree:
    """U30s: two FPGAs each, with one serial number."""
    serials = tuple(f"XFL1U30X{card:04d}" for card in range(cards) for _ in range(2))
    return alveo(
        root,
        cards=2 * cards,
        shell=U30_SHELL,
        timestamp=U30_TIMESTAMP,
        device=0x513C,
        serials=serials,
        management=management,
    )


def golden(root: Path, *, card: int = 0, device: int = 0xD004) -> Tree:
    """A card as it leaves the factory: its management function alone."""
    tree = Tree(root)
    tree.file("sys/module/xclmgmt/version", "2.16.204")
    _management(tree, card, device=device, maker="0x10ee", mfg=1)
    return tree


def _behind(card: int) -> str:
    return f"pci0000:{0x3A + 0x10 * (card // 8):02x}/0000:3a:{card % 8:02x}.0"


def _management(tree: Tree, card: int, *, device: int, maker: str, mfg: int = 0) -> None:
    folder = tree.pci(
        f"{fpga_slot(card)}.0",
        behind=_behind(card),
        driver="xclmgmt",
        numa_node=0,
        vendor=maker,
        device=f"{device:#06x}",
        mfg=mfg,
        mgmt_pf="",
        instance=(0x3B + card) << 8,
    )
    tree.file(f"{folder}/class", "0x120000")
    if not mfg:
        tree.files(f"{folder}/firewall.m.16777216", detected_status=0, detected_level=0)
    tree.node(management_node(card))


def _user(tree: Tree, card: int, *, shell: str, timestamp: str, device: int, maker: str) -> None:
    folder = tree.pci(
        fpga_bus_id(card),
        behind=_behind(card),
        driver="xocl",
        numa_node=0,
        vendor=maker,
        device=f"{device:#06x}",
        user_pf="",
        dev_offline=0,
        logic_uuids=f"f465b0a3ae8c64f619bc150384ace69b\n{U250_UUID}",
    )
    tree.file(f"{folder}/class", "0x120000")


def user_services(
    tree: Tree,
    card: int,
    *,
    shell: str = U250_SHELL,
    timestamp: str = U250_TIMESTAMP,
    serial: str = "XFL1CARD0000",
    controller: str = "xmc.u",
    qdma: bool = False,
) -> None:
    """What xocl makes below a user function once the card is ready, and takes away while it is reset."""
    folder = f"sys/bus/pci/devices/{fpga_bus_id(card)}"
    tree.files(f"{folder}/rom.u.{card}", VBNV=shell, timestamp=timestamp)
    named = f"{folder}/{controller}.{card}"
    if serial:
        tree.file(f"{named}/serial_num", serial)
    if controller == "xmc.u":
        tree.files(named, bd_name="ALVEO U250 PQ", xmc_fpga_temp=43, xmc_power=31_500_000)
    else:
        tree.files(f"{named}/hwmon/hwmon{card}", temp1_input=38_000, temp1_crit=100_000, power1_input=22_000_000)
    if qdma:
        number = (0x3B + card) << 8 | 1
        tree.file(f"{folder}/dma.qdma.u.{number}/qdma_config")
        tree.node(f"/dev/xfpga/dma.qdma.u{number}.0")
    tree.file(f"{folder}/drm/renderD{128 + card}/dev", f"226:{128 + card}")
    tree.node(f"/dev/dri/renderD{128 + card}")


def ma35(root: Path, *, devices: int = 2) -> Tree:
    """One MA35D card: two devices of the driver ama_transcoder."""
    tree = Tree(root)
    tree.file("sys/module/ama_transcoder/version", "1.2.0")
    for number in range(devices):
        bus_id = ma35_bus_id(number)
        folder = tree.pci(bus_id, behind="pci0000:60/0000:60:01.0", numa_node=1, vendor="0x10ee", device="0x5070")
        tree.file(f"{folder}/class", "0x120000")
        misc = f"sys/devices/virtual/misc/ama_transcoder{number}"
        tree.link(f"sys/class/misc/ama_transcoder{number}", misc)
        said = "Product name = Alveo MA35D\nProduct serial number = XFL1MA35D001\nPCIe device ID = 0x5070"
        tree.files(misc, bus_id=bus_id, device_info=said)
        tree.node(f"/dev/ama_transcoder{number}")
    return tree


def ma35_bus_id(number: int) -> str:
    return f"0000:{0x61 + number:02x}:00.0"
