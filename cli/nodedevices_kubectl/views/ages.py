"""Times as people read them: `5d3h`, as kubectl writes ages (apimachinery's duration.HumanDuration).

Times that people give: `2h`, `90m`, `3d`, or a time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from nodedevices_common.raw import Raw, text
from nodedevices_common.table import NONE
from nodedevices_common.times import rfc3339, zoned_time

UNKNOWN = "<unknown>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY


def _pair(seconds: int, large: int, small: int, letters: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{letters[0]}" + (f"{rest}{letters[1]}" if rest else "")


def duration(seconds: int) -> str:
    """Return two units at most, the smaller one only where it matters."""
    if seconds < 0:
        return "0s" if seconds >= -2 else "<invalid>"
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 10 * _MINUTE:
        return _pair(seconds, _MINUTE, 1, "ms")
    if seconds < 3 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 8 * _HOUR:
        return _pair(seconds, _HOUR, _MINUTE, "hm")
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    if seconds < 8 * _DAY:
        return _pair(seconds, _DAY, _HOUR, "dh")
    if seconds < 2 * _YEAR:
        return f"{seconds // _DAY}d"
    if seconds < 8 * _YEAR:
        return _pair(seconds, _YEAR, _DAY, "yd")
    return f"{seconds // _YEAR}y"


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
