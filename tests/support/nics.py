"""NICs as literal facts: a dual-port ConnectX with virtual functions, and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import Attribute, DeviceFact, Readings

MELLANOX, INTEL = "15b3", "8086"
UVERBS = "/dev/infiniband/uverbs{0}"
UMAD = "/dev/infiniband/umad{0}"


def extra(**values: str | int | None) -> dict[str, Attribute]:
    """Attributes by their names; None: not there."""
    return {
        name: Attribute(integer=value) if isinstance(value, int) else Attribute(string=value)
        for name, value in values.items()
        if value is not None
    }


def port(number: int) -> str:
    """The PCI address of a physical function."""
    return f"0000:1b:00.{number}"


def function(number: int, of: int = 0) -> str:
    """Of a virtual function."""
    return f"0000:1b:{of + 1:02d}.{number}"


def hca(number: int, /, *, conditions: Sequence[str] = (), **own: Any) -> DeviceFact:
    """A port of a ConnectX-5 as a physical function that does RDMA."""
    known: dict[str, str | int | None] = {
        attributes.PCI_VENDOR: MELLANOX,
        attributes.DEVICE_ID: "1017",
        attributes.DRIVER: "mlx5_core",
        attributes.IF_NAME: f"p{number}",
        attributes.PF_NAME: f"p{number}",
        attributes.LINK_TYPE: attributes.ETHER,
        attributes.RDMA_DEVICE: f"mlx5_{number}",
    }
    return DeviceFact(
        id=port(number),
        index=number,
        type=attributes.PHYSICAL,
        vendor="mellanox",
        product_name="ConnectX-5",
        pci_bus_id=port(number),
        numa_node=number % 2,
        extra=extra(**{**known, **own}),
        device_nodes=(UVERBS.format(number), UMAD.format(number)),
        readings=Readings(conditions=tuple(conditions)),
    )


def vf(
    number: int, /, *, of: int = 0, nodes: Sequence[str] = (), conditions: Sequence[str] = (), **own: Any
) -> DeviceFact:
    """A virtual function with a network driver; `of`: the port."""
    known: dict[str, str | int | None] = {
        attributes.PCI_VENDOR: MELLANOX,
        attributes.DEVICE_ID: "1018",
        attributes.DRIVER: "mlx5_core",
        attributes.IF_NAME: f"p{of}v{number}",
        attributes.PF_NAME: f"p{of}",
        attributes.PHYSICAL_FUNCTION: port(of),
        attributes.VF_INDEX: number,
        attributes.LINK_TYPE: attributes.ETHER,
    }
    return DeviceFact(
        id=function(number, of),
        index=of * 100 + number,
        type=attributes.VIRTUAL,
        vendor="mellanox",
        product_name="ConnectX-5 VF",
        pci_bus_id=function(number, of),
        numa_node=of % 2,
        extra=extra(**{**known, **own}),
        device_nodes=tuple(nodes),
        readings=Readings(conditions=tuple(conditions)),
    )
