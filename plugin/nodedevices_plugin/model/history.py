"""How often a health reason came on a device."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Ten days, by the number of such periods since 1970; `first`: when the reason came first within it."""

    number: int
    first: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the status says, and since when it does."""

    count: int
    first: datetime
    last: datetime
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """One reason on one device. `periods`: oldest first. `times`: the newest occurrences by themselves, oldest first,
    for rules that count them. `last`: the newest. `is_fault`: it has been a fault of the device, not only an error of a
    program."""

    reason: str
    periods: tuple[Period, ...]
    last: datetime
    shown: Shown
    times: tuple[datetime, ...] = ()
    is_fault: bool = False

    @property
    def count(self) -> int:
        return sum(each.count for each in self.periods)
