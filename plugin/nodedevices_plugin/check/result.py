"""The outcome of a check: the node's report, what of it is not as it should be, and the status that follows from it.

The report is the status of a NodeDevices, made of the same facts by the agent's own function. A device's state is its
status: Unhealthy is CRITICAL, Degraded WARNING, Unknown UNKNOWN. While a fault is undecided, and the agent gives the
device to no new pod, it is UNKNOWN. What is lacking is CRITICAL, and what could not be learned UNKNOWN; that the
kernel's log was not read, or that no driver has an accelerator of the PCI bus, is a WARNING. Of several the worst
counts, in the order CRITICAL, UNKNOWN, WARNING: what is not known may be a fault that makes a device unusable, and a
warning never is.

As text it is the table of `kubectl nodedevices`, a NodeDevices as JSON, or the output of a monitoring plugin. The first
line of table and plugin is the summary, at most 80 characters, as node-problem-detector cuts it (`max_output_length`)
and a pager shows it. What devices and drivers say of themselves has its control characters escaped; in a plugin's
output `|` begins the performance data, and is replaced elsewhere.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum

from msgspec import Struct
from nodedevices_api import API_VERSION, nodedevices as api
from nodedevices_api.base import to_dict
from nodedevices_api.conditions import DEVICES_HEALTHY, EXPECTED_DEVICES, READY, Status as ConditionStatus
from nodedevices_api.meta import Condition
from nodedevices_common.table import Column, Row, TableText
from nodedevices_common.text import printable, some
from nodedevices_probe.node.sysfs import DRIVER_UNBOUND
from nodedevices_probe.protocol import DriverState
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.check.reading import Reading
from nodedevices_plugin.model import HealthState, Inventory, InventoryDevice, Verdict, device_names
from nodedevices_plugin.pipeline import probe_set
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.settings.probes import lists_devices
from nodedevices_plugin.status.conditions import lacking_devices, no_driver, numbers
from nodedevices_plugin.status.devices import physical
from nodedevices_plugin.status.facts import whole_second
from nodedevices_plugin.status.report import report

GPU = "gpu"  # the type that a bare index is about: SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES have such
MOST_NAMED = 16
MOST_INDICES = 256  # of a range
_RANGE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})", re.ASCII)
_NOT_COUNTED = "expect: not counted with --device, which checks only some devices"
_NOT_ON_BUS_COUNT = frozenset({"nic", "vf", "generic"})  # accelerators_on_bus does not count them


class Status(IntEnum):
    """Values are the exit status of a monitoring plugin (monitoring-plugins.org, guidelines)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_RANKED = (Status.OK, Status.WARNING, Status.UNKNOWN, Status.CRITICAL)
