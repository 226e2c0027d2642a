"""The rows of docs/catalogue.md, from tests/health_validation.yaml: others' catalogues of faults, held against ours.

Whether a row says what the code does is not judged here but in tests/unit/test_catalogue_page.py, by `our_meaning` and
`says_the_same`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import yaml
from nodedevices_plugin.health.rules import NO_ACTION
from nodedevices_plugin.vendors.faults import CODED, Effect, Meaning
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from nodedevices_plugin.vendors.nvidia.xids import CATALOGUE
from pydantic import AfterValidator, BaseModel, ConfigDict

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


def _known(xid: int) -> int:
    if xid not in CATALOGUE:
        raise ValueError("not a number of NVIDIA's catalogue (xids.py)")
    return xid


KnownXid = Annotated[int, AfterValidator(_known)]


class Check(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    HEAD: ClassVar[tuple[str, ...]] = ("check", "fails when", "severity", "then", "ours", "why")

    id: str
    domain: str
    ours: Literal["same", "different", "not ours"]
    severity: Literal["CRITICAL", "WARNING", "INFO"] | None = None
    drain: bool | None = None
    ladder: tuple[Literal["reset_gpu", "restart_os", "service_required"], ...] | None = None
    limits: str | None = None
    xid: KnownXid | None = None
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
        answers: list[str] = [each.ours for each in self.readable]
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
    found = Nvidia().event(CODED, xid)
    assert found is not None, xid
    return found


def shown(xid: int) -> str:
    """Return our state and action for an XID; of one that waits for its neighbours, what it is without any."""
    meaning = our_meaning(xid)
    if meaning.effect is not Effect.UNDECIDED:
        return f"{meaning.effect}, {meaning.action}" if meaning.action != NO_ACTION else str(meaning.effect)
    alone = Nvidia().decide(xid, (xid,), None)
    return f"Undecided, alone {alone.value if alone else 'no fault'}, {meaning.action}"


def says_the_same(check: Check) -> bool:
    """True when the code agrees with their check of one XID: the state at once, and the first step of repair where it
    can be read."""
    if check.xid is None or check.severity is None:
        return False
    meaning = our_meaning(check.xid)
    step = None if not check.ladder else STEPS[check.ladder[0]]
    return meaning.effect in SEVERITIES[check.severity] and step in {None, meaning.action}


class _Eks(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    fatal: tuple[KnownXid, ...]
    why: Mapping[KnownXid, str]


class _Catalogue(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domains: Mapping[str, int]
    checks: tuple[Check, ...]
    eks: _Eks


def read(text: str) -> tuple[tuple[Domain, ...], tuple[Check, ...], tuple[FatalXid, ...]]:
    """Return what the file says. ValidationError: it is no catalogue."""
    file = _Catalogue.model_validate(yaml.safe_load(text))
    rows = tuple(
        Domain(name=name, checks=count, readable=tuple(each for each in file.checks if each.domain == name))
        for name, count in file.domains.items()
    )
    ours = {xid for xid in CATALOGUE if our_meaning(xid).effect is Effect.UNHEALTHY}
    listed = sorted({*file.eks.fatal, *ours, *file.eks.why})
    fatal = tuple(FatalXid(xid=xid, fatal=xid in file.eks.fatal, why=file.eks.why.get(xid, "")) for xid in listed)
    return rows, file.checks, fatal


DOMAINS, CHECKS, EKS = read(SOURCE.read_text(encoding="utf-8"))
EKS_DIFFERENT = tuple(row for row in EKS if row.differs)  # what the page shows
