"""The command `nodedevices-probe nic` and its flags."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from nodedevices_probe.files.check import CheckError
from nodedevices_probe.kind import DRIVER_ROOT, AgentOptions, ProbeKind, add_driver_root
from nodedevices_probe.nic.attributes import RDMA_NODES, RDMA_REQUIRED
from nodedevices_probe.node.presence import Hardware, any_of, has_entries
from nodedevices_probe.node.sysfs import PCI_DEVICES

FLAG = "rdma-required"


def required_nodes(value: str) -> frozenset[str]:
    """Return the nodes that --rdma-required names. Raises CheckError."""
    if value.strip() == "none":
        return frozenset()
    wanted = [each.strip() for each in value.split(",") if each.strip()]
    wrong = [each for each in wanted if each not in RDMA_NODES]
    if wrong or not wanted:
        right = f"some of {','.join(RDMA_NODES)}, or none"
        raise CheckError(f"argument --{FLAG}: {(wrong or [value])[0]!r} is not allowed; give {right}")
    return frozenset(wanted)


def _check(given: AgentOptions) -> None:
    if value := given[FLAG]:
        required_nodes(str(value))


def _special_card(hardware: Hardware) -> str:
    """One that the probe reports without being told to report all."""
    for function in hardware.pci:
        if not function.pci_class.startswith("0x02"):
            continue
        if function.vendor == "0x1924" or (driver := hardware.driver(function)) == "sfc":
            return f"{function.address} is a Solarflare card"
        if "vfio" in driver:
            return f"{function.address} is a network card with the driver {driver}"
        if hardware.roots.number(f"{PCI_DEVICES}/{function.address}/sriov_totalvfs"):
            return f"{function.address} is a network card with SR-IOV"
    return ""


def _add_arguments(parser: ArgumentParser) -> None:
    add_driver_root(parser)
    parser.add_argument(
        "--host-sys-ctr-path",
        type=Path,
        default=Path("/host-sys"),
        metavar="DIR",
        help="the host's /sys, mounted, if it is there: a container's own has only the network interfaces of its pod"
        " (default: /host-sys)",
    )
    parser.add_argument(
        "--host-net-ctr-path",
        type=Path,
        default=Path("/host-net"),
        metavar="DIR",
        help="the host's /proc/1/net, mounted, if it is there: it says which interface has the default route"
        " (default: /host-net)",
    )
    parser.add_argument(
        f"--{FLAG}",
        default=",".join(RDMA_REQUIRED),
        metavar="NODES",
        help=f"report an RDMA device without one of these character devices as faulty: {','.join(RDMA_NODES)}, or none"
        f" (default: {','.join(RDMA_REQUIRED)})",
    )
    parser.add_argument(
        "--onload",
        default="",
        metavar="FILE",
        help="report a Solarflare card without Onload's modules or device nodes as faulty: the agent gives its"
        " --onload-config-file, which is not read here (default: no)",
    )
    parser.add_argument(
        "--sriov",
        default="",
        metavar="FILE",
        help="report plain network cards, too, where it is known which has the default route: the agent gives its"
        " --sriov-config-file, which may select them and is not read here (default: no)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="report plain network cards, too: without RDMA, SR-IOV, a user-space driver or Onload (default: no)",
    )


NIC = ProbeKind(
    name="nic",
    help="network cards: RDMA devices, SR-IOV functions, Solarflare; by what the kernel shows",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.nic.probe",
    passed_on={
        DRIVER_ROOT: DRIVER_ROOT,
        FLAG: FLAG,
        "onload": "onload-config-file",
        "sriov": "sriov-config-file",
    },
    opens=frozenset({DRIVER_ROOT}),  # the files are not read here
    choices=frozenset({"all"}),
    check=_check,
    present=any_of(has_entries("sys/class/infiniband"), _special_card),
    auto_by=("rdma-config-file", "sriov-config-file", "onload-config-file"),
)
