"""Network cards: names that the probe and the agent's vendor share, and the command `nodedevices-probe nic` with its
flags.

Types, in `extra` (names as the agent and policies see them), and in `readings.conditions`.
"""

from __future__ import annotations

from pathlib import Path

from nodedevices_probe.files import CheckError
from nodedevices_probe.kind import DRIVER_ROOT, DRIVER_ROOT_FLAG, AgentOptions, Hardware, ProbeKind, any_of, has_entries
from nodedevices_probe.node.sysfs import PCI_DEVICES

PHYSICAL = "nic"  # type of physical functions, of plain NICs, and of RDMA devices without a PCI device (soft-RoCE)
VIRTUAL = "vf"  # type of SR-IOV virtual functions
TYPES = frozenset({PHYSICAL, VIRTUAL})
RDMA_FILE, SRIOV_FILE, ONLOAD_FILE = "rdma.json", "sriov.json", "onload.json"  # of the agent's --devices-dir

# extra; left out where the kernel does not say
PCI_VENDOR = "pciVendor"  # "15b3"
DEVICE_ID = "deviceID"  # "1017"
DRIVER = "driver"  # "mlx5_core"
IF_NAME = "ifName"  # its network interface in the host's namespace
IF_NAMES = "ifNames"  # "p0,p1": of a function with several, all of them, as many as fit
LINK_TYPE = "linkType"  # ETHER, INFINIBAND
RDMA_DEVICE = "rdmaDevice"  # "mlx5_0"
PF_NAME = "pfName"  # network interface of its physical function; of a physical function its own
PF_DRIVER = "pfDriver"  # of a sub-function: the driver of its card
PHYSICAL_FUNCTION = "physicalFunction"  # PCI address, of a virtual function
VF_INDEX = "vfIndex"  # int, of a virtual function
VIRTUAL_FUNCTIONS = "virtualFunctions"  # int, how many a physical function has now
ACPI_INDEX = "acpiIndex"  # int
SPEED = "speedGbps"  # int
AUX_TYPE = "auxType"  # "sf", "eth", ...: of an auxiliary device
VDPA_TYPE = "vdpaType"  # "virtio", "vhost"
VDPA_DEVICE = "vdpaDevice"  # its name on the vDPA bus, "vdpa0"
VDPA_PATH = "vdpaPath"  # "/dev/vhost-vdpa-0", "/sys/bus/virtio/devices/virtio5"
DEFAULT_ROUTE = "defaultRoute"  # true: the node's own traffic goes through its interface
DDP_PROFILE = "ddpProfile"
P_KEYS = "pKeys"  # "0xffff,0x8001": InfiniBand partitions, without empty entries
NODE_GUID = "nodeGUID"  # "0c42:a103:0065:d7a6"

ETHER, INFINIBAND = "ether", "infiniband"  # LINK_TYPE
SOLARFLARE = "1924"  # PCI_VENDOR

VFS = "vfs"  # capacity: how many virtual functions a physical function can have

# readings.conditions, beside NODE_MISSING (a required character device of an RDMA device is missing)
LINK_DOWN = "linkDown"  # administratively up, was up before, and is down; of a virtual function: its physical one's
NO_LINK = "noLink"  # administratively up, and never had a link since the machine booted
DRIVER_UNBOUND = "driverUnbound"  # no driver of the kernel has the function
FEWER_PORTS = "fewerPorts"  # its card has fewer ports than others with the same board
ONLOAD_MISSING = "onloadMissing"  # of Solarflare cards, where Onload is wanted: its modules or nodes are not there

CARRIER_DOWN_COUNT = "carrierDownCount"  # of its interface, in readings.counters; the others: rdma.COUNTERS

# RDMA character devices that a container may need: names of --rdma-required
RDMA_NODES = ("rdma_cm", "umad", "uverbs", "issm", "ucm")
RDMA_REQUIRED = ("rdma_cm", "umad", "uverbs")  # by default, as Mellanox's plugin requires

