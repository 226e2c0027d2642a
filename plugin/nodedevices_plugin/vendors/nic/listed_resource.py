"""What the files of the SR-IOV and the RDMA plugin have in common: a list of resources, each with a name of its own,
and what they select functions by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from nodedevices_common.text import show
from pydantic import AfterValidator, Field, model_validator

from nodedevices_plugin.model import PlanError, resource_names
from nodedevices_plugin.vendors.plugin_files import Entries, PluginFile, Text, matching, refuse

MAX_RESOURCES = 64  # of one file
ADDRESS_HINT = "give a PCI address, such as 0000:86:02.0"
PCI_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

PciId = Annotated[
    Text, matching("[0-9a-fA-F]{4}", "give four hexadecimal digits, such as 15b3"), AfterValidator(str.lower)
]
PciAddress = Annotated[Text, matching(PCI_ADDRESS, ADDRESS_HINT), AfterValidator(str.lower)]
LinkType = Literal["ether", "infiniband"]


class Selector(PluginFile):
    """Lists of alternatives; an empty one takes everything."""

    vendors: Annotated[tuple[PciId, ...], Entries] = ()
    drivers: Annotated[tuple[Text, ...], Entries] = ()
    link_types: Annotated[tuple[LinkType, ...], Entries] = ()


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
        try:
            resource_names.check("", self.full_name())
        except PlanError as error:
            refuse({("resourceName",): f"{show(error.value)}: {error.hint}"})
        return self


def refuse_repeated(key: str, resources: Sequence[ListedResource]) -> None:
    """In a file's validator: each resource has another name."""
    names = [resource.full_name() for resource in resources]
    refuse(
        {
            (key, at, "resourceName"): f"{key}[{first}] has the name {name}, too; choose another"
            for at, name in enumerate(names)
            if (first := names.index(name)) != at
        }
    )
