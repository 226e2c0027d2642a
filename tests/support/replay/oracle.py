"""What has to be shown of a node, from what is wrong with it in truth; and every difference to what is shown.

It knows injuries (hardware.py) and three promises: a fault is shown with the line that first shows it to the agent
(docs/faults.md; an XID that others decide within ten seconds, and no new pod gets the device meanwhile); it stays until
it is repaired and the hold-down is over; and then, with the next line, it is gone. What is not injured is Healthy, or
Unknown while its probe cannot say. It uses nothing of the code that decides, but for the names of states.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields

from nodedevices_plugin.model import HealthState, Notice, Verdict
from support.replay.agents import Shown, Whole
from support.replay.hardware import NVML, Device, Incident, Injury, Machine
from support.replay.kinds import Severity

HOLD_DOWN_SECONDS = 300.0  # of the defaults (crds: health.holdDownSeconds)
DECIDED_SECONDS = 10.0  # docs/catalogue.md: how long an XID waits for those around it
LINE_SECONDS = 5.0  # between two lines at most (nodedevices_probe.loop)
OVER_SECONDS = HOLD_DOWN_SECONDS + LINE_SECONDS
SILENT_SECONDS = 15.0
WITHDRAWN_SECONDS = 300.0  # of silence
KEPT_COMPLAINTS = 100
UNDECIDED = "Correlating"
_NO_INJURY = "not injured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Something that was not shown, or that should not have been."""

    at: float
    node: str
    about: str  # a device, a pod, or the Node
    kind: str  # of the failure
    text: str

    def __str__(self) -> str:
        return f"{self.at:.1f} s, {self.node}, {self.about} ({self.kind}): {self.text}"


@dataclass(slots=True)
class Row:
    """The counts of one kind. Incidents, but for `wrong`: complaints."""

    injected: int = 0
    invisible: int = 0  # no device or node shows anything
    unshown: int = 0  # it was over, or the device gone, before a line could say so
    seen: int = 0
    missed: int = 0
    wrong: int = 0
    delays: array[float] = field(default_factory=lambda: array("f"))  # seconds from the failure to the verdict

    def add(self, more: Row) -> None:
        for each in fields(Row):
            setattr(self, each.name, getattr(self, each.name) + getattr(more, each.name))


@dataclass(slots=True)
class Expectation:
    """What may and has to be shown of one device now."""

    need: Severity = Severity.NONE
    may: Severity = Severity.NONE
    reasons: frozenset[str] = frozenset()
    earlier: frozenset[str] = frozenset()  # those of faults that are over, since the device was last well
    withheld: bool = False  # no new pod may get it
    undecided: bool = False  # it may say so
    repair: bool = False  # something has to be done to it
    kind: str = _NO_INJURY


@dataclass(slots=True)
class Sight:
    """Whether a probe can say anything, by what it has written."""

    last_line: dict[str, float] = field(default_factory=dict)  # since the agent's start
    hung: set[str] = field(default_factory=set)

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(self.last_line) - self.hung

    def silent(self, probe: str, at: float) -> float:
        """For how long, where it is silent."""
        return at - self.last_line.get(probe, at) if probe in self.hung else 0.0