_OF_STATE = {
    HealthState.HEALTHY: Status.OK,
    HealthState.DEGRADED: Status.WARNING,
    HealthState.UNHEALTHY: Status.CRITICAL,
    HealthState.UNKNOWN: Status.UNKNOWN,
}


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be. `what`: in a few words; `device`: the name of the one that it is about."""

    status: Status
    what: str
    message: str
    device: str = ""


class Result(Struct, frozen=True, kw_only=True):
    """The findings are ordered, the worst first. `rows`: a row of the table for each device, and for each partition
    with a fault of its own."""

    node: str
    time: datetime
    findings: tuple[Finding, ...] = ()
    rows: tuple[Row, ...] = ()
    report: api.NodeDevicesStatus = api.NodeDevicesStatus()
    notes: tuple[str, ...] = ()  # for people; they change no status

    @property
    def status(self) -> Status:
        return max((finding.status for finding in self.findings), key=_RANKED.index, default=Status.OK)


def not_checked(problems: Sequence[str], *, node: str, time: datetime) -> Result:
    """Return the result where nothing could be checked."""
    findings = tuple(Finding(status=Status.UNKNOWN, what=problem, message=problem) for problem in problems)
    return Result(node=node, time=time, findings=findings)


def conclude(reading: Reading, *, chosen: Sequence[str], problems: Sequence[str], node: str, time: datetime) -> Result:
    """Return the result of a reading.

    Args:
        chosen: the devices to which the check is limited, as a person wrote them; none: all.
        problems: what could not be read beside the probes.
    """
    facts = reading.facts
    parts = {probe.name: probe.inventory for probe in facts.probes}
    names = device_names(facts.inventory)
    every = [device for part in parts.values() for device in part.devices]
    kept, findings = every, [Finding(status=Status.UNKNOWN, what=problem, message=problem) for problem in problems]
    if chosen:
        silent = any(lists_devices(name) for name in reading.silent)
        kept, not_found = _chosen(chosen, every, names, known_all=not silent and not problems)
        findings += not_found
    wrong_here = bool(findings)  # which may be why a device is not there
    judged = [(device, id_, facts.verdicts[id_]) for device in kept for id_ in _judged(device, facts.verdicts)]
    of_devices = (_of_device(names[id_], id_, verdict) for _, id_, verdict in judged)
    findings += [finding for finding in of_devices if finding.status is not Status.OK]
    of_probes = _of_probes(reading, parts, devices=bool(every))
    if not chosen or wrong_here:
        findings += [*of_probes.values(), *_without_driver(parts)]
    findings += (
        []
        if chosen
        else [_of_count(count, _counted(device.fact.type for device in every)) for count in lacking_devices(facts)]
    )
    whole, called = report(facts), {names[device.fact.id] for device in kept}
    return Result(
        node=node,
        time=time,
        findings=tuple(sorted(findings, key=lambda finding: -_RANKED.index(finding.status))),
        rows=tuple(_row(names[id_], id_, device.fact.product_name, verdict) for device, id_, verdict in judged),
        report=whole.model_copy(
            update={
                "agent": None,
                "summary": None if chosen else whole.summary,
                "devices": tuple(device for device in whole.devices if (device.parent or device.name) in called),
                "conditions": tuple(
                    condition for condition in whole.conditions if _is_known(condition, all_devices=not chosen)
                ),
            }
        ),
        notes=(
            *_notes({name: part for name, part in parts.items() if name not in of_probes}),
            *([_NOT_COUNTED] if chosen and reading.expects else []),
            *(unmatched.text for unmatched in facts.config.unmatched),
        ),
    )


def _is_known(condition: Condition, *, all_devices: bool) -> bool:
    """True for a condition that says nothing of the kubelet, and of no device that was not chosen."""
    if condition.type == READY:
        return condition.status == "False"
    return all_devices and condition.type in {DEVICES_HEALTHY, EXPECTED_DEVICES}


def _judged(device: InventoryDevice, verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return the id of a device, and those of its partitions with a fault of their own."""
    return [device.fact.id, *(part.id for part in device.fact.partitions if part.id in verdicts)]


def _status(verdict: Verdict) -> Status:
    undecided = verdict.state is HealthState.DEGRADED and not verdict.offered
    return Status.UNKNOWN if undecided else _OF_STATE[verdict.state]


def _row(name: str, id_: str, model: str, verdict: Verdict) -> Row:
    fields = {
        "name": name,
        "id": id_,
        "model": model,
        "health": verdict.state.value,
        "reason": verdict.reason,
        "action": verdict.recovery_action if verdict.state is not HealthState.HEALTHY else "",
        "message": verdict.message,
    }
    return Row(name, fields)


def _chosen(
    chosen: Sequence[str], every: Sequence[InventoryDevice], names: Mapping[str, str], *, known_all: bool
) -> tuple[list[InventoryDevice], list[Finding]]:
    """Return the devices that were chosen, each once, and what of the choice is none of them. A partition stands for
    its device. `known_all`: every probe that may have devices has said which; else it is not known what is lacking."""
    found: dict[str, InventoryDevice] = {}
    findings = []
    texts = [name for text in chosen for name in ([text] if text in names.values() else _indices(text))]
    for text in dict.fromkeys(texts):
        fits = [device for device in every if _is_called(device, text, names)]
        if len(fits) > 1:  # an index that a missing device had may be another one's now
            fits = [fit for fit in fits if fit.present] or fits
        if len(fits) == 1:
            found[fits[0].fact.id] = fits[0]
            continue
        listed = some((names[fit.fact.id] for fit in fits or every), MOST_NAMED) or "none"
        why = f"several have this index: {listed}; give an id or a name" if fits else f"there are: {listed}"
        what = f"device {text}"
        status = Status.CRITICAL if known_all and not fits else Status.UNKNOWN
        findings.append(Finding(status=status, what=f"no {what}", message=f"--device {text}: {why}"))
    return list(found.values()), findings


