"""Times as people read them: `5d3h`, as kubectl writes ages (apimachinery's duration.HumanDuration).

Times that people give: `2h`, `90m`, `3d`, or a time.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any

from nodedevices_common.raw import Raw, text
from nodedevices_common.table import NONE
from nodedevices_common.times import rfc3339, zoned_time

UNKNOWN = "<unknown>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY


# Up to how many seconds an age is shown by which units: the larger, and the smaller where it matters.
_FORMS: tuple[tuple[float, int, int, str], ...] = (
    (2 * _MINUTE, 1, 1, "s"),
    (10 * _MINUTE, _MINUTE, 1, "ms"),
    (3 * _HOUR, _MINUTE, _MINUTE, "m"),
    (8 * _HOUR, _HOUR, _MINUTE, "hm"),
    (2 * _DAY, _HOUR, _HOUR, "h"),
    (8 * _DAY, _DAY, _HOUR, "dh"),
    (2 * _YEAR, _DAY, _DAY, "d"),
    (8 * _YEAR, _YEAR, _DAY, "yd"),
    (math.inf, _YEAR, _YEAR, "y"),
)


def duration(seconds: int) -> str:
    """Return two units at most, the smaller one only where it matters."""
    if seconds < 0:
        return "0s" if seconds >= -2 else "<invalid>"
    large, small, letters = next((large, small, letters) for end, large, small, letters in _FORMS if seconds < end)
    rest = seconds % large // small
    return f"{seconds // large}{letters[0]}" + (f"{rest}{letters[1]}" if rest else "")


def age(since: Any, now: datetime) -> str:
    """Return how long ago a time of an object was."""
    if not since:
        return NONE
    time = zoned_time(since)
    return UNKNOWN if time is None else duration(int((now - time).total_seconds()))


def reported(agent: Raw, now: datetime) -> str:
    """Return the agent's version, and when it was last heard of."""
    return f"{text(agent.get('version'))}, last heartbeat {age(agent.get('heartbeatTime'), now)} ago"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,6})([smhdw])")
RIGHT = "give a time with a zone, such as 2026-12-01T08:00:00Z, or a duration from now, such as 90m, 8h or 3d"


def moment(given: str, now: datetime) -> str:
    """Return the time as Kubernetes writes it. ValueError, with what would be right, for what is none or is past."""
    found = _DURATION.fullmatch(given)
    if found is not None:
        try:
            time = now + timedelta(seconds=int(found[1]) * _UNITS[found[2]])
        except OverflowError as error:
            raise ValueError(f"{given!r} is too long; {RIGHT}") from error
    else:
        known = zoned_time(given)
        if known is None:
            raise ValueError(f"{given!r} is not a time; {RIGHT}")
        time = known
    if time <= now:
        raise ValueError(f"{given!r} is past; {RIGHT}")
    return rfc3339(time)
