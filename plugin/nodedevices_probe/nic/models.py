"""Names of makers and models of network cards, by their PCI ids: the kernel has none.

Conditions of a card: it has fewer ports than others of its model (one that its firmware or driver did not bring up
at boot), or a port lost its link.

A card is a slot of PCI, and its ports are the physical functions in it. Cards are alike where their boards have the
same id (PSID; /sys/class/infiniband/<device>/board_id): by the number of its chip alone a card of one port cannot be
told from one of two, and a DGX has both.

A port that was never connected is no condition: only one that is administratively up is judged, and one that never had
a link is told from one that lost it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodedevices_probe.nic import INFINIBAND, LINK_DOWN, NO_LINK, SOLARFLARE
from nodedevices_probe.nic.functions import Interface
from nodedevices_probe.nic.rdma import PHYSICALLY_DISABLED, PORT_ACTIVE, PORT_DOWN, RdmaDevice
from nodedevices_probe.node.sysfs import slot


@dataclass(frozen=True, slots=True)
class Maker:
    word: str  # devices[].vendor
    brand: str  # for people


LINUX = Maker("linux", "")  # of RDMA devices that the kernel makes of any interface

_MAKERS: Mapping[str, Maker] = {
    "15b3": Maker("mellanox", "Mellanox"),
    "8086": Maker("intel", "Intel"),
    "14e4": Maker("broadcom", "Broadcom"),
    SOLARFLARE: Maker("solarflare", "Solarflare"),
    "10ee": Maker("xilinx", "Xilinx"),
    "1022": Maker("amd", "AMD"),
    "1dd8": Maker("pensando", "AMD Pensando"),
    "1425": Maker("chelsio", "Chelsio"),
    "1077": Maker("qlogic", "QLogic"),
    "177d": Maker("marvell", "Marvell"),
    "19e5": Maker("huawei", "Huawei"),
    "10ec": Maker("realtek", "Realtek"),
    "10de": Maker("nvidia", "NVIDIA"),
    "1d0f": Maker("amazon", "Amazon"),
    "1ae0": Maker("google", "Google"),
    "1414": Maker("microsoft", "Microsoft"),
    "15ad": Maker("vmware", "VMware"),
    "1af4": Maker("virtio", "Virtio"),
}
MAKERS = frozenset(vendor.word for vendor in (*_MAKERS.values(), LINUX))

_MODELS: Mapping[tuple[str, str], str] = {
    ("15b3", "1003"): "ConnectX-3",
    ("15b3", "1004"): "ConnectX-3 virtual function",
    ("15b3", "1007"): "ConnectX-3 Pro",
    ("15b3", "1013"): "ConnectX-4",
    ("15b3", "1014"): "ConnectX-4 virtual function",
    ("15b3", "1015"): "ConnectX-4 Lx",
    ("15b3", "1016"): "ConnectX-4 Lx virtual function",
    ("15b3", "1017"): "ConnectX-5",
    ("15b3", "1018"): "ConnectX-5 virtual function",
    ("15b3", "1019"): "ConnectX-5 Ex",
    ("15b3", "101a"): "ConnectX-5 Ex virtual function",
    ("15b3", "101b"): "ConnectX-6",
    ("15b3", "101c"): "ConnectX-6 virtual function",
    ("15b3", "101d"): "ConnectX-6 Dx",
    ("15b3", "101e"): "ConnectX virtual function",
    ("15b3", "101f"): "ConnectX-6 Lx",
    ("15b3", "1021"): "ConnectX-7",
    ("15b3", "1023"): "ConnectX-8",
    ("15b3", "a2d6"): "BlueField-2",
    ("15b3", "a2dc"): "BlueField-3",
    ("8086", "10fb"): "82599ES",
    ("8086", "10ed"): "82599 virtual function",
    ("8086", "1521"): "I350",
    ("8086", "1572"): "X710 SFP+",
    ("8086", "1583"): "XL710 QSFP+",
    ("8086", "158b"): "XXV710 SFP28",
    ("8086", "154c"): "700 Series virtual function",
    ("8086", "1592"): "E810-C QSFP",
    ("8086", "1593"): "E810-C SFP",
    ("8086", "159b"): "E810-XXV SFP",
    ("8086", "1889"): "Adaptive virtual function",
    ("14e4", "16d7"): "BCM57414",
    ("14e4", "1750"): "BCM57508",
    ("14e4", "1751"): "BCM57504",
    ("14e4", "1760"): "BCM57608",
    (SOLARFLARE, "0703"): "SFC4000A",
    (SOLARFLARE, "0710"): "SFC4000B",
    (SOLARFLARE, "0803"): "SFC9020",
    (SOLARFLARE, "0813"): "SFL9021",
    (SOLARFLARE, "0903"): "SFC9120",
    (SOLARFLARE, "0923"): "SFC9140",
    (SOLARFLARE, "0a03"): "SFC9220",
    (SOLARFLARE, "0b03"): "SFC9250",
    (SOLARFLARE, "1803"): "SFC9020 virtual function",
    (SOLARFLARE, "1813"): "SFL9021 virtual function",
    (SOLARFLARE, "1903"): "SFC9120 virtual function",
    (SOLARFLARE, "1923"): "SFC9140 virtual function",
    (SOLARFLARE, "1a03"): "SFC9220 virtual function",
    (SOLARFLARE, "1b03"): "SFC9250 virtual function",
    ("1d0f", "ec20"): "ENA",
    ("1d0f", "efa0"): "EFA",
    ("1d0f", "efa1"): "EFA",
    ("1d0f", "efa2"): "EFA",
    ("1ae0", "0042"): "gVNIC",
    ("1414", "00ba"): "MANA",
    ("1af4", "1000"): "Virtio network device",
    ("1af4", "1041"): "Virtio network device",
}


def maker(vendor: str) -> Maker:
    """By PCI vendor id, "15b3"; one that is not known is called by it."""
    return _MAKERS.get(vendor) or Maker(f"pci-{vendor}" if vendor else "unknown", "")


def model(vendor: str, device: str) -> str:
    """Return the model's name; "" for one that is not known."""
    return _MODELS.get((vendor, device), "")


