"""The input of a report, the metrics and /readyz: the latest values of every stage, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field
from nodedevices_api.conditions import Condition

from nodedevices_plugin.granting.conflicts import Conflicts, DoubleAllocation
from nodedevices_plugin.model import (
    CoresHeld,
    Holdings,
    Inventory,
    MostSeen,
    Notice,
    Occurrences,
    Plan,
    Registration,
    Uses,
    Verdict,
)
from nodedevices_plugin.pipeline.config_status import ConfigStatus
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.sharing.clients import Client

STARTING_SECONDS = 15.0  # how long a first answer of the kubelet may take


class ProbeFacts(Struct, frozen=True, kw_only=True):
    """One probe and its state."""

    name: str  # as configured
    inventory: Inventory  # its own devices
    silent: bool = False  # no good line for 15 s, or none within 15 s of the start
    error: str | None = None  # why its last line or process was no good


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The whole input of a report."""

    inventory: Inventory
    verdicts: Mapping[str, Verdict]
    plan: Plan | None  # None: nothing was planned yet
    observed: Plan | None = None  # what others offer (pipeline.foreign); None: this agent serves the kubelet itself
    holdings: Holdings  # by our own ids (foreign.named)
    held_twice: tuple[DoubleAllocation, ...] | None = None  # None: the kubelet has not listed its holders yet
    cores: CoresHeld = field(default_factory=CoresHeld)
    registrations: tuple[Registration, ...] = ()
    config: ConfigStatus = field(default_factory=ConfigStatus)
    retired: Mapping[str, datetime] = field(default_factory=dict)
    notices: Mapping[str, tuple[Notice, ...]] = field(default_factory=dict)  # by device, the newest first
    history: Mapping[str, tuple[Occurrences, ...]] = field(default_factory=dict)  # the same
    uses: Uses | None = None  # how held devices are used; None: no policy asks for it
    mig_strategy: str = ""  # in effect
    exclude: tuple[str, ...] = ()  # resources.exclude in effect
    unschedulable: Mapping[str, str] = field(default_factory=dict)  # taken out of service by people: id -> why
    drained: Mapping[str, datetime] = field(default_factory=dict)  # of these, what can be taken out of the machine
    clients: Mapping[str, Client] = field(default_factory=dict)  # of MPS daemons, by sharing.clients.key
    lost_contexts: Mapping[str, Verdict] = field(default_factory=dict)  # by pipeline.lost_contexts.key
    conflicts: Conflicts = field(default_factory=dict)
    started: datetime
    running_seconds: float = STARTING_SECONDS  # since then, by time.monotonic()
    probes: tuple[ProbeFacts, ...]
    state_problem: str | None = None  # why the state file cannot be used or written
    cdi_problem: str = ""  # why containers do not get devices by CDI as they should
    node_files_problem: str = ""  # why other programs do not find files about devices (host.node_files)
    probe_server_problem: str = ""  # why what is asked of the hardware beside probes' lines may be old
    lost: Mapping[str, str] = field(default_factory=dict)  # probes that see none of the node's devices (pipeline.lost)
    expected: tuple[Count, ...] | None = ()  # by the section `expect` or by what it had; None: not judged yet
    most_seen: tuple[MostSeen, ...] = ()
    confirm_problems: tuple[str, ...] = ()  # parts of the annotation nodedevices.io/confirm that were not understood
    previous: tuple[Condition, ...] = ()
    previous_departed: Mapping[str, datetime] = field(default_factory=dict)  # partition id -> since when it is gone
    stopping: bool = False  # the last report of this agent
    left_out: tuple[str, ...] = ()  # parts of a report that could not be made, and why (report)
    now: datetime


def offered(facts: NodeFacts) -> Plan:
    """Return the plan that the kubelet is sent, by this agent or by other plugins."""
    return facts.observed or facts.plan or Plan()


def whole_second(when: datetime) -> datetime:
    """Models made by name skip no validation, but equal values must be equal before a round trip, too."""
    return when.replace(microsecond=0)
