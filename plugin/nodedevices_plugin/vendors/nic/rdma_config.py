"""The configuration file of Mellanox' k8s-rdma-shared-dev-plugin.

    {"periodicUpdateInterval": 300,
     "configList": [{"resourceName": "hca_a", "resourcePrefix": "rdma", "rdmaHcaMax": 1000,
                     "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "linkTypes": ["ether"]}}]}

An entry selects HCAs (NICs with an RDMA device). The elements of one selector are alternatives, and all selectors that
are given must fit. Of entries that select the same HCA the first has it. `mode` and `sharesPerDevice` are ours; that
plugin ignores keys that it does not know, so that one file may serve both while a cluster moves.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from nodedevices_common.errors import InputError, InputProblem
from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact
from pydantic import Field, model_validator

from nodedevices_plugin.vendors.base import text
from nodedevices_plugin.vendors.nic.selecting import (
    MAX_RESOURCES,
    ListedResource,
    ListFile,
    PciId,
    Selector,
    interface_names,
    is_hca,
    listed,
)
from nodedevices_plugin.vendors.plugin_files import Entries, Text, ignored, number, read, refuse

LIST = "configList"
MAX_SHARES = 100_000
DAY_SECONDS = 86_400


class RdmaSelectors(Selector):
    device_ids: Annotated[tuple[PciId, ...], Entries] = Field(default=(), alias="deviceIDs")
    if_names: Annotated[tuple[Text, ...], Entries] = ()

    def fit(self, fact: DeviceFact) -> bool:
        return (
            listed(self.vendors, text(fact, attributes.PCI_VENDOR))
            and listed(self.device_ids, text(fact, attributes.DEVICE_ID))
            and listed(self.drivers, text(fact, attributes.DRIVER))
            and any(listed(self.if_names, name) for name in interface_names(fact))
            and listed(self.link_types, text(fact, attributes.LINK_TYPE))
        )


class RdmaResource(ListedResource):
    """An entry. `shared`: every container gets all HCAs, and `containers` is how many there may be. `perDevice`: a
    container gets the HCAs that it was granted."""

    default_prefix = "rdma"
    elsewhere = dict.fromkeys(("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"), "into selectors")

    mode: Literal["shared", "perDevice"] = "shared"
    containers: Annotated[int, number(0, MAX_SHARES)] | None = Field(default=None, alias="rdmaHcaMax")
    shares_per_device: Annotated[int, number(1, MAX_SHARES)] | None = None
    devices: Annotated[tuple[Text, ...], Entries] = ()  # the old form of selectors.ifNames
    selectors: RdmaSelectors = Field(default_factory=RdmaSelectors)

    @property
    def together(self) -> bool:
        return self.mode == "shared"

    @property
    def shares(self) -> int | None:
        """The number of containers that may have all HCAs (together) or each of them. None: one, which has it alone; 0:
        it has its HCAs, and offers none."""
        return self.containers if self.together else self.shares_per_device

    def fit(self, fact: DeviceFact) -> bool:
        return self.selectors.fit(fact) and any(listed(self.devices, name) for name in interface_names(fact))

    @model_validator(mode="after")
    def _check(self) -> Self:
        some, together, counted = self.selectors != RdmaSelectors(), self.together, self.containers is not None
        checks = (
            (
                together and self.shares_per_device is not None,
                "sharesPerDevice",
                "only valid with mode perDevice; give rdmaHcaMax",
            ),
            (
                together and not counted,
                "rdmaHcaMax",
                "missing; give the number of containers that may use the HCAs at a time",
            ),
            (
                counted and not together,
                "rdmaHcaMax",
                (
                    "counts the containers of all HCAs; with mode perDevice give sharesPerDevice, or nothing for HCAs "
                    "of one container each"
                ),
            ),
            (some and self.devices, "devices", "given beside selectors; move the names to selectors.ifNames"),
            (
                not some and not self.devices,
                "selectors",
                'missing; say which HCAs, such as {"vendors": ["15b3"]}',
            ),
        )
        refuse({(key,): text for wrong, key, text in checks if wrong})
        return self


class RdmaConfig(ListFile):
    key = LIST

    period: Annotated[Annotated[int, number(0, DAY_SECONDS)] | None, ignored] = Field(
        default=None, alias="periodicUpdateInterval"
    )
    resources: Annotated[tuple[RdmaResource, ...], Field(max_length=MAX_RESOURCES)] = Field(default=(), alias=LIST)

    def resource_for(self, fact: DeviceFact) -> RdmaResource | None:
        """The entry that has the device; None: no entry."""
        return next((resource for resource in self.resources if resource.fit(fact)), None) if is_hca(fact) else None


def parse(raw: bytes) -> RdmaConfig:
    """Raises InputError with everything that is not right."""
    found = read(raw, RdmaConfig)
    if not found.resources:
        raise InputError([InputProblem.at(LIST, "missing or empty; list at least one resource")])
    return found
