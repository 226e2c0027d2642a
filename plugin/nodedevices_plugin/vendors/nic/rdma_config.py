"""The configuration file of Mellanox' k8s-rdma-shared-dev-plugin.

    {"periodicUpdateInterval": 300,
     "configList": [{"resourceName": "hca_a", "resourcePrefix": "rdma", "rdmaHcaMax": 1000,
                     "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "linkTypes": ["ether"]}}]}

An entry selects HCAs (NICs with an RDMA device). The elements of one selector are alternatives, and all selectors that
are given must fit. Of entries that select the same HCA the first has it. `mode` and `sharesPerDevice` are ours; that
plugin ignores keys that it does not know, so that one file may serve both while a cluster moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodedevices_probe.nic import attributes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.vendors.nic.strict import LINK_TYPES, MAX_RESOURCES, Strict
from nodedevices_plugin.vendors.nic.traits import interface_names, is_hca, listed, text

DEFAULT_PREFIX = "rdma"
SHARED, PER_DEVICE = "shared", "perDevice"
MODES = (SHARED, PER_DEVICE)
MAX_SHARES = 100_000
DAY_SECONDS = 86_400
KEYS = ("periodicUpdateInterval", "configList")
SELECTORS = ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")
ENTRY_KEYS = ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors", "mode", "sharesPerDevice")


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaSelectors:
    """Each a list of alternatives; an empty one takes everything."""

    vendors: tuple[str, ...] = ()
    device_ids: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    if_names: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()

    def fit(self, fact: DeviceFact) -> bool:
        return (
            listed(self.vendors, text(fact, attributes.PCI_VENDOR))
            and listed(self.device_ids, text(fact, attributes.DEVICE_ID))
            and listed(self.drivers, text(fact, attributes.DRIVER))
            and any(listed(self.if_names, each) for each in interface_names(fact))
            and listed(self.link_types, text(fact, attributes.LINK_TYPE))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaResource:
    """An entry. together: every container gets all HCAs, and `shares` is how many
    containers there may be. Else a container gets the HCAs that it was granted, and `shares` is how many containers may
    have each; None: one, which has it alone; 0: it has its HCAs, and offers none."""

    name: str
    prefix: str = DEFAULT_PREFIX
    selectors: RdmaSelectors = field(default_factory=RdmaSelectors)
    together: bool = True
    shares: int | None = None

    def full_name(self) -> str:
        return f"{self.prefix}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaConfig:
    resources: tuple[RdmaResource, ...] = ()

    def of(self, fact: DeviceFact) -> RdmaResource | None:
        """The entry that has the device; None: no entry."""
        return next((each for each in self.resources if each.selectors.fit(fact)), None) if is_hca(fact) else None

    def named(self, name: str) -> RdmaResource | None:
        return next((each for each in self.resources if each.full_name() == name), None)


def parse(raw: bytes) -> RdmaConfig:
    """Raises InputError with everything that is not right."""
    strict = Strict(any_case=True)
    document = strict.document(raw, KEYS)
    strict.number(document, "periodicUpdateInterval", "", low=0, high=DAY_SECONDS)
    resources = strict.resources(document, "configList", MAX_RESOURCES, _resource)
    strict.finish()
    return RdmaConfig(resources=resources)


def _resource(strict: Strict, entry: object, where: str) -> RdmaResource:
    fields = strict.mapping(entry, where, ENTRY_KEYS, dict.fromkeys(SELECTORS, "into selectors"))
    prefix, name = strict.resource(fields, where, DEFAULT_PREFIX)
    together = (strict.text(fields, "mode", where, choices=MODES) or SHARED) == SHARED
    containers = strict.number(fields, "rdmaHcaMax", where, low=0, high=MAX_SHARES)
    each = strict.number(fields, "sharesPerDevice", where, low=1, high=MAX_SHARES)
    if together and "sharesPerDevice" in fields:
        strict.wrong(f"{where}.sharesPerDevice", f"only goes with mode {PER_DEVICE}; give rdmaHcaMax")
    if together and "rdmaHcaMax" not in fields and isinstance(entry, dict):
        strict.wrong(f"{where}.rdmaHcaMax", "missing; give the number of containers that may use the HCAs at a time")
    if not together and "rdmaHcaMax" in fields:
        right = "give sharesPerDevice, or nothing for HCAs of one container each"
        strict.wrong(f"{where}.rdmaHcaMax", f"counts the containers of all HCAs; with mode {PER_DEVICE} {right}")
    return RdmaResource(
        name=name,
        prefix=prefix or DEFAULT_PREFIX,
        selectors=_selectors(strict, fields, where),
        together=together,
        shares=containers if together else each,
    )


def _selectors(strict: Strict, fields: Mapping[str, Any], where: str) -> RdmaSelectors:
    """`devices` is the old form of `ifNames`."""
    before = len(strict.problems)
    names = strict.texts(fields, "devices", where)
    place = f"{where}.selectors"
    given = strict.mapping(fields.get("selectors", {}), place, SELECTORS)
    selectors = RdmaSelectors(
        vendors=strict.pci_ids(given, "vendors", place),
        device_ids=strict.pci_ids(given, "deviceIDs", place),
        drivers=strict.texts(given, "drivers", place),
        if_names=strict.texts(given, "ifNames", place),
        link_types=strict.texts(given, "linkTypes", place, choices=LINK_TYPES),
    )
    some = selectors != RdmaSelectors()
    if some and names:
        strict.wrong(f"{where}.devices", "given beside selectors; move the names to selectors.ifNames")
    if not some and not names and len(strict.problems) == before:
        strict.wrong(place, 'missing; say which HCAs, such as {"vendors": ["15b3"]}')
    return selectors if some else RdmaSelectors(if_names=names)
