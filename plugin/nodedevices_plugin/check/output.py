"""A result as text: a table, JSON, or the output of a monitoring plugin.

The first line of table and plugin is the summary, at most 80 characters, as node-problem-detector cuts it
(`max_output_length`) and a pager shows it. What devices and drivers say of themselves has its control characters
escaped; in a plugin's output `|` begins the performance data, and is replaced elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nodedevices_common.text import printable
from nodedevices_common.times import rfc3339

from nodedevices_plugin.check.result import Checked, Result
from nodedevices_plugin.model import HealthState

TABLE = "table"
FORMS = (TABLE, "json", "nagios")
MOST_SUMMARY = 80
NONE = "<none>"
_GAP = "   "


def shown(result: Result, form: str) -> str:
    """Return the whole output, with a newline at its end."""
    make = {"table": _table, "json": _json, "nagios": _nagios}[form]
    return make(result) + "\n"


def summary(result: Result) -> str:
    """Return the first line: the status, and as many findings as there is room for."""
    start = f"DEVICES {result.status.name} - "
    found = [_plain(each.what) for each in result.findings]
    if not found:
        types = Counter(each.type for each in result.devices if not each.partition_of)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(types.items()))
        return _cut(f"{start}{sum(types.values())} healthy ({kinds})")
    for named in range(len(found), 0, -1):
        more = len(found) - named
        text = start + ", ".join(found[:named]) + (f" and {more} more" if more else "")
        if len(text) <= MOST_SUMMARY:
            return text
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SUMMARY else text[: MOST_SUMMARY - 3] + "..."


def _table(result: Result) -> str:
    lines = [first := summary(result)]
    lines += [said for each in result.findings if not each.device and (said := _plain(each.message)) not in first]
    if result.devices:
        head = ("NAME", "ID", "MODEL", "HEALTH", "REASON", "ACTION", "MESSAGE")
        rows = [head, *(_cells(each) for each in result.devices)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", *(_GAP.join(map(str.ljust, row, widths)).rstrip() for row in rows)]
    lines += ["", *(f"note: {_plain(each)}" for each in result.notes)] if result.notes else []
    return "\n".join(lines)


def _cells(row: Checked) -> tuple[str, ...]:
    verdict = row.verdict
    action = verdict.recovery_action if verdict.state is not HealthState.HEALTHY else ""
    cells = (row.name, row.id, row.product_name, verdict.state.value, verdict.reason, action, verdict.message)
    return tuple(_plain(each) or NONE for each in cells)


def _nagios(result: Result) -> str:
    """Return the summary with performance data, then a line for each finding and note."""
    more: Sequence[str] = [each.message for each in result.findings] + [f"note: {each}" for each in result.notes]
    states = Counter(each.verdict.state for each in result.devices if not each.partition_of)
    data = [f"devices={states.total()};;;0", *(f"{each.lower()}={states[each]};;;0" for each in HealthState)]
    lines = [f"{_no_pipe(summary(result))} | {' '.join(data)}", *(_no_pipe(_plain(each)) for each in more)]
    return "\n".join(lines)


def _no_pipe(text: str) -> str:
    return text.replace("|", "/")


def _plain(text: str) -> str:
    return printable(text)


def _json(result: Result) -> str:
    document: dict[str, Any] = {
        "kind": "NodeDevicesCheck",
        "version": 1,
        "status": result.status.name,
        "exitCode": int(result.status),
        "summary": summary(result),
        "node": result.node,
        "time": rfc3339(result.time),
        "findings": [
            {"status": each.status.name, "message": each.message, "device": each.device or None}
            for each in result.findings
        ],
        "devices": [_device(each) for each in result.devices],
        "expected": [
            {
                "match": each.what,
                "expected": each.expected,
                "found": each.found,
                "lost": len(each.lost),
                "remembered": each.remembered,
            }
            for each in result.expected
        ],
        "probes": [
            {
                "name": each.name,
                "driver": {"state": each.driver, "version": each.version} if each.driver else None,
                "problems": list(each.problems),
                "error": each.error or None,
            }
            for each in result.probes
        ],
        "notes": list(result.notes),
    }
    return json.dumps(document, indent=2)


def _device(row: Checked) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "name": row.name,
        "id": row.id,
        "type": row.type,
        "index": row.index,
        "vendor": row.vendor,
        "productName": row.product_name,
        "probe": row.probe,
        "partitionOf": row.partition_of or None,
        "status": row.status.name,
        "health": {
            "state": verdict.state.value,
            "reason": verdict.reason,
            "message": verdict.message,
            "recoveryAction": verdict.recovery_action,
            "since": rfc3339(verdict.since),
            "xid": verdict.xid,
        },
    }