class Oracle:
    """Judges every node after everything that happens to it."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.complaints: list[Complaint] = []
        self.count = 0
        # Verdicts of a device that is at fault, named after an earlier fault of it that is over: the machine keeps all
        # until the last one is over (health.machine), and the worst is named.
        self.named_after_earlier = 0

    def row(self, kind: str) -> Row:
        return self.rows.setdefault(kind, Row())

    def began(self, incident: Incident) -> None:
        self.row(incident.kind.name).injected += 1

    def invisible(self, incident: Incident) -> None:
        self.row(incident.kind.name).invisible += 1

    def away(self, incident: Incident, *, shown: bool, at: float, machine: Machine) -> None:
        """A node without a report is to be shown as such, whatever the state of its devices was."""
        incident.noticed_away = shown
        if not shown:
            self._complain(at, machine, "the Node", incident.kind.name, "is away, and its condition says all is well")

    def over(self, incident: Incident) -> None:
        """Nothing of it can be seen any more: it was, or it was missed."""
        row, shown = self.row(incident.kind.name), [it for it in incident.injuries if it.first_shown is not None]
        missed = any(each.seen is None for each in shown) or (
            incident.away is not None and not shown and not incident.noticed_away
        )
        if missed:
            row.missed += 1
        elif not shown and incident.away is None:
            row.unshown += 1
        else:
            row.seen += 1
            if shown:
                row.delays.append(max(each.seen or incident.at for each in shown) - incident.at)

    # --- devices -----------------------------------------------------------------------------------------------------
    def devices(
        self,
        machine: Machine,
        sight: Sight,
        verdicts: Mapping[str, Verdict],
        notices: Mapping[str, tuple[Notice, ...]],
        at: float,
        *,
        probes: Collection[str],
    ) -> dict[str, Expectation]:
        """Judge each device of these probes; what was expected of those that are not simply well."""
        found: dict[str, Expectation] = {}
        blind = blind_probes(machine, sight)
        for id_, device in (*machine.devices.items(), *machine.removed.items()):
            verdict, probe = verdicts.get(id_), device.probe
            if probe not in probes:
                continue
            if verdict is None:
                if probe in sight.last_line or device.injuries:
                    self._complain(at, machine, id_, _kind(device), "has no verdict")
                continue
            if not device.injuries and verdict.state is HealthState.HEALTHY and probe not in sight.hung:
                continue
            expected = found[id_] = expectation(device, at, good=probe not in blind | sight.hung)
            if id_ in machine.removed:
                expected.need = expected.may = Severity.UNHEALTHY
                expected.reasons |= {"Missing"}
                expected.withheld = True
            if probe not in sight.last_line:  # the agent has only what it remembers
                why = "new pods get it" if verdict.offered and expected.withheld else ""
            else:
                why = wrong(verdict, expected, unknown=probe in blind, silent=sight.silent(probe, at))
                self.named_after_earlier += expected.may > 0 and verdict.reason in expected.earlier - expected.reasons
            if why:
                self._complain(at, machine, id_, expected.kind, f"{why}; it is {_said(verdict)}")
            for injury in device.injuries:
                if injury.seen is None and injury.first_shown is not None and _seen(injury, verdict, notices.get(id_)):
                    injury.seen = at
        for id_ in verdicts.keys() - machine.devices.keys() - machine.removed.keys():
            self._complain(at, machine, id_, _NO_INJURY, "is not there, and has a verdict")
        return found

    # --- what the cluster shows --------------------------------------------------------------------------------------
    def cluster(
        self, machine: Machine, sight: Sight, agent: Whole, expected: Mapping[str, Expectation], at: float
    ) -> None:
        """Judge marks on pods, the Node's condition, taint and evictions."""
        if agent.shown is None:
            return
        unclear = bool(blind_probes(machine, sight) or sight.hung)
        well = Expectation()
        for pod, ids in agent.pods.items():
            its = [expected.get(each, well) for each in ids]
            for why in _wrong_of_pod(agent.shown, pod, its, unclear=unclear):
                self._complain(at, machine, f"pod {pod}", _worst_kind(its), why)
        every = list(expected.values())
        for why in _wrong_of_node(agent.shown, every, unclear=unclear):
            self._complain(at, machine, "the Node", _worst_kind(every), why)

    def _complain(self, at: float, machine: Machine, about: str, kind: str, text: str) -> None:
        self.count += 1
        self.row(kind).wrong += 1
        if len(self.complaints) < KEPT_COMPLAINTS:
            self.complaints.append(Complaint(at=at, node=machine.name, about=about, kind=kind, text=text))


def blind_probes(machine: Machine, sight: Sight) -> set[str]:
    """Probes that see none of their devices, or have not said anything yet."""
    found = set(machine.probes.keys() - sight.last_line.keys())
    if not machine.loaded:
        found.add(NVML)
    return found | {each for each in machine.probes if not machine.probes[each].facts}


def expectation(device: Device, at: float, *, good: bool) -> Expectation:
    """What its injuries come to now. `good`: its probe sees devices; without that nothing is over."""
    found = Expectation(earlier=frozenset(device.earlier), undecided=is_undecided(device, at))
    reasons: set[str] = set()
    for each in device.injuries:
        if each.first_shown is None:
            continue
        if good and is_over(each, at) and not found.undecided:
            found.earlier |= each.symptom.reasons
            continue
        deciding = each.symptom.may_be_fatal and at - each.last_event <= DECIDED_SECONDS
        found.kind = each.incident.kind.name
        if each.severity is Severity.NONE:
            continue
        found.may = max(found.may, each.severity)
        reasons |= each.symptom.reasons
        if each.cured is None or at < each.last_shown + HOLD_DOWN_SECONDS:
            found.need = max(found.need, Severity.DEGRADED if deciding else each.severity)
            found.withheld = found.withheld or each.severity is Severity.UNHEALTHY
        found.withheld = found.withheld or deciding
        found.repair = found.repair or (each.read and each.severity is Severity.UNHEALTHY)
    found.reasons = frozenset(reasons)
    return found


def is_undecided(device: Device, at: float) -> bool:
    """True while an XID waits for those around it: so long what else the device has is not over either."""
    return any(each.symptom.undecided and at - each.last_event <= DECIDED_SECONDS for each in device.injuries)


