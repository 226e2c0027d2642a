"""The rows of docs/catalogue.md, from tests/health_validation.yaml: others' catalogues of faults, held against ours.

A file that is none is refused with the field and its value. Whether a row says what the code does is not judged here
but in tests/unit/test_catalogue_page.py, by `our_meaning` and `says_the_same`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml
from nodedevices_plugin.health.actions import ADVICE, NO_ACTION
from nodedevices_plugin.vendors.faults import CODED, Effect, Meaning
from nodedevices_plugin.vendors.nvidia import faults
from nodedevices_plugin.vendors.nvidia.xids import CATALOGUE

SOURCE = Path(__file__).resolve().parents[1] / "health_validation.yaml"
SAME, DIFFERENT, NOT_OURS = "same", "different", "not ours"
NOT_READABLE = "*not readable*"

# The effects of ours that a severity of theirs stands for.
SEVERITIES: Mapping[str, tuple[Effect, ...]] = {
    "CRITICAL": (Effect.UNHEALTHY,),
    "WARNING": (Effect.DEGRADED,),
    "INFO": (Effect.COUNTED, Effect.NOTICE),
}
STEPS = {"reset_gpu": "ResetDevice", "restart_os": "RebootNode", "service_required": "Replace"}


class CatalogueError(Exception):
    """The file is not a catalogue: which field, and what is wrong with its value."""


@dataclass(frozen=True, kw_only=True)
class Check:
    HEAD: ClassVar[tuple[str, ...]] = ("check", "fails when", "severity", "then", "ours", "why")

    id: str
    domain: str
    ours: str
    severity: str | None = None
    drain: bool | None = None
    ladder: tuple[str, ...] | None = None
    limits: str | None = None
    xid: int | None = None
    state: Effect | None = None
    action: str | None = None
    reason: str | None = None
    why: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        steps = NOT_READABLE if self.ladder is None else " → ".join(f"`{step}`" for step in self.ladder)
        then = NOT_READABLE if self.drain is None else f"{'drain' if self.drain else 'no drain'}: {steps}"
        found = f"XID {self.xid}" if self.xid is not None else self.limits or NOT_READABLE
        return f"`{self.id}`", found, self.severity or NOT_READABLE, then, self._ours, self.why

    @property
    def _ours(self) -> str:
        if self.xid is not None:
            return f"{self.ours}: {shown(self.xid)}"
        return f"{self.ours}: `{self.reason}`" if self.reason else self.ours


@dataclass(frozen=True, kw_only=True)
class Domain:
    HEAD: ClassVar[tuple[str, ...]] = ("domain", "checks", "readable", "same", "different", "not ours")

    name: str
    checks: int
    readable: tuple[Check, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        answers = [each.ours for each in self.readable]
        counts = (len(answers), *(answers.count(answer) for answer in (SAME, DIFFERENT, NOT_OURS)))
        return self.name, str(self.checks), *map(str, counts)


@dataclass(frozen=True, kw_only=True)
class FatalXid:
    HEAD: ClassVar[tuple[str, ...]] = ("XID", "what it is", "EKS", "ours", "why")

    xid: int
    fatal: bool
    why: str

    @property
    def differs(self) -> bool:
        return self.fatal is not (our_meaning(self.xid).effect is Effect.UNHEALTHY)

    @property
    def cells(self) -> tuple[str, ...]:
        theirs = "fatal" if self.fatal else "warning"
        return str(self.xid), CATALOGUE[self.xid].meaning, theirs, shown(self.xid), self.why


def our_meaning(xid: int) -> Meaning:
    """Return what the agent's own code makes of an XID of the catalogue."""
    found = faults.event(CODED, xid)
    if found is None:
        raise CatalogueError(f"xid: {xid} has no meaning")
    return found


def shown(xid: int) -> str:
    """Return our state and action for an XID; of one that waits for its neighbours, what it is without any."""
    meaning = our_meaning(xid)
    if meaning.effect is not Effect.UNDECIDED:
        return f"{meaning.effect}, {meaning.action}" if meaning.action != NO_ACTION else str(meaning.effect)
    alone = faults.decide(xid, (xid,), None)
    return f"Undecided, alone {alone.value if alone else 'no fault'}, {meaning.action}"


def says_the_same(check: Check) -> bool:
    """True when the code agrees with their check of one XID: the state at once, and the first step of repair where it
    can be read."""
    if check.xid is None or check.severity is None:
        return False
    meaning = our_meaning(check.xid)
    step = None if not check.ladder else STEPS[check.ladder[0]]
    return meaning.effect in SEVERITIES[check.severity] and step in {None, meaning.action}