# Onload's character devices that every program with it opens, each by its driver's name in /proc/devices
ONLOAD_NODES = ("/dev/onload", "/dev/onload_epoll", "/dev/sfc_char")


FLAG = "rdma-required"
VARIABLE = "NODEDEVICES_RDMA_REQUIRED"  # of the agent


def required_nodes(value: str, place: str = f"argument --{FLAG}") -> frozenset[str]:
    """Return the nodes that are named there. Raises CheckError."""
    if value.strip() == "none":
        return frozenset()
    wanted = [name.strip() for name in value.split(",") if name.strip()]
    wrong = [name for name in wanted if name not in RDMA_NODES]
    if wrong or not wanted:
        right = f"some of {','.join(RDMA_NODES)}, or none"
        raise CheckError(f"{place}: {(wrong or [value])[0]!r} is not allowed; give {right}")
    return frozenset(wanted)


def _check(given: AgentOptions) -> None:
    if value := given[FLAG]:
        required_nodes(str(value), f"environment variable {VARIABLE}")


def _special_card(hardware: Hardware) -> str:
    """One that the probe reports without being told to report all."""
    for function in hardware.pci:
        if not function.pci_class.startswith("0x02"):
            continue
        if function.vendor == f"0x{SOLARFLARE}" or (driver := hardware.driver(function)) == "sfc":
            return f"{function.address} is a Solarflare card"
        if "vfio" in driver:
            return f"{function.address} is a network card with the driver {driver}"
        if hardware.roots.number(f"{PCI_DEVICES}/{function.address}/sriov_totalvfs"):
            return f"{function.address} is a network card with SR-IOV"
    return ""


NIC = ProbeKind(
    name="nic",
    help="network cards: RDMA devices, SR-IOV functions, Solarflare; by what the kernel shows",
    flags={
        **DRIVER_ROOT_FLAG,
        "host-sys-ctr-path": {
            "type": Path,
            "default": Path("/host-sys"),
            "metavar": "DIR",
            "help": "the host's /sys, mounted, if it is there: a container's own has only the network interfaces of its"
            " pod (default: /host-sys)",
        },
        "host-net-ctr-path": {
            "type": Path,
            "default": Path("/host-net"),
            "metavar": "DIR",
            "help": "the host's /proc/1/net, mounted, if it is there: it says which interface has the default route"
            " (default: /host-net)",
        },
        FLAG: {
            "default": ",".join(RDMA_REQUIRED),
            "metavar": "NODES",
            "help": f"report an RDMA device without one of these character devices as faulty: {','.join(RDMA_NODES)},"
            f" or none (default: {','.join(RDMA_REQUIRED)})",
        },
        "onload": {
            "default": "",
            "metavar": "FILE",
            "help": "report a Solarflare card without Onload's modules or device nodes as faulty: the agent gives its"
            f" {ONLOAD_FILE}, which is not read here (default: no)",
        },
        "sriov": {
            "default": "",
            "metavar": "FILE",
            "help": "report plain network cards, too, where it is known which has the default route: the agent gives"
            f" its {SRIOV_FILE}, which may select them and is not read here (default: no)",
        },
        "all": {
            "action": "store_true",
            "help": "report plain network cards, too: without RDMA, SR-IOV, a user-space driver or Onload"
            " (default: no)",
        },
    },
    reads="nodedevices_probe.nic.probe",
    passed_on={
        DRIVER_ROOT: DRIVER_ROOT,
        FLAG: FLAG,
        "onload": ONLOAD_FILE,
        "sriov": SRIOV_FILE,
    },
    opens=frozenset({DRIVER_ROOT}),  # the files are not read here
    choices=frozenset({"all"}),
    check=_check,
    present=any_of(has_entries("sys/class/infiniband"), _special_card),
    files=(RDMA_FILE, SRIOV_FILE, ONLOAD_FILE),
)
