"""Xilinx (AMD): FPGA cards, and MA35D media accelerators.

Names, ids and device nodes are those of Xilinx' device plugin (FPGA_as_a_Service, k8s-device-plugin).

A card is offered as its shell and that shell's timestamp, `amd.com/xilinx_u250_gen3x16_xdma_shell_4_1-1623351600`,
since a program is built for one shell. A U30 is offered whole, or by FPGA with a partitions.strategy other than none.
Management nodes (/dev/xclmgmt<N>), with which a card can be programmed, go to containers only where a flag says so.

A DaemonSet written for that plugin says the same things here: flags and variables are that plugin's. What a policy can
say, too, becomes a section. So is its file NameCustomize.json: `{"u250-*-1623351600": "'u250-'+timestamp"}`. A key is a
device type, a shell and a timestamp, or the last six characters of the shell's UUID, with dashes between; `*` is any. A
value is made of texts in single quotes and fields, with `+` between. Of several keys that match, the one with the
fewest `*` applies, then the first (there: any). It is read strictly: what that plugin would make nothing of is refused,
with its key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import astuple
from nodedevices_common.errors import InputError, InputProblem
from nodedevices_common.options import Values, option
from nodedevices_common.text import nearest, show
from nodedevices_probe import fpga as attributes
from nodedevices_probe.fpga import MEDIA, NAMES_FILE, NO_SHELL, VENDOR
from nodedevices_probe.kind import DEVICES_DIR
from nodedevices_probe.protocol import DeviceFact, Readings

from nodedevices_plugin.model import HealthState, InventoryDevice, PlanError, Unit
from nodedevices_plugin.vendors.base import (
    DeviceFile,
    DeviceNodes,
    Naming,
    NodeView,
    Vendor,
    VendorFlags,
    VendorShares,
    content_of,
    text,
    value_of,
    whole_or_partitions,
)
from nodedevices_plugin.vendors.faults import FaultCondition, hot, node_missing
from nodedevices_plugin.vendors.plugin_files import load

# --- what cards are called --------------------------------------------------------------------------------------------
MA35 = "MA35"
U30_SHELL, U30_COMMON = "xilinx_u30", "ama_u30"
ANY = "*"
MAX_ALIAS = 60  # a longer name is not used, and the usual one is; as there
MAX_ALIASES = 256
MAX_ALIAS_TEXT = 256  # of a key, and of what a name is made of
UUID_END = 6
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
FIELDS = ("deviceType", "shellVer", "timestamp", "uuid", "deviceID", "SN")
_UNFIT = {
    "DBDF": "a PCI address has colons, which no resource name may have",
    "index": "it changes when a card is plugged in or out",
    "Healthy": "a name must not follow health",
}
_TEXT = re.compile(r"'[-A-Za-z0-9_.]*'")


@dataclass(frozen=True, slots=True)
class Alias:
    """`version`: a timestamp, or the end of a UUID. `parts`: texts in their quotes, and fields."""

    device_type: str
    shell: str
    version: str
    parts: tuple[str, ...]

    def matches(self, card: Card) -> bool:
        version = self.version.lower()
        return (
            self.device_type.lower() in {ANY, card.device_type.lower()}
            and self.shell.lower() in {ANY, card.shell.lower()}
            and (version in {ANY, card.timestamp.lower()} or (len(version) == UUID_END and version == card.uuid))
        )


@dataclass(frozen=True, slots=True)
class Aliases:
    """The content of the file, the most exact first."""

    aliases: tuple[Alias, ...] = ()


class Card(Struct, frozen=True, kw_only=True):
    """A card by that plugin's names, in the order of FIELDS. `uuid`: its end, in small letters."""

    device_type: str
    shell: str
    timestamp: str
    uuid: str
    device_id: str
    serial: str

    @classmethod
    def from_fact(cls, fact: DeviceFact) -> Card | None:
        """None: its shell is not known."""
        media = fact.type == MEDIA
        shell = MA35 if media else text(fact, attributes.SHELL)
        timestamp = "0" if media else text(fact, attributes.TIMESTAMP)
        if not shell or not timestamp:
            return None
        return cls(
            device_type=MA35 if media else text(fact, attributes.DEVICE_TYPE),
            shell=shell,
            timestamp=timestamp,
            uuid=(MA35 if media else text(fact, attributes.SHELL_UUID)[-UUID_END:]).lower(),
            device_id=f"0x{text(fact, attributes.DEVICE_ID)}",
            serial=text(fact, attributes.SERIAL),
        )


def own_name(card: Card, *, exact_u30_names: bool, aliases: Aliases | None) -> str | None:
    """After the domain; None: nothing that a resource can be called."""
    if U30_SHELL in card.shell and not exact_u30_names:
        return U30_COMMON
    fields = dict(zip(FIELDS, astuple(card), strict=True))
    usual = MA35 if card.shell == MA35 else f"{card.shell}-{card.timestamp}"
    alias = next((known for known in aliases.aliases if known.matches(card)), None) if aliases is not None else None
    made = "".join(fields.get(part, part[1:-1]) for part in alias.parts) if alias is not None else ""
    wanted = (made if len(made) <= MAX_ALIAS else "", usual)
    return next((name for name in wanted if NAME.fullmatch(name)), None)


