"""Trees of sysfs with network cards, built as `trees` builds those of GPUs, from the kernel's sources."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from support.trees import Tree

CONNECTX_7, CONNECTX_VF, E810, SFC9250 = "0x1021", "0x101e", "0x1592", "0x0b03"
MELLANOX, INTEL, SOLARFLARE = "0x15b3", "0x8086", "0x1924"
IFF_UP = 1
VIRTUAL = "sys/devices/virtual"


@dataclass(slots=True)
class Nics:
    """A machine whose cards are added one by one."""

    root: Path
    tree: Tree = field(init=False)
    _verbs: int = 0

    def __post_init__(self) -> None:
        self.tree = Tree(self.root)
        self.tree.file("proc/sys/kernel/osrelease", "6.8.0-45-generic")
        self.tree.file("sys/module/ib_core/parameters/netns_mode", "Y")
        self.tree.node("/dev/infiniband/rdma_cm")

    def card(
        self, bus_id: str, *, vendor: str, device: str, driver: str = "", root: str = "pci0000:16", **files: str | int
    ) -> str:
        """A PCI function behind a port of its own, for all functions of one slot. Returns its folder."""
        behind = f"{root}/{bus_id[:5]}16:0{int(bus_id[5:7], 16) % 8}.0"
        folder = self.tree.pci(bus_id, behind=behind, driver=driver, numa_node=0, vendor=vendor, device=device, **files)
        self.tree.file(f"{folder}/class", "0x020000")
        return folder

    def interface(
        self,
        name: str,
        folder: str,
        *,
        kind: int = 1,
        up: bool = True,
        carrier: bool = True,
        ups: int = 1,
        speed: int = 100_000,
        **files: str | int,
    ) -> None:
        """A network interface of the device with this folder; below `sys/devices/virtual` for none."""
        at = f"{folder}/net/{name}"
        self.tree.files(
            at, type=kind, flags=hex(0x1002 | (IFF_UP if up else 0)), carrier_up_count=ups, dev_port=0, **files
        )
        if up:  # else the kernel refuses to read them
            self.tree.files(at, carrier=int(carrier), speed=speed if carrier else -1)
        self.tree.link(f"sys/class/net/{name}", at)

    def rdma(
        self,
        name: str,
        folder: str,
        *,
        layer: str = "Ethernet",
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
        downed: int = 0,
        rate: str = "400 Gb/sec (4X NDR)",
        kind: str = "1: CA",
        nodes: tuple[str, ...] = ("uverbs", "umad", "issm"),
        pkeys: tuple[str, ...] = (),
        guid: str = "0c42:a103:0065:d7a6",
        counters: dict[str, str | int] | None = None,
        **files: str | int,
    ) -> None:
        """An RDMA device with its character devices. `counters`: further files of the port, by their paths there."""
        at = f"{folder}/infiniband/{name}"
        self.tree.files(at, node_type=kind, node_guid=guid, fw_ver="28.39.1002", hca_type="MT4129", **files)
        port = f"{at}/ports/1"
        self.tree.files(port, state=state, phys_state=physical, link_layer=layer, rate=rate)
        self.tree.files(port, **{"counters/link_downed": downed, **(counters or {})})
        for index in range(16 if layer == "InfiniBand" else 1):
            self.tree.file(f"{port}/pkeys/{index}", pkeys[index] if index < len(pkeys) else "0x0000")
        self.tree.link(f"sys/class/infiniband/{name}", at)
        if folder != VIRTUAL:
            self.tree.link(f"{at}/device", folder)
        for each in nodes:
            node = f"{each}{self._verbs}"
            group = {"uverbs": "infiniband_verbs", "ucm": "infiniband_cm"}.get(each, "infiniband_mad")
            self.tree.file(f"sys/class/{group}/{node}/ibdev", name)
            self.tree.node(f"/dev/infiniband/{node}")
        self._verbs += 1

    def virtual_functions(
        self, physical: str, count: int, *, vendor: str, device: str, driver: str = "", most: int = 0
    ) -> list[str]:
        """Of the function at this address: its folders."""
        at = f"sys/bus/pci/devices/{physical}"
        self.tree.files(at, sriov_numvfs=count, sriov_totalvfs=most or count)
        folders = []
        for index in range(count):
            bus_id = f"{physical[:8]}{(index + 1) // 8:02x}.{(index + 1) % 8}"
            folder = self.card(bus_id, vendor=vendor, device=device, driver=driver)
            self.tree.link(f"{folder}/physfn", f"sys/bus/pci/devices/{physical}")
            self.tree.link(f"{at}/virtfn{index}", f"sys/bus/pci/devices/{bus_id}")
            folders.append(folder)
        return folders

    def bind(self, folder: str, driver: str) -> None:
        """To another driver; its interface and its RDMA device go. "": to none."""
        self.forget(folder)
        (self.root / folder / "driver").unlink(missing_ok=True)
        if driver:
            (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            self.tree.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")

    def vfio(self, folder: str, group: int, *, name: str = "") -> None:
        self.bind(folder, "vfio-pci")
        self.tree.file(f"sys/kernel/iommu_groups/{group}/name", name)
        self.tree.link(f"{folder}/iommu_group", f"sys/kernel/iommu_groups/{group}")
        self.tree.node(f"/dev/vfio/{'noiommu-' if name else ''}{group}")

    def forget(self, folder: str, *classes: str) -> None:
        """What its device has in these classes is not seen: a pod's network namespace has it."""
        for each in classes or ("net", "infiniband"):
            for entry in sorted((self.root / folder / each).glob("*")):
                (self.root / "sys/class" / each / entry.name).unlink()
            shutil.rmtree(self.root / folder / each, ignore_errors=True)

    def routes(self, *interfaces: str, ipv6: tuple[str, ...] = (), at: str = "proc/net") -> None:
        """Default routes through these, and a route of a network for each other interface."""
        head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        lines = [f"{each}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0" for each in interfaces]
        others = [each.name for each in sorted((self.root / "sys/class/net").iterdir()) if each.name not in interfaces]
        lines += [f"{each}\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0" for each in others]
        self.tree.file(f"{at}/route", head + "\n".join(lines))
        zero, hop = "0" * 32, "fe80" + "0" * 27 + "1"
        through = [f"{zero} 00 {zero} 00 {hop} 00000400 00000001 00000000 00450003 {each}" for each in ipv6]
        self.tree.file(
            f"{at}/ipv6_route", "\n".join([*through, f"{zero} 00 {zero} 00 {zero} ffffffff 1 0 00200200 lo"])
        )

    def unplug(self, folder: str) -> None:
        self.forget(folder)
        (self.root / "sys/bus/pci/devices" / Path(folder).name).unlink()
        shutil.rmtree(self.root / folder)


