"""The configuration file of the SR-IOV network device plugin (k8snetworkplumbingwg).

    {"resourceList": [{"resourceName": "dpdk", "resourcePrefix": "intel.com", "deviceType": "netDevice",
                       "excludeTopology": false,
                       "selectors": [{"vendors": ["8086"], "drivers": ["vfio-pci"], "pfNames": ["p0#0,2-7"]}],
                       "additionalInfo": {"*": {"token": "x"}}}]}

A device belongs to the first resource that selects it, and there to the first of its `selectors` that does: that one
says whether containers get RDMA, vhost-net or vDPA nodes. Within a selector the elements of a list are alternatives,
and all that is given must fit. A physical function with virtual ones is not selected: what it has is theirs. Neither is
a card through which the node's own traffic goes, unless `pciAddresses` names it.

Keys may be written in any case, and the SR-IOV operator writes some as Go does (`IsRdma`, `SelectorObjs`).

`pfNames` and `rootDevices` are compared, whatever their case (as there, at 40b6f50); what no interface is
called, such as an expression, is refused, for it would select nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from nodedevices_api.fields import Flag
from nodedevices_common.errors import InputError, InputProblem
from nodedevices_common.text import show
from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from nodedevices_plugin.vendors.base import text
from nodedevices_plugin.vendors.nic.selecting import (
    ADDRESS_HINT,
    MAX_RESOURCES,
    PCI_ADDRESS,
    ListedResource,
    ListFile,
    PciAddress,
    PciId,
    Selector,
    auxiliary,
    has_default_route,
    is_hca,
    listed,
    number,
    pci_driver,
)
from nodedevices_plugin.vendors.plugin_files import Entries, Text, matching, read, refuse

DEFAULT_PREFIX = "intel.com"
NET, ACCELERATOR, AUXILIARY = DEVICE_TYPES = ("netDevice", "accelerator", "auxNetDevice")
VHOST = "vhost"
ALL_DEVICES = "*"  # of additionalInfo
MAX_FUNCTION = 65_535

LIST = "resourceList"
# Selectors that not every device type has.
FOREIGN: Mapping[str, Sequence[str]] = {
    NET: ("auxTypes",),
    ACCELERATOR: (
        *("ddpProfiles", "vdpaType", "pKeys", "pfNames", "rootDevices", "linkTypes", "isRdma", "needVhostNet"),
        "auxTypes",
    ),
    AUXILIARY: ("ddpProfiles", "vdpaType", "pKeys", "pciAddresses"),
}
_NO_NAME = re.compile(r"[\\^$*+?()\[\]{}|]")
_DECIMAL = re.compile(r"[0-9]{1,5}")
_KEY = re.compile(r"0x[0-9a-fA-F]{1,4}")


def _functions(value: str, *, address: bool) -> str:
    """A name or address, and behind # which virtual functions: `p0#0,2-7`."""
    function, hash_sign, indices = value.partition("#")
    problem = "" if function else "a name before # is missing"
    if _NO_NAME.search(function) is not None:
        problem = "names are compared and not searched for; list them"
    elif address and re.fullmatch(PCI_ADDRESS, function) is None:
        problem = problem or ADDRESS_HINT
    for part in indices.split(",") if hash_sign else ():
        low, dash, high = part.partition("-")
        high = high if dash else low
        right = _DECIMAL.fullmatch(low) and _DECIMAL.fullmatch(high) and int(low) <= int(high) <= MAX_FUNCTION
        if not right:
            problem = problem or f"{show(part)} is not an index or range of virtual functions; write p0#0,2-7"
    if problem:
        raise ValueError(f"{show(value)}: {problem}")
    return value


ByName = Annotated[Text, AfterValidator(lambda value: _functions(value, address=False))]
ByAddress = Annotated[Text, AfterValidator(lambda value: _functions(value, address=True))]