def parse(raw: bytes) -> Aliases:
    """The file. Raises InputError with everything that is wrong."""
    problems, found = list[InputProblem](), list[Alias]()
    entries = load(raw, problems)
    if not isinstance(entries, dict):
        raise InputError(['give an object of keys and names, such as {"u250-*-*": "\'u250\'"}'])
    if len(entries) > MAX_ALIASES:
        raise InputError([f"{len(entries)} entries; give {MAX_ALIASES} at most"])
    for key, value in entries.items():
        found += _alias(key, value, problems)
    if problems:
        raise InputError(problems)
    return Aliases(tuple(sorted(found, key=lambda alias: (alias.device_type, alias.shell, alias.version).count(ANY))))


def _alias(key: str, value: object, problems: list[InputProblem]) -> list[Alias]:
    device_type, first, rest = key.partition("-")
    shell, second, version = rest.rpartition("-")
    before = len(problems)
    if not (first and second and device_type and shell and version) or len(key) > MAX_ALIAS_TEXT:
        right = "give <device type>-<shell>-<timestamp, or the last 6 characters of the UUID>, each of them or *"
        problems.append(InputProblem.at(show(key), right))
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ALIAS_TEXT:
        problems.append(InputProblem.at(show(key), f"{show(value)} is not a name; give one such as 'u250-'+timestamp"))
        return []
    parts = tuple(part.strip() for part in value.split("+"))
    problems += _wrong(key, parts)
    return [Alias(device_type, shell, version, parts)] if len(problems) == before else []


def _wrong(key: str, parts: Sequence[str]) -> list[InputProblem]:
    found = []
    for part in parts:
        if part not in FIELDS and _TEXT.fullmatch(part) is None:
            right = (
                f"no such field{nearest(part, FIELDS)}; fields are {', '.join(FIELDS)}, and texts have single quotes"
            )
            if "'" in part:
                right = "a text is letters, digits, and - _ . between single quotes"
            found.append(InputProblem.at(show(key), f"{show(part)}: {_UNFIT.get(part, right)}"))
    return found


# --- the vendor -------------------------------------------------------------------------------------------------------
GROUP = "FPGA"
MOUNTED_NAMES = "/opt/xilinx/device-plugin-configmap"  # where Xilinx' plugin has them
NEW_PREFIX, OLD_PREFIX = "amd.com/", "xilinx.com/fpga-"
COMMON, EXACT = "CommonName", "ExactName"
CARD, DEVICE = "Card", "Device"
VIRTUAL, VIRTUAL_COUNT, CUSTOMIZE = "VirtualDev", "VirtualNum", "DeviceNameCustomize"
MAX_SHARES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class XilinxSettings:
    """`names`: whether the file of names applies. `shares`: of each card; 0: it is offered whole. `management`: whether
    containers get management nodes."""

    decides_ids: ClassVar[bool] = True

    prefix: str = NEW_PREFIX
    exact_u30_names: bool = False
    names: bool = True
    shares: int = 0
    management: bool = False


def settings(values: Values) -> XilinxSettings:
    return XilinxSettings(
        prefix=values.text("fpga-resource-prefix"),
        exact_u30_names=_one_of(values, "u30-name-convention", COMMON, EXACT) == EXACT,
        names=_names(values),
        shares=_shares(values),
        management=values.truth("fpga-management-nodes"),
    )


def sections(values: Values) -> dict[str, Any]:
    """Device: the FPGAs of a U30 one by one, which is partitions.strategy."""
    if not values.said("u30-alloc-unit"):
        return {}
    unit = _one_of(values, "u30-alloc-unit", CARD, DEVICE)
    return {"partitions": {"strategy": "single" if unit == DEVICE else "none"}}


def _one_of(values: Values, name: str, *known: str) -> str:
    """Read a value in any case, as that plugin does. A value that it silently replaces by its default is refused."""
    said = values.text(name)
    found = next((value for value in known if value.lower() == said.lower()), None)
    if found is None:
        raise PlanError(values.options[name].place, said, f"give {' or '.join(known)}")
    return found


def _truth(values: Values, name: str) -> bool | None:
    said = str(values.given.get(name, "")).strip().lower()
    if said not in {"", "true", "false"}:
        raise PlanError(f"environment variable {name}", said, "give True or False")
    return None if not said else said == "true"


def _names(values: Values) -> bool:
    customize = _truth(values, CUSTOMIZE)
    if customize and not values.text(DEVICES_DIR):
        hint = f"it needs --{DEVICES_DIR}, a folder with {NAMES_FILE}, such as --{DEVICES_DIR}={MOUNTED_NAMES}"
        raise PlanError(f"environment variable {CUSTOMIZE}", "True", hint)
    return customize is not False


