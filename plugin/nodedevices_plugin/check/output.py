"""A result as text: the table of `kubectl nodedevices`, a NodeDevices as JSON, or the output of a monitoring plugin.

The first line of table and plugin is the summary, at most 80 characters, as node-problem-detector cuts it
(`max_output_length`) and a pager shows it. What devices and drivers say of themselves has its control characters
escaped; in a plugin's output `|` begins the performance data, and is replaced elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter

from nodedevices_api import API_VERSION
from nodedevices_api.base import to_dict
from nodedevices_api.conditions import Condition
from nodedevices_api.conditions import Status as ConditionStatus
from nodedevices_common.table import Column, TableText
from nodedevices_common.text import printable

from nodedevices_plugin.check.result import Result, Status
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.status.facts import whole_second

TABLE = "table"
FORMS = (TABLE, "json", "nagios")
MOST_SUMMARY = 80
CHECK_PASSED = "CheckPassed"  # the condition that only a check has
_PASSED: dict[Status, ConditionStatus] = {Status.OK: "True", Status.UNKNOWN: "Unknown"}  # others: False
_HEADERS = ("NAME", "ID", "MODEL", "HEALTH", "REASON", "ACTION", "MESSAGE")
_COLUMNS = tuple(Column(header, header.lower()) for header in _HEADERS)


def shown(result: Result, form: str) -> str:
    """Return the whole output, with a newline at its end."""
    make = {"table": _table, "json": _json, "nagios": _nagios}[form]
    return make(result) + "\n"


def summary(result: Result) -> str:
    """Return the first line: the status, and as many findings as there is room for."""
    start = f"DEVICES {result.status.name} - "
    found = [printable(finding.what) for finding in result.findings]
    if not found:
        types = Counter(device.type for device in result.report.devices)
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
    messages = (printable(finding.message) for finding in result.findings if not finding.device)
    lines += [message for message in messages if message not in first]
    if result.rows:
        lines += ["", *TableText(_COLUMNS, colours=False, headers=True).lines(result.rows, result.time)]
    lines += ["", *(f"note: {printable(note)}" for note in result.notes)] if result.notes else []
    return "\n".join(lines)


def _json(result: Result) -> str:
    lines = _lines(result)
    passed = Condition(
        type=CHECK_PASSED,
        status=_PASSED.get(result.status, "False"),
        reason=result.status.name,
        message="; ".join(lines if result.findings else [summary(result), *lines]),
        last_transition_time=whole_second(result.time),
    )
    status = result.report.model_copy(update={"conditions": (*result.report.conditions, passed)})
    head = {"apiVersion": API_VERSION, "kind": "NodeDevices", "metadata": {"name": result.node}}
    return json.dumps({**head, "status": to_dict(status)}, indent=2)


def _nagios(result: Result) -> str:
    """Return the summary with performance data, then a line for each finding and note."""
    states = Counter(device.health.state for device in result.report.devices)
    data = [f"devices={states.total()};;;0", *(f"{state.lower()}={states[state.value]};;;0" for state in HealthState)]
    lines = [f"{_no_pipe(summary(result))} | {' '.join(data)}", *(_no_pipe(printable(line)) for line in _lines(result))]
    return "\n".join(lines)


def _lines(result: Result) -> list[str]:
    """Return a line for each finding and note."""
    return [*(finding.message for finding in result.findings), *(f"note: {note}" for note in result.notes)]


def _no_pipe(text: str) -> str:
    return text.replace("|", "/")