class SriovSelector(Selector):
    devices: Annotated[tuple[PciId, ...], Entries] = ()
    pci_addresses: Annotated[tuple[PciAddress, ...], Entries] = ()
    acpi_indexes: Annotated[tuple[Annotated[Text, matching("[0-9]{1,9}", "give a number, as text")], ...], Entries] = ()
    pf_names: Annotated[tuple[ByName, ...], Entries] = ()
    root_devices: Annotated[tuple[ByAddress, ...], Entries] = ()
    ddp_profiles: Annotated[tuple[Text, ...], Entries] = ()
    p_keys: Annotated[tuple[Annotated[Text, matching(_KEY.pattern, "give a key, such as 0x8001")], ...], Entries] = ()
    aux_types: Annotated[tuple[Literal["sf"], ...], Entries] = ()
    is_rdma: Flag = False
    need_vhost_net: Flag = False
    vdpa_type: Literal["virtio", "vhost"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_rdma and self.vdpa_type:
            refuse({("vdpaType",): "given beside isRdma, and a device has one of them; leave one out"})
        return self

    def wrong(self, device_type: str) -> Mapping[str, str]:
        """Return by key why it does not go with devices of this type."""
        fields = {field.alias: (name, field.get_default()) for name, field in type(self).model_fields.items()}
        given = (key for key in FOREIGN[device_type] if getattr(self, fields[key][0]) != fields[key][1])
        right = {key: " or ".join(other for other in DEVICE_TYPES if key not in FOREIGN[other]) for key in given}
        found = {
            key: f"unknown key; it belongs to deviceType {types}, not {device_type}" for key, types in right.items()
        }
        if device_type == AUXILIARY and not self.aux_types:
            found["auxTypes"] = f'missing; deviceType {AUXILIARY} needs it: ["sf"]'
        return found

    def fit(self, fact: DeviceFact) -> bool:
        index = number(fact, attributes.VF_INDEX)
        # Of the physical function; of a physical function its own.
        physical_name = text(fact, attributes.PF_NAME) or text(fact, attributes.IF_NAME)
        physical_address = text(fact, attributes.PHYSICAL_FUNCTION) or fact.pci_bus_id
        return (
            listed(self.vendors, text(fact, attributes.PCI_VENDOR))
            and listed(self.devices, text(fact, attributes.DEVICE_ID))
            and listed(self.drivers, pci_driver(fact))
            and listed(self.pci_addresses, fact.pci_bus_id)
            and (not self.acpi_indexes or str(number(fact, attributes.ACPI_INDEX)) in self.acpi_indexes)
            and _selected(self.pf_names, physical_name, index)
            and _selected(self.root_devices, physical_address, index)
            and listed(self.link_types, text(fact, attributes.LINK_TYPE))
            and listed(self.ddp_profiles, text(fact, attributes.DDP_PROFILE))
            and (not self.p_keys or bool(_keys(text(fact, attributes.P_KEYS).split(",")) & _keys(self.p_keys)))
            and listed(self.aux_types, text(fact, attributes.AUX_TYPE))
            and (not self.is_rdma or is_hca(fact))
            and (not self.vdpa_type or text(fact, attributes.VDPA_TYPE) == self.vdpa_type)
        )


def _without_nulls(value: Any) -> Any:
    return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value


def _only_null(value: object) -> None:
    if value is not None:
        raise ValueError(f"{show(value)} is not allowed, only null; give selectors")


Null = Annotated[None, BeforeValidator(_only_null)]


class SriovResource(ListedResource):
    """An entry. `information`: by PCI address or `*`, what containers are told beside the address. `selector_objs`: the
    operator's files have it, a field of the plugin's own, which it never sets; older ones have the second."""

    default_prefix = DEFAULT_PREFIX
    elsewhere = dict.fromkeys(
        (field.alias or name for name, field in SriovSelector.model_fields.items()), "into selectors"
    )

    device_type: Literal["netDevice", "accelerator", "auxNetDevice"] = "netDevice"
    exclude_topology: Flag = False
    selectors: tuple[SriovSelector, ...] = Field(default_factory=lambda: (SriovSelector(),), max_length=MAX_RESOURCES)
    information: Annotated[
        Mapping[str, Annotated[Mapping[str, Text], BeforeValidator(_without_nulls)]], BeforeValidator(_without_nulls)
    ] = Field(default={}, alias="additionalInfo")
    selector_objs: Null = Field(default=None, alias="SelectorObjs")
    selector_obj: Null = Field(default=None, alias="SelectorObj")

    @field_validator("selectors", mode="wrap")
    @classmethod
    def _selectors(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """A list, or the older form of a single one. Without any, all devices of the type."""
        single = isinstance(value, dict)
        found = (SriovSelector.model_validate(value),) if single else handler(value)
        wrong = (selector.wrong(info.data.get("device_type", NET)) for selector in found)
        refuse(
            {
                (key,) if single else (at, key): text
                for at, problems in enumerate(wrong)
                for key, text in problems.items()
            }
        )
        return found

    def selector(self, fact: DeviceFact) -> SriovSelector | None:
        """The first that selects the device; None: it is not selected."""
        right_kind = {NET: bool(fact.pci_bus_id) and not auxiliary(fact), AUXILIARY: auxiliary(fact)}
        has_functions = (number(fact, attributes.VIRTUAL_FUNCTIONS) or 0) > 0  # a physical function with virtual ones
        if not right_kind.get(self.device_type, False) or has_functions:
            return None
        asked = (selector for selector in self.selectors if selector.pci_addresses or not has_default_route(fact))
        return next((selector for selector in asked if selector.fit(fact)), None)

    def additional_info(self, address: str) -> Mapping[str, str]:
        """Return what a container is told about the device: the entries for all devices, and its own."""
        return {**self.information.get(ALL_DEVICES, {}), **self.information.get(address, {})}


class SriovConfig(ListFile):
    key = LIST
    null_is_empty = LIST  # as the operator writes it for a node without policies

    resources: Annotated[tuple[SriovResource, ...], Field(max_length=MAX_RESOURCES)] = Field(default=(), alias=LIST)

    def resource_for(self, fact: DeviceFact) -> SriovResource | None:
        """The entry that has the device; None: no entry."""
        return next((resource for resource in self.resources if resource.selector(fact) is not None), None)


def parse(raw: bytes) -> SriovConfig:
    """Raises InputError with everything that is not right."""
    found = read(raw, SriovConfig)
    if "resources" not in found.model_fields_set:
        raise InputError([InputProblem.at(LIST, "missing; list the resources")])
    return found


def _selected(wanted: Sequence[str], name: str, index: int | None) -> bool:
    return not wanted or any(_has(functions, name, index) for functions in wanted)


@lru_cache(maxsize=4096)  # each pass of the agent asks the same
def _has(functions: str, name: str, index: int | None) -> bool:
    """True when a physical function's name and a virtual one's index are among them. Without indices: all, and the
    physical function itself."""
    function, hash_sign, indices = functions.partition("#")
    if not name or function.lower() != name.lower():
        return False
    ranges = (part.partition("-") for part in indices.split(","))
    return not hash_sign or (
        index is not None and any(int(low) <= index <= int(high or low) for low, _, high in ranges)
    )


def _keys(given: Sequence[str]) -> set[int]:
    return {int(key, 16) for key in given if _KEY.fullmatch(key)}