def _indices(text: str) -> Sequence[str]:
    """Return the indices of a range, as Slurm writes it: `0-2`; another text as it is."""
    range_ = _RANGE.fullmatch(text)
    if range_ is None or not 0 <= int(range_[2]) - int(range_[1]) < MOST_INDICES:
        return [text]
    return [str(index) for index in range(int(range_[1]), int(range_[2]) + 1)]


def _is_called(device: InventoryDevice, text: str, names: Mapping[str, str]) -> bool:
    fact = device.fact
    is_index = fact.type == GPU and text == str(fact.index)
    return is_index or text in device.ids or text in [names[id_] for id_ in device.ids]


def _of_device(name: str, id_: str, verdict: Verdict) -> Finding:
    message = f"{id_}: {verdict.state}: {verdict.reason}: {verdict.message}"
    return Finding(status=_status(verdict), what=f"{name} {verdict.reason}", message=message, device=name)


def _of_count(count: Count, here: str) -> Finding:
    """`here`: the devices that there are, by type."""
    others = "" if count.found or count.lost else f"; here are: {here or 'none'}"
    return Finding(
        status=Status.CRITICAL,
        what=f"{count.found} of {count.expected} ({count.what})",
        message=f"{numbers([count])}{others}; inspect the node",
    )


def _counted(types: Iterable[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(types).items()))


def _of_probes(reading: Reading, parts: Mapping[str, Inventory], *, devices: bool) -> dict[str, Finding]:
    """Return by name which probes know nothing. One without its driver is no fault where nothing is there for it and
    another has devices: the agent's own rule (status.conditions)."""
    found: dict[str, Finding] = {}
    needed = probe_set.needed(parts)

    def wrong(name: str, what: str, why: str) -> None:
        message = f"probe {name}: {why}"
        status = Status.UNKNOWN if name in needed else Status.WARNING
        found.setdefault(name, Finding(status=status, what=f"probe {name}: {what}", message=message))

    for name, why in reading.silent.items():
        advice = f"; try nodedevices-probe {name} --once" if name in KINDS and KINDS[name].automatic else ""
        wrong(name, "no line", why + advice)
    for name, part in parts.items():
        loaded = part.driver is not None and part.driver.state is DriverState.LOADED
        if not loaded and (not devices or part.devices or part.accelerators_on_bus):
            wrong(name, "no driver", no_driver(part))
    for name, why in reading.facts.world.lost.items():
        wrong(name, "sees no device", why)
    if not devices and not found:
        for name in parts:
            wrong(name, "no device", "it lists no device")
    return found


def _without_driver(parts: Mapping[str, Inventory]) -> list[Finding]:
    """Return which accelerators never came up, or were unbound."""
    return [
        Finding(status=Status.WARNING, what=f"probe {name}: {problem.code}", message=f"probe {name}: {problem.message}")
        for name, part in parts.items()
        for problem in part.problems
        if problem.code == DRIVER_UNBOUND
    ]


def _notes(parts: Mapping[str, Inventory]) -> tuple[str, ...]:
    notes = []
    for name, part in parts.items():
        problems = (problem for problem in part.problems if problem.code != DRIVER_UNBOUND)
        notes += [f"probe {name}: {problem.code}: {problem.message}" for problem in problems]
        here = sum(device.present and device.fact.type not in _NOT_ON_BUS_COUNT for device in part.devices)
        if 0 < here < part.accelerators_on_bus:
            notes.append(
                f"probe {name}: {part.accelerators_on_bus} accelerators on the PCI bus, its driver lists {here}; "
                "--expect makes that CRITICAL"
            )
    return tuple(notes)


# --- as text ---------------------------------------------------------------------------------------------------------
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
        types = [device.type for device in physical(result.report.devices)]
        return _cut(f"{start}{len(types)} healthy ({_counted(types)})")
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
    states = Counter(device.health.state for device in physical(result.report.devices))
    data = [f"devices={states.total()};;;0", *(f"{state.lower()}={states[state.value]};;;0" for state in HealthState)]
    lines = [f"{_no_pipe(summary(result))} | {' '.join(data)}", *(_no_pipe(printable(line)) for line in _lines(result))]
    return "\n".join(lines)


def _lines(result: Result) -> list[str]:
    """Return a line for each finding and note."""
    return [*(finding.message for finding in result.findings), *(f"note: {note}" for note in result.notes)]


def _no_pipe(text: str) -> str:
    return text.replace("|", "/")
