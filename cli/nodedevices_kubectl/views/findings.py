"""Findings of `check`, the rows of its table: the status of a link, what is seen, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from nodedevices_common.raw import Raw, text
from nodedevices_common.table import Column, Kind, Row
from nodedevices_common.times import zoned_time

from nodedevices_kubectl.views import facts

OK, WARNING, PENDING, BROKEN, UNKNOWN = "ok", "warning", "pending", "broken", "unknown"
# The kubelet writes its Node every 10 s, an agent reports some seconds after its start, and clocks differ.
FOLLOWS = timedelta(minutes=1)
CLUSTER = "<cluster>"  # in the column NODE: of no node in particular

KIND = Kind(
    "Checks",
    "links of the chain",
    (
        Column("NODE", "node"),
        Column("LINK", "link"),
        Column("STATUS", "status", tone=facts.tone),
        Column("NEXT", "next", wide=True),
        Column("DETAIL", "detail"),
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    link: str
    status: str
    detail: str = ""
    next: str = ""


def rows(node: str, findings: Sequence[Finding]) -> list[Row]:
    return [
        Row(f"{node}/{finding.link}", {"node": node, **asdict(finding)}, key=f"{node}/{finding.link}")
        for finding in findings
    ]


def having(status: str, rows_: Sequence[Row]) -> list[Row]:
    return [row for row in rows_ if row.fields["status"] == status]


def about(condition: Raw) -> str:
    """Return a condition's reason and message."""
    message = text(condition.get("message"))
    return text(condition.get("reason")) + (f": {message}" if message else "")


def lately(time: object, now: datetime) -> bool:
    """True for less than a minute ago. A time to come is that of a clock that is ahead."""
    then = zoned_time(time)
    return then is not None and abs(now - then) <= FOLLOWS
