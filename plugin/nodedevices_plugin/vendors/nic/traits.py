"""What selectors ask of a NIC, from the attributes of its probe (nodedevices_probe.nic)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact

_RDMA_NODE = re.compile(r"/dev/infiniband/[A-Za-z]+[0-9]+")
_VFIO_NODE = re.compile(r"/dev/vfio/(?:noiommu-)?([0-9]+)")


def text(fact: DeviceFact, name: str) -> str:
    """An attribute; empty where there is none."""
    attribute = fact.extra.get(name)
    return (attribute.string or "") if attribute is not None else ""


def number(fact: DeviceFact, name: str) -> int | None:
    attribute = fact.extra.get(name)
    return attribute.integer if attribute is not None else None


def listed(allowed: Iterable[str], value: str) -> bool:
    """True when a selector takes the value; an empty selector takes every value."""
    wanted = tuple(allowed)
    return not wanted or value in wanted


def interface_names(fact: DeviceFact) -> tuple[str, ...]:
    """Its network interfaces; one empty name where there is none."""
    return tuple((text(fact, attributes.IF_NAMES) or text(fact, attributes.IF_NAME)).split(","))


def physical_name(fact: DeviceFact) -> str:
    """The network interface of the physical function; of a physical function its own."""
    return text(fact, attributes.PF_NAME) or text(fact, attributes.IF_NAME)


def physical_address(fact: DeviceFact) -> str:
    """The PCI address of the physical function; of a physical function its own."""
    return text(fact, attributes.PHYSICAL_FUNCTION) or fact.pci_bus_id


def pci_driver(fact: DeviceFact) -> str:
    """Return the PCI function's driver; for a subfunction its card's: its own is another one (`mlx5_core.sf`)."""
    return (text(fact, attributes.PF_DRIVER) if auxiliary(fact) else "") or text(fact, attributes.DRIVER)


def auxiliary(fact: DeviceFact) -> bool:
    """True for a device on the auxiliary bus (a subfunction), which is no PCI function."""
    return bool(text(fact, attributes.AUX_TYPE))


def has_default_route(fact: DeviceFact) -> bool:
    """True when the node's own traffic goes through it."""
    attribute = fact.extra.get(attributes.DEFAULT_ROUTE)
    return attribute is not None and bool(attribute.boolean)


def has_functions(fact: DeviceFact) -> bool:
    """True for a physical function that has virtual functions now."""
    return (number(fact, attributes.VIRTUAL_FUNCTIONS) or 0) > 0


def is_hca(fact: DeviceFact) -> bool:
    """True for a device that does RDMA."""
    return bool(text(fact, attributes.RDMA_DEVICE))


def rdma_nodes(fact: DeviceFact) -> tuple[str, ...]:
    """Its own RDMA character devices."""
    return tuple(node for node in fact.device_nodes if _RDMA_NODE.fullmatch(node))


def vfio_node(fact: DeviceFact) -> tuple[str, str] | None:
    """Its VFIO group, on the host and in containers, where a driver of VFIO has it; None: none has. Without an IOMMU
    the group is called otherwise on the host."""
    found = (_VFIO_NODE.fullmatch(node) for node in fact.device_nodes)
    return next(((match[0], f"/dev/vfio/{match[1]}") for match in found if match is not None), None)


def node_called(fact: DeviceFact, prefix: str) -> str:
    """Return the first device node with this beginning; empty: none."""
    return next((node for node in fact.device_nodes if node.startswith(prefix)), "")
