"""What cards are offered as: by their shell and its timestamp, or as NameCustomize.json says.

The file is that of Xilinx' device plugin: `{"u250-*-1623351600": "'u250-'+timestamp"}`. A key is a device type, a shell
and a timestamp, or the last six characters of the shell's UUID, with dashes between; `*` is any. A value is made of
texts in single quotes and fields, with `+` between. Of several keys that match, the one with the fewest `*` applies,
then the first (there: any). It is read strictly: what that plugin would make nothing of is refused, with its key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct
from nodedevices_common.errors import InputError, InputProblem
from nodedevices_common.text import nearest, show
from nodedevices_probe.fpga import DEVICE_ID, DEVICE_TYPE, MEDIA, SERIAL, SHELL, SHELL_UUID, TIMESTAMP
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.vendors.base import text
from nodedevices_plugin.vendors.plugin_files import load

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

    @property
    def anything(self) -> int:
        """The number of its parts that match anything."""
        return (self.device_type, self.shell, self.version).count(ANY)


@dataclass(frozen=True, slots=True)
class Aliases:
    """The content of the file, the most exact first."""

    aliases: tuple[Alias, ...] = ()


class Card(Struct, frozen=True, kw_only=True):
    """A card by that plugin's names. `uuid`: its end, in small letters."""

    device_type: str
    shell: str
    timestamp: str
    uuid: str
    device_id: str
    serial: str

    @classmethod
    def from_fact(cls, fact: DeviceFact) -> Card | None:
        """None: its shell is not known."""
        if fact.type == MEDIA:
            return cls(
                device_type=MA35,
                shell=MA35,
                timestamp="0",
                uuid=MA35.lower(),
                device_id=f"0x{text(fact, DEVICE_ID)}",
                serial=text(fact, SERIAL),
            )
        shell, timestamp = text(fact, SHELL), text(fact, TIMESTAMP)
        if not shell or not timestamp:
            return None
        return cls(
            device_type=text(fact, DEVICE_TYPE),
            shell=shell,
            timestamp=timestamp,
            uuid=text(fact, SHELL_UUID)[-UUID_END:].lower(),
            device_id=f"0x{text(fact, DEVICE_ID)}",
            serial=text(fact, SERIAL),
        )

    @property
    def is_u30(self) -> bool:
        return U30_SHELL in self.shell

    @property
    def usual(self) -> str:
        return MA35 if self.shell == MA35 else f"{self.shell}-{self.timestamp}"

    def part(self, part: str) -> str:
        if part.startswith("'"):
            return part[1:-1]
        return dict(
            zip(
                FIELDS,
                (self.device_type, self.shell, self.timestamp, self.uuid, self.device_id, self.serial),
                strict=True,
            )
        )[part]


def own_name(card: Card, *, exact_u30_names: bool, aliases: Aliases | None) -> str | None:
    """After the domain; None: nothing that a resource can be called."""
    if card.is_u30 and not exact_u30_names:
        return U30_COMMON
    alias = next((known for known in aliases.aliases if known.matches(card)), None) if aliases is not None else None
    made = "".join(card.part(part) for part in alias.parts) if alias is not None else ""
    wanted = (made if len(made) <= MAX_ALIAS else "", card.usual)
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
        if (alias := _alias(key, value, problems)) is not None:
            found.append(alias)
    if problems:
        raise InputError(problems)
    return Aliases(tuple(sorted(found, key=lambda alias: alias.anything)))


def _alias(key: str, value: object, problems: list[InputProblem]) -> Alias | None:
    device_type, first, rest = key.partition("-")
    shell, second, version = rest.rpartition("-")
    before = len(problems)
    if not (first and second and device_type and shell and version) or len(key) > MAX_ALIAS_TEXT:
        right = "give <device type>-<shell>-<timestamp, or the last 6 characters of the UUID>, each of them or *"
        problems.append(InputProblem.at(show(key), right))
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ALIAS_TEXT:
        problems.append(InputProblem.at(show(key), f"{show(value)} is not a name; give one such as 'u250-'+timestamp"))
        return None
    parts = tuple(part.strip() for part in value.split("+"))
    problems += _wrong(key, parts)
    return Alias(device_type, shell, version, parts) if len(problems) == before else None


def _wrong(key: str, parts: Sequence[str]) -> list[InputProblem]:
    found = []
    for part in parts:
        if part in FIELDS or _TEXT.fullmatch(part):
            continue
        if part in _UNFIT:
            right = _UNFIT[part]
        elif "'" in part:
            right = "a text is letters, digits, and - _ . between single quotes"
        else:
            right = (
                f"no such field{nearest(part, FIELDS)}; fields are {', '.join(FIELDS)}, and texts have single quotes"
            )
        found.append(InputProblem.at(show(key), f"{show(part)}: {right}"))
    return found
