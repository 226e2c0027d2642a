"""Times that people give: `2h`, `90m`, `3d`, or a time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from nodedevices_common.times import rfc3339, zoned_time

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
            raise ValueError(f"{given!r} is no time; {RIGHT}")
        time = known
    if time <= now:
        raise ValueError(f"{given!r} is past; {RIGHT}")
    return rfc3339(time)