def with_fewer_ports(functions: Iterable[str], boards: Mapping[str, str]) -> frozenset[str]:
    """Return the functions of cards with fewer ports than more than half of the other cards of that board.
    `functions`: addresses of physical functions. `boards`: ids of boards by address, those that are known."""
    every = list(functions)
    ports = Counter(map(slot, every))
    by_board = defaultdict[str, set[str]](set)
    for function in every:
        if function in boards:
            by_board[boards[function]].add(slot(function))
    fewer = {
        card
        for alike in by_board.values()
        for card in alike
        if sum(ports[other] > ports[card] for other in alike) * 2 > len(alike) - 1
    }
    return frozenset(function for function in every if slot(function) in fewer)


def link_condition(own: Interface | None, rdma: RdmaDevice | None) -> str | None:
    """LINK_DOWN, NO_LINK, or None. An InfiniBand port needs no interface, so its own state counts. An active port of
    Ethernet has a link, although the interface may have none: that of the other port, with which it is bonded."""
    every = rdma.said.ports if rdma is not None else ()
    if any(port.state == PORT_ACTIVE for port in every):
        return None
    if ports := [port for port in every if port.link_type == INFINIBAND]:
        wanted = [port for port in ports if port.physical != PHYSICALLY_DISABLED]
        if not wanted or any(port.state != PORT_DOWN for port in wanted):
            return None
        return LINK_DOWN if any(port.was_up for port in wanted) else NO_LINK
    if own is None or not own.is_wanted_up or own.has_carrier is not False:
        return None
    return LINK_DOWN if own.was_up else NO_LINK