def connectx_7_pair(root: Path) -> Nics:
    """Two ports: one InfiniBand, one Ethernet."""
    nics = Nics(root)
    one = nics.card("0000:17:00.0", vendor=MELLANOX, device=CONNECTX_7, driver="mlx5_core", acpi_index=3)
    nics.rdma("mlx5_0", one, layer="InfiniBand", pkeys=("0xffff", "0x8001"))
    nics.interface("ib0", one, kind=32, up=False)
    nics.interface("ib0.8001", one, kind=32, parent="ib0")
    other = nics.card("0000:17:00.1", vendor=MELLANOX, device=CONNECTX_7, driver="mlx5_core")
    nics.rdma("mlx5_1", other, rate="200 Gb/sec (4X HDR)", guid="0c42:a103:0065:d7a7")
    nics.interface("enp23s0f1np1", other, phys_port_name="p1", speed=200_000)
    return nics


def sriov(root: Path, *, functions: int = 8, cards: int = 1) -> Nics:
    """ConnectX-6 Dx cards with virtual functions; of the first one's the third is in vfio and the fourth in a pod."""
    nics = Nics(root)
    for card in range(cards):
        bus_id, name = f"0000:{0x31 + card:02x}:00.0", f"enp{49 + card}s0np0"
        folder = nics.card(bus_id, vendor=MELLANOX, device="0x101d", driver="mlx5_core")
        nics.rdma(f"mlx5_{100 * card}", folder, rate="100 Gb/sec (4X EDR)")
        nics.interface(name, folder, phys_switch_id="c2a9", phys_port_name="p0")
        parts = nics.virtual_functions(
            bus_id, functions, vendor=MELLANOX, device=CONNECTX_VF, driver="mlx5_core", most=max(functions, 16)
        )
        for index, part in enumerate(parts):
            nics.interface(f"{name}v{index}", part)
            nics.rdma(f"mlx5_{100 * card + index + 1}", part)
            if index < 8:
                nics.interface(f"{name}_{index}", folder, phys_switch_id="c2a9", phys_port_name=f"pf0vf{index}")
        if card == 0 and functions > 3:
            nics.vfio(parts[2], 42)
            nics.forget(parts[3], "net")
    return nics


