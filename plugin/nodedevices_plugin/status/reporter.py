"""What is remembered from one report to the next, and when a step's outcome is worth publishing.

The facts of the latest step are what metrics and /readyz show, published or not. Nothing is published before a line
came or a probe has been silent for a while: an empty node would be reported as one without devices.

Reports, and the contract's models of them, take a tenth of a start to load. They are loaded when there is time for it
(`load`); before that nothing is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_api.conditions import CONFIG_APPLIED, Condition, find

from nodedevices_plugin.model import Cordon, CoresHeld, Plan, Registration
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.sharing.clients import with_daemons
from nodedevices_plugin.status import taken
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.fitting import fitting
from nodedevices_plugin.status.publisher import Publisher

if TYPE_CHECKING:
    from nodedevices_api.nodedevices import NodeDevicesStatus, Probe

    Entries = Callable[[Iterable[Cordon], datetime], tuple[dict[str, Any], ...]]  # of `spec.unschedulable`
    MadeBy = tuple[Callable[[NodeFacts], NodeDevicesStatus], Entries]

log = structlog.get_logger(__name__)


class Reporter:
    """`facts`: of the latest step; None before it. `conditions`: as they were published last, or found."""

    def __init__(self, publisher: Publisher | None, *, started: datetime) -> None:
        self._publisher = publisher
        self._started = started
        self._probes: tuple[Probe, ...] = ()
        self.conditions: tuple[Condition, ...] = ()
        self.facts: NodeFacts | None = None
        self._taken: taken.Taken | None = None
        self._cut = False  # the report did not fit
        self._made_by: MadeBy | None = None  # None: not loaded yet

    def load(self) -> MadeBy:
        """Load the modules that make reports; from then on steps are reported. Runs on any thread."""
        from nodedevices_plugin.status.report import out_of_service, report  # noqa: PLC0415  see above

        self._made_by = report, out_of_service
        return self._made_by

    def report(
        self,
        outcome: Step,
        *,
        registrations: tuple[Registration, ...],
        probe_errors: Mapping[str, str | None],
        state_problem: str | None,
        cdi_problem: str,
        node_files_problem: str,
        probe_server_problem: str,
        cores: CoresHeld,
        now: datetime,
    ) -> None:
        """Report a step that was carried out."""
        world = outcome.world
        offered = world.plan if world.observed is None else Plan()
        before = self._taken or taken.Taken(shown=world.config.applied_hash)
        self._taken = taken.follow(before, world.config, offered, registrations)
        sections = world.active.effective.sections
        said = find(self.conditions, CONFIG_APPLIED)
        was_applied = said is not None and said.status == "True"
        facts = self.facts = NodeFacts(
            inventory=world.inventory,
            verdicts=with_daemons(world.verdicts, world.state.clients, world.daemons),
            plan=world.plan,
            observed=world.observed,
            holdings=world.holdings,
            held_twice=world.allocations.found,
            cores=cores,
            registrations=registrations,
            config=taken.reported(world.config, self._taken, offered, registrations, sections, was_applied=was_applied),
            retired=world.state.retired,
            notices=world.state.notices,
            history=world.state.history,
            uses=world.uses,
            mig_strategy=sections.partitions.strategy,
            exclude=world.active.excluded,
            unschedulable={cordon.id: cordon.reason for cordon in world.state.unschedulable if cordon.holds(now)},
            drained=world.state.drained,
            clients=world.state.clients.clients,
            lost_contexts=world.state.lost_contexts,
            conflicts=world.conflicts,
            started=self._started,
            running_seconds=time.monotonic() - world.started,
            probes=tuple(
                ProbeFacts(name=name, inventory=part, silent=name in outcome.silent, error=probe_errors[name])
                for name, part in outcome.world.known.owned.items()
            ),
            state_problem=state_problem,
            cdi_problem=cdi_problem,
            node_files_problem=node_files_problem,
            probe_server_problem=probe_server_problem,
            lost=world.lost,
            expected=world.expected,
            most_seen=world.state.most_seen or (),
            confirm_problems=(*world.confirm_problems, *world.confirm_waits),
            previous=self.conditions,
            previous_probes=self._probes,
            previous_departed=world.departed,
            now=now,
        )
        if self._publisher is None or self._made_by is None:
            return
        if world.inventory.line_monotonic is None and not outcome.probe_silent:
            return
        report, out_of_service = self._made_by
        status = report(facts)
        self.conditions, self._probes = status.conditions, status.probes
        something = bool(world.inventory.devices) or world.inventory.accelerators_on_bus > 0
        entries = out_of_service(world.state.unschedulable, now)
        self._publisher.want(self._fitting(to_dict(status)), may_create=something, unschedulable=entries)

    async def stop(self, now: datetime) -> None:
        """Says that the agent ends."""
        if self._publisher is not None and self.facts is not None:
            facts = replace(self.facts, previous=self.conditions, stopping=True, now=now)
            report, _ = self._made_by or self.load()
            await self._publisher.stop(self._fitting(to_dict(report(facts))))

    def _fitting(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        """The status, cut where etcd would refuse it; said when that begins."""
        found = fitting(status)
        cut = found is not status
        if cut and not self._cut:
            log.warning("report too large for etcd, leaving out holders and partitions, healthy devices' first")
        self._cut = cut
        return found