def _refuse(where: str, value: object, right: str) -> CatalogueError:
    return CatalogueError(f"{where}: {value!r} is not allowed; {right}")


def _one_of(where: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise _refuse(where, value, f"give {', '.join(allowed)}")


def _keys(where: str, value: object, known: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(where, value, "give a mapping")
    for key in value:
        _one_of(f"{where}: key", key, known)
    for key in needed:
        if key not in value:
            raise CatalogueError(f"{where}.{key}: is missing")
    return value


def _a(where: str, value: object, kind: type, right: str) -> Any:
    if not isinstance(value, kind):
        raise _refuse(where, value, right)
    return value


def _known_xid(where: str, value: object) -> int:
    if not isinstance(value, int) or value not in CATALOGUE:
        raise _refuse(where, value, "give a number of NVIDIA's catalogue (xids.py)")
    return value


def _check(where: str, entry: object, domains: Sequence[str]) -> Check:
    read = dict(_keys(where, entry, [each.name for each in fields(Check)], ("id", "domain", "ours")))
    for key, allowed in (
        ("domain", domains),
        ("severity", list(SEVERITIES)),
        ("ours", [SAME, DIFFERENT, NOT_OURS]),
        ("state", [each.value for each in Effect]),
        ("action", list(ADVICE)),
    ):
        if key in read:
            _one_of(f"{where}.{key}", read[key], allowed)
    for key in ("id", "limits", "reason", "why"):
        _a(f"{where}.{key}", read.get(key, ""), str, "give text")
    _a(f"{where}.drain", read.get("drain", True), bool, "give true or false")
    for step in _a(f"{where}.ladder", read.get("ladder", []), list, "give a list"):
        _one_of(f"{where}.ladder", step, list(STEPS))
    if "xid" in read:
        _known_xid(f"{where}.xid", read["xid"])
        _keys(where, entry, list(read), ("state", "action"))
        read["state"] = Effect(read["state"])
    if "ladder" in read:
        read["ladder"] = tuple(read["ladder"])
    if bool(read.get("why")) is (read["ours"] == SAME):
        raise _refuse(f"{where}.why", read.get("why"), "give a reason for what is not the same, and for that alone")
    if read["ours"] == SAME and "xid" not in read:
        raise _refuse(f"{where}.ours", SAME, "only of an XID it can be shown")
    return Check(**read)


def parse(text: str) -> tuple[tuple[Domain, ...], tuple[Check, ...], tuple[FatalXid, ...]]:
    """Return what the file says. Raises CatalogueError with the field and its value."""
    try:
        root = _keys("the file", yaml.safe_load(text), ("domains", "checks", "eks"), ("domains", "checks", "eks"))
    except yaml.YAMLError as error:
        raise CatalogueError(f"the file is not YAML: {error}") from error
    domains: Mapping[str, int] = _a("domains", root["domains"], dict, "give a mapping")
    entries = _a("checks", root["checks"], list, "give a list")
    checks = tuple(_check(f"checks[{number}]", each, list(domains)) for number, each in enumerate(entries))
    for key in ("id", "xid"):
        seen: set[object] = set()
        for number, check in enumerate(checks):
            value = getattr(check, key)
            if value is not None and value in seen:
                raise _refuse(f"checks[{number}].{key}", value, "it is there twice")
            seen.add(value)
    found = {name: tuple(each for each in checks if each.domain == name) for name in domains}
    for name, count in domains.items():
        if not isinstance(count, int) or count < len(found[name]):
            raise _refuse(f"domains.{name}", count, f"{len(found[name])} of its checks are listed")
    rows = tuple(Domain(name=name, checks=count, readable=found[name]) for name, count in domains.items())
    return rows, checks, _fatal(root["eks"])


def _fatal(entry: object) -> tuple[FatalXid, ...]:
    read = _keys("eks", entry, ("fatal", "why"), ("fatal", "why"))
    fatal = [_known_xid("eks.fatal", each) for each in _a("eks.fatal", read["fatal"], list, "give a list")]
    for number, xid in enumerate(fatal):
        if xid in fatal[:number]:
            raise _refuse("eks.fatal", xid, "it is there twice")
    texts = _a("eks.why", read["why"], dict, "give a mapping")
    why = {_known_xid("eks.why", xid): _a(f"eks.why.{xid}", text, str, "give text") for xid, text in texts.items()}
    ours = {xid for xid in CATALOGUE if our_meaning(xid).effect is Effect.UNHEALTHY}
    listed = sorted({*fatal, *ours, *why})
    return tuple(FatalXid(xid=xid, fatal=xid in fatal, why=why.get(xid, "")) for xid in listed)


DOMAINS, CHECKS, EKS = parse(SOURCE.read_text(encoding="utf-8"))