def soft_roce(root: Path, *, kind: str = "rxe") -> Nics:
    """An RDMA device that the kernel makes of a plain card's interface."""
    nics = Nics(root)
    card = nics.card("0000:02:00.0", vendor="0x1af4", device="0x1041", driver="virtio-pci")
    nics.interface("eth0", f"{card}/virtio0", speed=-1)
    if kind == "rxe":
        nics.rdma("rxe0", VIRTUAL, rate="2.5 Gb/sec (1X SDR)", nodes=("uverbs", "umad"), parent="eth0")
    else:
        nics.rdma("siw0", VIRTUAL, kind="4: RNIC", nodes=("uverbs",), rate="10 Gb/sec (4X SDR)")
        nics.tree.file("sys/class/infiniband/siw0/ports/1/gid_attrs/ndevs/0", "eth0")
    return nics


def solarflare(root: Path) -> Nics:
    """A card of two ports, with Onload, the second one never connected."""
    nics = Nics(root)
    for port in (0, 1):
        folder = nics.card(f"0000:65:00.{port}", vendor=SOLARFLARE, device=SFC9250, driver="sfc")
        nics.interface(f"enp101s0f{port}", folder, carrier=port == 0, ups=1 - port)
    loaded = ("sfc_char", "onload", "onload_epoll")
    for name in loaded:
        nics.tree.node(f"/dev/{name}")
    characters = "\n".join(f"{240 + number} {name}" for number, name in enumerate(loaded))
    nics.tree.file("proc/devices", f"Character devices:\n  1 mem\n{characters}\n\nBlock devices:\n259 blkext")
    return nics


def mock_infiniband(root: Path, *, card: bool = False) -> Nics:
    """HCAs as NVIDIA's mock of InfiniBand writes them (k8s-test-infra, pkg/network/mockib/render at 3b2b865): folders
    in the place of links, and no PCI devices. `card`: with one, to which the first HCA's `device` links."""
    nics = Nics(root)
    for name, guid in (("mlx5_0", "a088:c203:0000:0010"), ("mlx5_1", "a088:c203:0000:0012")):
        nics.rdma(name, VIRTUAL, layer="InfiniBand", guid=guid)
        entry = root / "sys/class/infiniband" / name
        entry.unlink()
        (root / VIRTUAL / "infiniband" / name).rename(entry)
        nics.tree.file(f"sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs/0", "1")
        if card and name == "mlx5_0":
            folder = nics.card("0000:17:00.0", vendor=MELLANOX, device=CONNECTX_7, driver="mlx5_core")
            nics.tree.link(f"sys/class/infiniband/{name}/device", folder)
        else:
            nics.tree.file(f"sys/class/infiniband/{name}/device/modalias", "pci:v000015B3d00001017sv000015B3sd00000008")
    return nics


def e810(root: Path) -> Nics:
    """With RDMA as an auxiliary device of the card, and one sub-function."""
    nics = Nics(root)
    folder = nics.card("0000:4b:00.0", vendor=INTEL, device=E810, driver="ice")
    nics.interface("ens1f0", folder)
    for name in ("ice.roce.0", "ice.sf.1"):
        nics.tree.file(f"{folder}/{name}/uevent", "")
        nics.tree.link(f"sys/bus/auxiliary/devices/{name}", f"{folder}/{name}")
    nics.rdma("rocep75s0", folder, rate="100 Gb/sec (4X EDR)")
    part = f"{folder}/ice.sf.1"
    nics.tree.file(f"{part}/sfnum", 88)
    (root / "sys/bus/auxiliary/drivers/ice.sf").mkdir(parents=True)
    nics.tree.link(f"{part}/driver", "sys/bus/auxiliary/drivers/ice.sf")
    nics.interface("ens1f0s88", part)
    nics.interface("ens1f0sf88", folder, phys_port_name="pf0sf88")
    return nics


def plain(root: Path) -> Nics:
    """A card with an interface and nothing else."""
    nics = Nics(root)
    nics.interface("eno1", nics.card("0000:01:00.0", vendor=INTEL, device="0x15b8", driver="e1000e"), speed=1000)
    return nics


def virtual_machine(root: Path) -> Nics:
    """A machine whose own card is eth0, to which a virtual function of an E810 was given as a card of its own."""
    nics = Nics(root)
    own = nics.card("0000:00:03.0", vendor="0x1af4", device="0x1041", driver="virtio-pci")
    nics.interface("eth0", f"{own}/virtio0", speed=-1)
    nics.interface("ens5", nics.card("0000:00:05.0", vendor=INTEL, device="0x1889", driver="iavf"))
    return nics
