"""Times as Kubernetes writes them: RFC 3339, with a zone. One that cannot be read is None, and nothing raises."""

from __future__ import annotations

from datetime import UTC, datetime


def zoned_time(value: object) -> datetime | None:
    """None also for a time without a zone: no other time can be compared with it."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def rfc3339(time: datetime, *, microseconds: bool = False) -> str:
    """Return the time as Kubernetes writes it: in UTC with `Z`, to the second; or with six digits (MicroTime)."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if microseconds else "%Y-%m-%dT%H:%M:%SZ")


def seconds_between(start: object, end: object) -> float | None:
    """Negative where `end` comes first; None where one of them cannot be read."""
    first, last = zoned_time(start), zoned_time(end)
    return None if first is None or last is None else (last - first).total_seconds()