def _shares(values: Values) -> int:
    if not _truth(values, VIRTUAL):
        return 0
    said = str(values.given.get(VIRTUAL_COUNT, "")).strip() or "1"  # left out it is 1 there, too
    if not said.isascii() or not said.isdecimal() or not 1 <= int(said[:6]) <= MAX_SHARES:
        hint = f"{VIRTUAL}=True needs a number of shares for each card, from 1 to {MAX_SHARES}"
        raise PlanError(f"environment variable {VIRTUAL_COUNT}", said, hint)
    return int(said)


FLAGS = VendorFlags(
    group=GROUP,
    title=f"of Xilinx' cards, with {VIRTUAL}, {VIRTUAL_COUNT} and {CUSTOMIZE} of its device plugin",
    settings=settings,
    settings_type=XilinxSettings,
    sections=sections,
    options=(
        option(
            "fpga-resource-prefix",
            "prefix of [resource names](devices/fpga.md#what-is-offered-and-what-a-pod-writes) before "
            "`<shell>-<timestamp>`; xilinx.com/fpga-: as Xilinx' plugin before 2022",
            group=GROUP,
            default=NEW_PREFIX,
            choices=(NEW_PREFIX, OLD_PREFIX),
            flag=False,
        ),
        option(
            "u30-name-convention",
            f"{COMMON}: each U30 is amd.com/ama_u30; {EXACT}: named by shell, as other cards",
            group=GROUP,
            default=COMMON,
            variables=("U30NameConvention",),
            flag=False,
        ),
        option(
            "u30-alloc-unit",
            f"{CARD}: offer whole U30s; {DEVICE}: offer both FPGAs of each (partitions.strategy single)",
            group=GROUP,
            default=CARD,
            variables=("U30AllocUnit",),
            flag=False,
        ),
        option(
            "fpga-management-nodes",
            "also give containers their cards' management nodes (`/dev/xclmgmt<N>`), which can reset and program a "
            "card",
            group=GROUP,
            default=False,
        ),
    ),
    variables=(VIRTUAL, VIRTUAL_COUNT, CUSTOMIZE),
)


_MANAGEMENT = re.compile(r"/dev/xclmgmt[0-9]{1,10}")


class Xilinx(Vendor):
    name = VENDOR
    types = frozenset({attributes.FPGA, MEDIA})
    flags = FLAGS
    files = (DeviceFile(name=NAMES_FILE, type=Aliases, parse=parse),)

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Not a card without a shell: there is nothing that could run on it."""
        with_shell = (device for device in devices if NO_SHELL not in device.fact.readings.conditions)
        return [unit for device in with_shell for unit in whole_or_partitions(device, strategy)]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        own, card = value_of(naming.local, XilinxSettings), Card.from_fact(unit.device.fact)
        if card is None:
            return None
        aliases = content_of(naming.files, NAMES_FILE, Aliases) if own.names else None
        name = own_name(card, exact_u30_names=own.exact_u30_names, aliases=aliases)
        domain, _, before = own.prefix.partition("/")
        return f"{naming.prefix or domain}/{before}{name}" if name is not None else None

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """VirtualDev and VirtualNum."""
        count = value_of(naming.local, XilinxSettings).shares
        return VendorShares(counts=(count,) * len(units)) if count else None

    def containers(self, node: NodeView) -> DeviceNodes:
        devices = [device for device in node.inventory.devices if device.fact.vendor == VENDOR]
        usual = DeviceNodes.for_devices(devices)
        if not value_of(node.local, XilinxSettings).management:
            return usual
        more = {id_: found for device in devices for id_, found in _management_nodes(device.fact).items()}
        return DeviceNodes(nodes={id_: (*nodes, *more.get(id_, ())) for id_, nodes in usual.nodes.items()})

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        """Sources: XRT's firewall.c, and its documents on troubleshooting."""
        return (
            FaultCondition(
                reason="FirewallTripped",
                state=HealthState.UNHEALTHY,
                message="the card's AXI firewall has cut the FPGA off after an access that failed",
                evident=attributes.FIREWALL in readings.conditions,
                action="ResetDevice",
                ends_by_itself=True,
            ),
            node_missing(readings),
            FaultCondition(
                reason="NoShell",
                state=HealthState.DEGRADED,
                message="the card has only its golden image: program a shell (xbmgmt program --base), then reboot",
                evident=NO_SHELL in readings.conditions,
                action="Inspect",
                ends_by_itself=True,
            ),
            hot(readings),
        )


def _management_nodes(fact: DeviceFact) -> dict[str, tuple[str, ...]]:
    """Return the management nodes of a card and of its partitions, by id; only texts that look like a path to one,
    since the attribute is a text."""
    said = text(fact, attributes.MANAGEMENT_NODES).split(",")
    by_partition = {part.id: said[part.index : part.index + 1] for part in fact.partitions}
    return {
        id_: tuple(node for node in nodes if _MANAGEMENT.fullmatch(node))
        for id_, nodes in {fact.id: said, **by_partition}.items()
    }
