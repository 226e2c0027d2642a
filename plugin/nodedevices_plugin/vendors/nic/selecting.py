"""How NICs are selected: by what their probe says (nodedevices_probe.nic), and what the files of the SR-IOV
and the RDMA plugin have in common: a list of resources, each with a name of its own, and selectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from nodedevices_common.text import show
from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact
from pydantic import AfterValidator, Field, model_validator

from nodedevices_plugin.model import resource_names
from nodedevices_plugin.vendors.base import text
from nodedevices_plugin.vendors.plugin_files import Entries, PluginFile, Text, matching, refuse

_RDMA_NODE = re.compile(r"/dev/infiniband/[A-Za-z]+[0-9]+")
_VFIO_NODE = re.compile(r"/dev/vfio/(?:noiommu-)?([0-9]+)")


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


MAX_RESOURCES = 64  # of one file
ADDRESS_HINT = "give a PCI address, such as 0000:86:02.0"
PCI_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

PciId = Annotated[
    Text, matching("[0-9a-fA-F]{4}", "give four hexadecimal digits, such as 15b3"), AfterValidator(str.lower)
]
PciAddress = Annotated[Text, matching(PCI_ADDRESS, ADDRESS_HINT), AfterValidator(str.lower)]


class Selector(PluginFile):
    """Lists of alternatives; an empty one takes everything."""

    vendors: Annotated[tuple[PciId, ...], Entries] = ()
    drivers: Annotated[tuple[Text, ...], Entries] = ()
    link_types: Annotated[tuple[Literal["ether", "infiniband"], ...], Entries] = ()


class ListedResource(PluginFile):
    """`prefix`: empty where it does not say one."""

    default_prefix: ClassVar[str]

    # ASCII letters; Mellanox' plugin has no "-"
    name: Annotated[Text, matching("[a-zA-Z0-9_-]+", "only letters, digits, _ and - are allowed")] = Field(
        alias="resourceName"
    )
    prefix: str = Field(default="", alias="resourcePrefix")

    def full_name(self, prefix: str = "") -> str:
        """`prefix`: of resources that do not say theirs."""
        return f"{self.prefix or prefix or self.default_prefix}/{self.name}"

    @model_validator(mode="after")
    def _can_be_a_name(self) -> Self:
        if why := resource_names.wrong(self.full_name()):
            refuse({("resourceName",): f"{show(self.full_name())}: {why}"})
        return self


class ListFile(PluginFile):
    """A file with a list of resources, each with a name of its own."""

    key: ClassVar[str]  # of the list

    resources: tuple[ListedResource, ...]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [resource.full_name() for resource in self.resources]
        refuse(
            {
                (self.key, at, "resourceName"): f"{self.key}[{first}] has the name {name}, too; choose another"
                for at, name in enumerate(names)
                if (first := names.index(name)) != at
            }
        )
        return self
