"""A fleet, played: failures come at random (seeded) at their published rates and are repaired, and every line that says
something new goes through the code and is judged.

The time is virtual and goes from one event to the next. A probe polls every five seconds; of lines that say nothing
new only those are played that something waits for (an XID to be decided, a hold-down), the others are only counted as
come (Agent.heartbeats). Nothing is drawn by what the code answers, so a seed is the same year whatever the code does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import Snapshot
from support.replay.agents import Agent, Judged, Whole
from support.replay.hardware import NIC, NVML, PROBES, Device, Incident, Injury, Machine
from support.replay.kinds import GPUS, KINDS, Away, Cure, Kind, Severity, Show, Symptom
from support.replay.oracle import (
    DECIDED_SECONDS,
    LINE_SECONDS,
    OVER_SECONDS,
    Oracle,
    Sight,
    blind_probes,
    is_over,
    is_undecided,
)

DAY = 86_400.0
EVENT_SECONDS = 0.1  # from an XID to the line about it (nodedevices_probe.loop)
POLLED_SECONDS = 1.0  # ... and to the next poll
LATER_SECONDS = 2.0  # between an XID and those that follow it
FLAP_SECONDS = 20.0
AGAIN_SECONDS = 60.0  # until a failure or a repair that found no place is tried again
CONFIRMED_SECONDS = 600.0  # from a replacement to a person's word that the old device is gone
NODES_TRIED = 50
_LASTS = {  # seconds, at least and at most, from the failure to its end
    Cure.ITSELF: (120.0, 7_200.0),
    Cure.RESET: (300.0, 3_600.0),
    Cure.RESET_AWAY: (300.0, 3_600.0),
    Cure.REBOOT: (600.0, 3_600.0),
    Cure.REPLACE: (3_600.0, 86_400.0),
}
_DOWN_SECONDS = (180.0, 1_800.0)  # how long a reboot takes, and a host that is down lasts
Lines = Callable[[Machine, Snapshot], Snapshot | None]


@dataclass(slots=True, eq=False)
class Node:
    machine: Machine
    agent: Agent
    sight: Sight = field(default_factory=Sight)
    clearing: set[tuple[str, float]] = field(
        default_factory=set
    )  # a probe and a time: a line is to come once a hold-down of then is over

    @property
    def takes_repairs(self) -> bool:
        return self.machine.up and self.machine.loaded and not self.sight.hung


@dataclass(slots=True)
class Tally:
    """What a replay has used so far."""

    lines: int = 0
    parsed: int = 0  # of these, through JSON and the agent's reader
    reading_seconds: float = 0.0  # CPU time of that
    seconds: float = 0.0  # CPU time of the agents' and the operator's code alone
    state_bytes: int = 0  # the largest state file
    faults: int = 0  # the most that one verdict has kept
    notices: int = 0  # ... and one device


class Replay:
    """`whole_every`: every so many nodes is a Whole one. `json_every`: so many lines one goes through JSON. `lines`:
    may change or drop a line, for tests of the oracle; `agents`: makes the agent of a node."""

    def __init__(
        self,
        *,
        nodes: int,
        days: float,
        factor: float,
        seed: int,
        whole_every: int = 16,
        json_every: int = 50,
        lines: Lines | None = None,
        agents: Callable[[int], Agent] | None = None,
        kinds: Sequence[Kind] = KINDS,
    ) -> None:
        self.oracle = Oracle()
        self.tally = Tally()
        self.days = days
        self.now = 0.0
        self._random = Random(seed)
        self._numbers = count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._json_every = json_every
        self._change = lines
        self._rates = {kind.name: kind.per_second(nodes * GPUS, factor) for kind in kinds}
        self._open: dict[Incident, None] = {}

        def agent(number: int) -> Agent:
            return Judged() if number % whole_every else Whole(f"node-{number}", number // whole_every)

        make = agents or agent
        self.nodes = [Node(Machine(number, self._time), make(number)) for number in range(nodes)]
        for node in self.nodes:
            self._all_lines(node)
            self._start_pods(node)
        for kind in kinds:
            self._next(kind)

    def run(self, month: Callable[[int], None] = lambda _: None) -> None:
        """Play to the end; `month` is called after every 30 days with their number."""
        end, months = self.days * DAY, 0
        while self._queue and self._queue[0][0] < end:
            at, _, do = heappop(self._queue)
            while at >= (months + 1) * 30 * DAY:
                months += 1
                month(months)
            self.now = at
            do()

    @property
    def unfinished(self) -> int:
        """Failures that the end came before."""
        return len(self._open)

    # --- time --------------------------------------------------------------------------------------------------------
    def _time(self) -> float:
        return self.now

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heappush(self._queue, (self.now + seconds, next(self._numbers), do))

    def _until_poll(self, node: Node) -> float:
        """Seconds until the node's probes poll next; every node has its own phase."""
        phase = (node.machine.number * 1.37) % LINE_SECONDS
        return LINE_SECONDS - (self.now - phase) % LINE_SECONDS

    # --- failures ----------------------------------------------------------------------------------------------------
    def _next(self, kind: Kind) -> None:
        self._after(self._random.expovariate(self._rates[kind.name]), partial(self._fails, kind))

    def _fails(self, kind: Kind) -> None:
        self._next(kind)
        show = self._random.choices(kind.shows, [each.weight for each in kind.shows])[0]
        incident = Incident(kind, self.now, show.away)
        self.oracle.began(incident)
        if not show.symptoms and show.away is None:
            self.oracle.invisible(incident)
            return
        self._open[incident] = None
        self._strike(incident, show)

    def _strike(self, incident: Incident, show: Show) -> None:
        """Let it happen where there is something to break; else a minute later."""
        incident.at = self.now
        for _ in range(NODES_TRIED):
            nodes = self._nodes_for(show)
            hit = self._hit(nodes, show)
            if hit is None:
                continue
            for symptom, node, devices in hit:
                self._hurt(incident, symptom, node, devices)
            match show.away:
                case Away.SILENT:
                    self._after(2 * EVENT_SECONDS, partial(self._hangs, nodes[0]))
                case Away.UNLOADED:
                    self._unloads(incident, nodes[0])
                case Away.REBOOT:
                    shown = nodes[0].agent.down(self.now)
                    self.oracle.away(incident, shown=shown != "True", at=self.now, machine=nodes[0].machine)
                    self._reboots(nodes[0], incident=incident)
            return
        self._after(AGAIN_SECONDS, partial(self._strike, incident, show))

    def _nodes_for(self, show: Show) -> list[Node]:
        first = self._random.randrange(len(self.nodes))
        return [self.nodes[each] for each in ((first, first ^ 1) if show.rack else (first,)) if each < len(self.nodes)]

    def _hit(self, nodes: Sequence[Node], show: Show) -> list[tuple[Symptom, Node, list[Device]]] | None:
        """The devices that get the symptoms; None: these nodes have none that can show them now."""
        found = []
        for node in nodes:
            if not node.takes_repairs:
                return None
            for symptom in show.symptoms:
                devices = [
                    each
                    for each in node.machine.of(NVML if symptom.device == "gpu" else NIC)
                    if not each.shows_nothing and all(it.symptom is not symptom for it in each.injuries)
                ]
                if not devices:
                    return None
                found.append((symptom, node, self._random.sample(devices, min(symptom.many, len(devices)))))
        return found

    def _hurt(self, incident: Incident, symptom: Symptom, node: Node, devices: Iterable[Device]) -> None:
        cure = self._random.choice(symptom.cures)
        injuries = [Injury(incident, symptom, each.fact.id, cure) for each in devices]
        incident.injuries += injuries
        for each in injuries:
            node.machine.devices[each.device].injuries.append(each)
            each.cured = self.now if cure is Cure.HOLD_DOWN else None
        if symptom.xids:
            self._event(node, injuries, symptom.xids)
        else:
            self._polled(node, symptom)
        if symptom.later_xids:
            self._after(LATER_SECONDS, partial(self._event, node, injuries, symptom.later_xids))
        if symptom.undecided:
            seconds = LATER_SECONDS + DECIDED_SECONDS + 2 * EVENT_SECONDS
            self._after(seconds, partial(self._line, node, NVML))
        for number in range(1, 2 * symptom.flaps + 1):
            self._after(number * FLAP_SECONDS, partial(self._flap, node, injuries, evident=number % 2 == 0))
        if cure in _LASTS:
            self._after(self._random.uniform(*_LASTS[cure]), partial(self._repair, node, injuries, cure))

    def _event(self, node: Node, injuries: Sequence[Injury], xids: Sequence[int]) -> None:
        if not node.machine.up:
            return
        for each in injuries:
            repeats = self._random.randint(1, 500) if each.severity is Severity.NONE else 1
            node.machine.happened(each.device, xids, repeats)
            each.last_event = self.now
        self._after(EVENT_SECONDS, partial(self._line, node, NVML, polled=False))
        self._after(POLLED_SECONDS, partial(self._line, node, NVML))

    def _flap(self, node: Node, injuries: Sequence[Injury], *, evident: bool) -> None:
        for each in injuries:
            each.evident = evident
        self._polled(node, injuries[0].symptom)

    def _hangs(self, node: Node) -> None:
        """A call into the driver does not come back, until the agent has the probe replaced."""
        lasts = self._random.choice((40.0, 400.0))
        node.sight.hung.add(NVML)
        for seconds in (16.0, 305.0):
            if seconds < lasts:
                self._after(seconds, partial(self._wait, node))
        self._after(lasts, partial(self._hangs_no_more, node))

    def _hangs_no_more(self, node: Node) -> None:
        node.sight.hung.clear()
        node.machine.restart_probes(NVML)
        self._line(node, NVML)

    def _unloads(self, incident: Incident, node: Node) -> None:
        """The driver's upgrade: what used the GPUs has ended."""
        node.machine.loaded = False
        node.agent.end_pods()
        self._after(self._until_poll(node), partial(self._unloaded, incident, node))
        self._after(self._random.uniform(120.0, 600.0), partial(self._loads, incident, node))

    def _unloaded(self, incident: Incident, node: Node) -> None:
        self._line(node, NVML)
        gpus = [each.fact.id for each in node.machine.of(NVML)]
        offered = [each for each in gpus if node.agent.verdicts[each].offered]
        self.oracle.away(incident, shown=not offered, at=self.now, machine=node.machine)

    def _loads(self, incident: Incident, node: Node) -> None:
        node.machine.loaded = True
        for each in node.machine.of(NVML):
            self._cure(each, Cure.RESET)
        self._line(node, NVML)
        self._start_pods(node)
        self._over(incident)

    # --- repairs -----------------------------------------------------------------------------------------------------
    def _repair(self, node: Node, injuries: Sequence[Injury], cure: Cure) -> None:
        if all(each.cured is not None for each in injuries):
            return
        if cure is Cure.ITSELF:
            for each in injuries:
                each.cured = self.now
            self._polled(node, injuries[0].symptom)
            return
        if not node.takes_repairs:
            self._after(AGAIN_SECONDS, partial(self._repair, node, injuries, cure))
            return
        match cure:
            case Cure.RESET:
                self._reset(node, injuries)
                self._polled(node, injuries[0].symptom)
            case Cure.RESET_AWAY:
                node.machine.up = False
                self._after(self._random.uniform(60.0, 180.0), partial(self._back, node, reset=injuries))
            case Cure.REBOOT:
                self._reboots(node)
            case Cure.REPLACE:
                self._reboots(node, replaced=injuries)

    def _reset(self, node: Node, injuries: Iterable[Injury]) -> None:
        for each in injuries:
            if (device := node.machine.devices.get(each.device)) is not None:
                self._cure(device, Cure.RESET)

    def _cure(self, device: Device, *cures: Cure) -> None:
        for each in device.injuries:
            if each.cured is None and not set(cures).isdisjoint(each.symptom.cures):
                each.cured = self.now

    def _reboots(self, node: Node, *, replaced: Sequence[Injury] = (), incident: Incident | None = None) -> None:
        node.machine.up = False
        node.agent.end_pods()
        seconds = self._random.uniform(*_DOWN_SECONDS)
        self._after(seconds, partial(self._boots, node, replaced, incident))

    def _boots(self, node: Node, replaced: Sequence[Injury], incident: Incident | None) -> None:
        machine = node.machine
        for device in machine.devices.values():
            self._cure(device, Cure.RESET, Cure.REBOOT)
        for each in replaced:
            if each.cured is None and machine.devices[each.device].fact.type == "gpu":
                machine.replace_gpu(each.device)
                self._after(CONFIRMED_SECONDS, partial(self._confirm, node, each.device))
            elif each.cured is None:
                each.cured = self.now
        machine.boot()
        self._back(node)
        self._start_pods(node)
        if incident is not None:
            self._over(incident)

    def _back(self, node: Node, *, reset: Sequence[Injury] = ()) -> None:
        """The agent and its probes start again, with or without the machine."""
        self._reset(node, reset)
        node.machine.up = True
        if reset:
            node.machine.restart_probes()
        node.sight.last_line.clear()
        began = time.process_time()
        size = node.agent.restart(self.now)
        self.tally.seconds += time.process_time() - began
        self.tally.state_bytes = max(self.tally.state_bytes, size)
        self._all_lines(node)

    def _confirm(self, node: Node, device: str) -> None:
        if not node.takes_repairs:
            self._after(AGAIN_SECONDS, partial(self._confirm, node, device))
            return
        node.agent.heartbeats(self.now, PROBES)
        node.agent.confirm_removed(device, self.now)
        for each in node.machine.removed.pop(device).injuries:
            each.cured = each.cleared = self.now
            each.gone = True
            self._done(each.incident)
        self._judge(node)

    # --- lines -------------------------------------------------------------------------------------------------------
    def _polled(self, node: Node, symptom: Symptom) -> None:
        """A line with the next poll."""
        self._after(self._until_poll(node), partial(self._line, node, NVML if symptom.device == "gpu" else NIC))

    def _all_lines(self, node: Node) -> None:
        """The first lines of probes that have just begun, in any order."""
        for name in self._random.sample(PROBES, len(PROBES)):
            self._line(node, name)

    def _line(self, node: Node, name: str, *, polled: bool = True) -> None:
        machine, sight = node.machine, node.sight
        if not machine.up or name in sight.hung:
            return
        snapshot = machine.line(name, polled=polled)
        self._shows(node, name, snapshot, polled=polled)
        sight.last_line[name] = self.now
        said = snapshot if self._change is None else self._change(machine, snapshot)
        if said is not None:
            self._give(node, name, said)
        self._judge(node, name)

    def _held(self, node: Node, name: str, since: float) -> None:
        """The first line after a hold-down."""
        node.clearing.discard((name, since))
        self._line(node, name)

    def _give(self, node: Node, name: str, snapshot: Snapshot) -> None:
        self.tally.lines += 1
        if self.tally.lines % self._json_every == 0:
            self.tally.parsed += 1
            line = encode(snapshot)
            began = time.process_time()
            snapshot = parse_line(line)
            self.tally.reading_seconds += time.process_time() - began
        began = time.process_time()
        node.agent.heartbeats(self.now, node.sight.alive)
        node.agent.line(name, snapshot, self.now)
        self.tally.seconds += time.process_time() - began

    def _wait(self, node: Node) -> None:
        if not node.machine.up or not node.sight.hung:
            return
        node.agent.heartbeats(self.now, node.sight.alive)
        node.agent.wait(self.now)
        self._judge(node)

    def _start_pods(self, node: Node) -> None:
        node.agent.start_pods()
        node.agent.wait(self.now)

    def _shows(self, node: Node, name: str, snapshot: Snapshot, *, polled: bool) -> None:
        """Note what of the truth the line has."""
        came = {(each.device_id, each.xid) for each in snapshot.events}
        facts = {each.id: each for each in snapshot.devices} if polled else {}
        for device in node.machine.of(name):
            if not device.injuries:
                continue
            id_, fact = device.fact.id, facts.get(device.fact.id)
            well = fact is not None and fact.readings.recovery_action in {None, "None"}
            well = well and fact is not None and not fact.readings.lost and fact.readings.error is None
            for each in device.injuries:
                if any((id_, xid) in came for xid in each.symptom.signs):
                    each.first_shown = self.now if each.first_shown is None else each.first_shown
                    each.last_shown = max(each.last_shown, each.last_event)
                if not polled or (name == NVML and not node.machine.loaded):
                    continue
                each.read = False
                if each.cured is None:
                    hidden = device.shows_nothing and not each.symptom.hides_others
                    if each.evident and not hidden and (each.symptom.readings or each.symptom.absent):
                        each.read = True
                        each.first_shown = self.now if each.first_shown is None else each.first_shown
                        each.last_shown = self.now
                elif each.cleared is None and well:
                    each.cleared = self.now
                    if (name, self.now) not in node.clearing:  # one line for all of its devices
                        node.clearing.add((name, self.now))
                        self._after(OVER_SECONDS, partial(self._held, node, name, self.now))

    def _judge(self, node: Node, *names: str) -> None:
        """Judge what these probes' devices are said to be, or all of them: a Whole one says so of all at every line."""
        agent, machine = node.agent, node.machine
        verdicts, notices = agent.verdicts, agent.notices
        probes = PROBES if isinstance(agent, Whole) or not names else names
        expected = self.oracle.devices(machine, node.sight, verdicts, notices, self.now, probes=probes)
        if isinstance(agent, Whole):
            self.oracle.cluster(machine, node.sight, agent, expected, self.now)
        self.tally.faults = max(self.tally.faults, max((len(each.faults) for each in verdicts.values()), default=0))
        self.tally.notices = max(self.tally.notices, max(map(len, notices.values()), default=0))
        blind = blind_probes(machine, node.sight) | node.sight.hung
        for device in machine.devices.values():
            if not device.injuries or device.probe not in probes or device.probe in blind:
                continue
            if is_undecided(device, self.now):
                continue
            over = [
                each
                for each in device.injuries
                if each.cleared is not None and (each.first_shown is None or is_over(each, self.now))
            ]
            for each in over:
                device.injuries.remove(each)
                device.earlier |= each.symptom.reasons
                each.gone = True
                self._done(each.incident)
            if not device.injuries:
                device.earlier.clear()

    def _done(self, incident: Incident) -> None:
        """One of its injuries is over; the failure is, once all are."""
        if all(each.gone for each in incident.injuries):
            self._over(incident)

    def _over(self, incident: Incident) -> None:
        if incident in self._open:
            del self._open[incident]
            self.oracle.over(incident)
