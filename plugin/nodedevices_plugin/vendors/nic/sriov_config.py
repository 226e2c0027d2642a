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

`pfNames` and `rootDevices` are names, or regular expressions as Go's (expressions), which are searched for; here only
what has a character that no name has is taken for an expression, so that p1 does not select p10's functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nodedevices_common.text import show
from nodedevices_probe.nic import attributes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.vendors.nic import expressions
from nodedevices_plugin.vendors.nic.strict import LINK_TYPES, MAX_RESOURCES, PCI_ADDRESS, Strict
from nodedevices_plugin.vendors.nic.traits import (
    auxiliary,
    has_default_route,
    has_functions,
    is_hca,
    listed,
    number,
    pci_driver,
    physical_address,
    physical_name,
    text,
)

DEFAULT_PREFIX = "intel.com"
NET, ACCELERATOR, AUXILIARY = "netDevice", "accelerator", "auxNetDevice"
DEVICE_TYPES = (NET, ACCELERATOR, AUXILIARY)
VIRTIO, VHOST = "virtio", "vhost"
ALL_DEVICES = "*"  # of additionalInfo
ADDRESS_HINT = "give a PCI address, such as 0000:86:02.0"
MAX_FUNCTION = 65_535
MAX_EXPRESSION = 64
MAX_INTERFACE = 16  # characters of what an expression is searched in: an interface's name, a PCI address