def is_over(injury: Injury, at: float) -> bool:
    """True when nothing may be shown of it any more: after the hold-down the next line has come."""
    return injury.cleared is not None and at >= injury.cleared + OVER_SECONDS


def wrong(verdict: Verdict, expected: Expectation, *, unknown: bool, silent: float) -> str:
    """Return what is wrong with the verdict; empty: nothing. `unknown`: its probe cannot say anything now."""
    state, shown = verdict.state, _SHOWN.get(verdict.state)
    if expected.withheld and verdict.offered:
        return "new pods get it"
    if silent >= WITHDRAWN_SECONDS and verdict.offered:
        return "new pods get it, and its probe has been silent for minutes"
    if shown is None:  # Unknown
        if not unknown and silent < SILENT_SECONDS:
            return "its state is known"
        return "it is known to be at fault" if expected.need is Severity.UNHEALTHY and not unknown else ""
    if silent >= SILENT_SECONDS and shown is not Severity.UNHEALTHY:
        return "its probe is silent"
    if shown < expected.need:
        return f"a fault is not shown ({', '.join(sorted(expected.reasons))})"
    if verdict.reason == UNDECIDED:
        return "" if expected.undecided else "nothing is undecided"
    if shown > expected.may:
        return "a fault is shown that it has not"
    if state is not HealthState.HEALTHY and verdict.reason not in expected.reasons | expected.earlier:
        return f"it has another fault ({', '.join(sorted(expected.reasons))})"
    if shown is Severity.DEGRADED and not expected.withheld and not verdict.offered and not expected.undecided:
        return "it can be used, and no new pod gets it"
    if shown is Severity.NONE and not verdict.offered:
        return "it is well, and no new pod gets it"
    if shown is Severity.UNHEALTHY and expected.repair and verdict.recovery_action == "None":
        return "it does not say what would help"
    return ""


_SHOWN = {
    HealthState.HEALTHY: Severity.NONE,
    HealthState.DEGRADED: Severity.DEGRADED,
    HealthState.UNHEALTHY: Severity.UNHEALTHY,
}


def _seen(injury: Injury, verdict: Verdict, notices: Iterable[Notice] | None) -> bool:
    """Whether the verdict, or a notice, is about it by now."""
    if injury.severity is Severity.NONE:
        return any(each.code in injury.symptom.reasons for each in notices or ())
    if injury.severity is Severity.DEGRADED:
        return verdict.state in {HealthState.DEGRADED, HealthState.UNHEALTHY}
    return verdict.state is HealthState.UNHEALTHY


def _wrong_of_pod(shown: Shown, pod: str, its: list[Expectation], *, unclear: bool) -> Iterable[str]:
    need, may = max(each.need for each in its), max(each.may for each in its)
    condition = shown.pods.get(pod)
    if need is Severity.UNHEALTHY and (condition is None or condition.status != "False"):
        yield f"holds what is Unhealthy, and its condition is {condition}"
    if need is Severity.UNHEALTHY and pod not in shown.evicted:
        yield "holds what is Unhealthy, and is not to be evicted"
    if may < Severity.UNHEALTHY and pod in shown.evicted:
        yield "is to be evicted, and nothing that it holds is Unhealthy"
    if unclear:
        return
    undecided = any(each.undecided for each in its)
    said = None if condition is None else (condition.status, condition.reason)
    if need is may is Severity.DEGRADED and not undecided and said != ("True", "Degraded"):
        yield f"holds what is Degraded, and its condition is {condition}"
    if may is Severity.NONE and condition is not None:
        yield f"holds only what is well, and its condition is {condition}"


def _wrong_of_node(shown: Shown, every: list[Expectation], *, unclear: bool) -> Iterable[str]:
    need, may = max((each.need for each in every), default=0), max((each.may for each in every), default=0)
    status = shown.node.status
    if need == Severity.UNHEALTHY and (status != "False" or not shown.tainted):
        yield f"has what is Unhealthy; its condition is {status}, {'' if shown.tainted else 'not '}tainted"
    if may < Severity.UNHEALTHY and not unclear:
        if status != "True":
            yield f"has nothing that is Unhealthy, and its condition is {shown.node}"
        if shown.tainted and not any(each.undecided for each in every):
            yield "has nothing that is Unhealthy, and is tainted"


def _kind(device: Device) -> str:
    return device.injuries[-1].incident.kind.name if device.injuries else _NO_INJURY


def _worst_kind(its: list[Expectation]) -> str:
    return max(its, key=lambda each: each.may, default=Expectation()).kind


def _said(verdict: Verdict) -> str:
    offered = "offered" if verdict.offered else "not offered"
    return f"{verdict.state} {verdict.reason} ({verdict.recovery_action}), {offered}: {verdict.message}"