LIST = "resourceList"
KEYS = (
    *("resourceName", "resourcePrefix", "deviceType", "excludeTopology", "selectors"),
    "additionalInfo",
)
COMMON = ("vendors", "devices", "drivers")
OF_TYPE: Mapping[str, tuple[str, ...]] = {
    NET: (
        *COMMON,
        *("pciAddresses", "acpiIndexes", "pfNames", "rootDevices", "linkTypes", "isRdma"),
        *("ddpProfiles", "needVhostNet", "vdpaType", "pKeys"),
    ),
    ACCELERATOR: (*COMMON, "pciAddresses", "acpiIndexes"),
    AUXILIARY: (
        *COMMON,
        *("pfNames", "rootDevices", "linkTypes", "isRdma", "acpiIndexes", "needVhostNet", "auxTypes"),
    ),
}
# What the operator's files have besides: a field of the plugin's own, which it never sets. Older ones have the second.
OPERATORS_KEYS = ("SelectorObjs", "SelectorObj")
_EXPRESSION = re.compile(r"[\\^$*+?()\[\]{}|]")
_DECIMAL = re.compile(r"[0-9]{1,5}")
_INDEX = re.compile(r"[0-9]{1,9}")
_KEY = re.compile(r"0x[0-9a-fA-F]{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """Of one physical function: `p0#0,2-7`. `of`: its name or address, or an expression. `ranges`: indices of virtual
    functions, both ends included; none: all, and the physical function itself."""

    of: str
    ranges: tuple[tuple[int, int], ...] = ()

    def fit(self, name: str, index: int | None) -> bool:
        if not name or not _called(self.of, name):
            return False
        return not self.ranges or (index is not None and any(low <= index <= high for low, high in self.ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class SriovSelector:
    """Lists of alternatives; an empty one takes everything."""

    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    acpi_indexes: tuple[int, ...] = ()
    pf_names: tuple[Functions, ...] = ()
    root_devices: tuple[Functions, ...] = ()
    link_types: tuple[str, ...] = ()
    ddp_profiles: tuple[str, ...] = ()
    p_keys: tuple[int, ...] = ()
    aux_types: tuple[str, ...] = ()
    is_rdma: bool = False
    need_vhost_net: bool = False
    vdpa_type: str = ""

    def fit(self, fact: DeviceFact) -> bool:
        index = number(fact, attributes.VF_INDEX)
        return (
            listed(self.vendors, text(fact, attributes.PCI_VENDOR))
            and listed(self.devices, text(fact, attributes.DEVICE_ID))
            and listed(self.drivers, pci_driver(fact))
            and listed(self.pci_addresses, fact.pci_bus_id)
            and (not self.acpi_indexes or number(fact, attributes.ACPI_INDEX) in self.acpi_indexes)
            and _selected(self.pf_names, physical_name(fact), index)
            and _selected(self.root_devices, physical_address(fact), index)
            and listed(self.link_types, text(fact, attributes.LINK_TYPE))
            and listed(self.ddp_profiles, text(fact, attributes.DDP_PROFILE))
            and (not self.p_keys or bool(_keys(fact) & set(self.p_keys)))
            and listed(self.aux_types, text(fact, attributes.AUX_TYPE))
            and (not self.is_rdma or is_hca(fact))
            and (not self.vdpa_type or text(fact, attributes.VDPA_TYPE) == self.vdpa_type)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SriovResource:
    """An entry. prefix: empty where it does not say one. information: by PCI address or `*`, what containers are told
    beside the address (additionalInfo)."""

    name: str
    prefix: str = ""
    device_type: str = NET
    exclude_topology: bool = False
    selectors: tuple[SriovSelector, ...] = (SriovSelector(),)
    information: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    def full_name(self, prefix: str = DEFAULT_PREFIX) -> str:
        """`prefix`: of resources that do not say theirs."""
        return f"{self.prefix or prefix}/{self.name}"

    def selector(self, fact: DeviceFact) -> SriovSelector | None:
        """The first that selects the device; None: it is not selected."""
        right_kind = {NET: bool(fact.pci_bus_id) and not auxiliary(fact), AUXILIARY: auxiliary(fact)}
        if not right_kind.get(self.device_type, False) or has_functions(fact):
            return None
        asked = (each for each in self.selectors if each.pci_addresses or not has_default_route(fact))
        return next((each for each in asked if each.fit(fact)), None)

    def additional_info(self, address: str) -> Mapping[str, str]:
        """What a container is told about the device: what is said of all, and what is said of it."""
        found: dict[str, str] = {}
        for wanted in (ALL_DEVICES, address):
            found |= dict(pair for device, pairs in self.information if device == wanted for pair in pairs)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SriovConfig:
    resources: tuple[SriovResource, ...] = ()

    def of(self, fact: DeviceFact) -> SriovResource | None:
        """The entry that has the device; None: no entry."""
        return next((each for each in self.resources if each.selector(fact) is not None), None)

    def named(self, name: str, prefix: str = DEFAULT_PREFIX) -> SriovResource | None:
        return next((each for each in self.resources if each.full_name(prefix) == name), None)


def parse(raw: bytes) -> SriovConfig:
    """Raises InputError with everything that is not right."""
    strict = Strict(any_case=True)
    document = strict.document(raw, (LIST,), null_is_empty=(LIST,))  # the operator's for a node without policies
    resources = strict.resources(document, LIST, MAX_RESOURCES, _resource, may_be_none=LIST in document)
    strict.finish()
    return SriovConfig(resources=resources)


def _resource(strict: Strict, entry: object, where: str) -> SriovResource:
    all_selectors = {key for keys in OF_TYPE.values() for key in keys}
    fields = strict.mapping(entry, where, (*KEYS, *OPERATORS_KEYS), dict.fromkeys(all_selectors, "into selectors"))
    for key in (each for each in OPERATORS_KEYS if each in fields):
        strict.wrong(f"{where}.{key}", f"{show(fields[key])} is not allowed, only null; give selectors")
    prefix, name = strict.resource(fields, where, DEFAULT_PREFIX)
    device_type = strict.text(fields, "deviceType", where, choices=DEVICE_TYPES) or NET
    return SriovResource(
        name=name,
        prefix=prefix,
        device_type=device_type,
        exclude_topology=strict.truth(fields, "excludeTopology", where),
        selectors=_selectors(strict, fields, where, device_type if device_type in DEVICE_TYPES else NET),
        information=_information(strict, fields, where),
    )


def _selectors(strict: Strict, fields: Mapping[str, Any], where: str, device_type: str) -> tuple[SriovSelector, ...]:
    """A list, or the older form of a single one. Without any, all devices of the type."""
    given = fields.get("selectors", {})
    place = f"{where}.selectors"
    if isinstance(given, list):
        every = strict.entries(fields, "selectors", where)
        return tuple(_selector(strict, each, f"{place}[{at}]", device_type) for at, each in enumerate(every))
    return (_selector(strict, given, place, device_type),)


def _selector(strict: Strict, value: object, where: str, device_type: str) -> SriovSelector:
    others = {
        key: f"to deviceType {kind}, not {device_type}"
        for kind, keys in OF_TYPE.items()
        for key in keys
        if key not in OF_TYPE[device_type]
    }
    given = strict.mapping(value, where, OF_TYPE[device_type], others)
    selector = SriovSelector(
        vendors=strict.pci_ids(given, "vendors", where),
        devices=strict.pci_ids(given, "devices", where),
        drivers=strict.texts(given, "drivers", where),
        pci_addresses=tuple(
            each.lower() for each in strict.texts(given, "pciAddresses", where, like=PCI_ADDRESS, right=ADDRESS_HINT)
        ),
        acpi_indexes=tuple(
            int(each)
            for each in strict.texts(given, "acpiIndexes", where, like=_INDEX, right="give a number, as text")
            if _INDEX.fullmatch(each)
        ),
        pf_names=_functions(strict, given, "pfNames", where),
        root_devices=_functions(strict, given, "rootDevices", where),
        link_types=strict.texts(given, "linkTypes", where, choices=LINK_TYPES),
        ddp_profiles=strict.texts(given, "ddpProfiles", where),
        p_keys=tuple(
            int(each, 16)
            for each in strict.texts(given, "pKeys", where, like=_KEY, right="give a key, such as 0x8001")
            if _KEY.fullmatch(each)
        ),
        aux_types=strict.texts(given, "auxTypes", where, choices=("sf",)),
        is_rdma=strict.truth(given, "isRdma", where),
        need_vhost_net=strict.truth(given, "needVhostNet", where),
        vdpa_type=strict.text(given, "vdpaType", where, choices=(VIRTIO, VHOST)),
    )
    if selector.is_rdma and selector.vdpa_type:
        strict.wrong(f"{where}.vdpaType", "given beside isRdma, and a device has one of them; leave one out")
    if device_type == AUXILIARY and isinstance(value, dict) and not given.get("auxTypes"):
        strict.wrong(f"{where}.auxTypes", f'missing; deviceType {AUXILIARY} needs it: ["sf"]')
    return selector


def _functions(strict: Strict, fields: Mapping[str, Any], key: str, where: str) -> tuple[Functions, ...]:
    found = []
    for at, each in enumerate(strict.texts(fields, key, where)):
        place = f"{where}.{key}[{at}]"
        of, hash_sign, indices = each.partition("#")
        problem = "" if of else "a name before # is missing"
        problem = problem or _name_problem(of, address=key == "rootDevices")
        ranges = []
        for part in indices.split(",") if hash_sign else ():
            low, dash, high = part.partition("-")
            high = high if dash else low
            right = _DECIMAL.fullmatch(low) and _DECIMAL.fullmatch(high) and int(low) <= int(high) <= MAX_FUNCTION
            if not right:
                problem = problem or f"{show(part)} is no index or range of virtual functions; write p0#0,2-7"
                continue
            ranges.append((int(low), int(high)))
        if problem:
            strict.wrong(place, f"{show(each)}: {problem}")
        found.append(Functions(of=of, ranges=tuple(ranges)))
    return tuple(found)


def _name_problem(of: str, *, address: bool) -> str:
    if _EXPRESSION.search(of) is None:
        return ADDRESS_HINT if address and PCI_ADDRESS.fullmatch(of) is None else ""
    if len(of) > MAX_EXPRESSION:
        return f"an expression may have {MAX_EXPRESSION} characters; list the names"
    try:
        expressions.parse(of)
    except expressions.ExpressionError as error:
        return f"not a regular expression ({error})"
    return ""


def _information(
    strict: Strict, fields: Mapping[str, Any], where: str
) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    place = f"{where}.additionalInfo"
    given = fields.get("additionalInfo", {})
    devices = strict.mapping(given, place, tuple(given) if isinstance(given, dict) else ())
    found = []
    for device, pairs in devices.items():
        of = f"{place}.{device}"
        keys = strict.mapping(pairs, of, tuple(pairs) if isinstance(pairs, dict) else ())
        found.append((device, tuple((key, strict.text(keys, key, of)) for key in keys)))
    return tuple(found)


def _selected(wanted: Sequence[Functions], name: str, index: int | None) -> bool:
    return not wanted or any(each.fit(name, index) for each in wanted)


@lru_cache(maxsize=4096)  # each pass of the agent asks the same
def _called(of: str, name: str) -> bool:
    if of.lower() == name.lower():
        return True
    expression = _compiled(of)
    return expression is not None and len(name) <= MAX_INTERFACE and expression.search(name)


@lru_cache(maxsize=512)
def _compiled(of: str) -> expressions.Expression | None:
    return expressions.parse(of) if _EXPRESSION.search(of) is not None else None


def _keys(fact: DeviceFact) -> set[int]:
    given = text(fact, attributes.P_KEYS).split(",")
    return {int(each, 16) for each in given if _KEY.fullmatch(each)}
