"""Reporter: remembers what the last report said, and decides whether a step's outcome is worth publishing.

The facts of the latest step are what metrics and /readyz show, published or not. Nothing is published before a line
came or a probe has been silent for a while: an empty node would be reported as one without devices.

Reports, and the contract's models of them, take a tenth of a start to load. They are loaded when there is time for it
(`load`); before that nothing is reported.

A configuration is applied when the kubelet has every resource name of it; until then the report keeps the hash of the
earlier one. When the kubelet refuses a name, the configuration is refused with the section that gave the name, so that
its policy counts as failed. Once a configuration was accepted, a restart of the kubelet does not change that. A name
that another plugin serves waits for that plugin to leave; the condition Ready says so, not ConfigApplied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.base import to_dict
from nodedevices_api.defaults import Resolved
from nodedevices_api.meta import Condition, find

from nodedevices_plugin.model import Cordon, CoresHeld, Plan, Refused, Registration, RegistrationState
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.sharing.daemons import with_daemons
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
        self.conditions: tuple[Condition, ...] = ()
        self._probes: tuple[Probe, ...] = ()
        self.facts: NodeFacts | None = None
        self._taken: Taken | None = None
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
        problems: Mapping[str, str],
        cores: CoresHeld,
        now: datetime,
    ) -> None:
        """Report a step that was carried out. `problems`: as NodeFacts has them."""
        world = outcome.world
        offered = world.plan if world.observed is None else Plan()
        before = self._taken or Taken(shown=world.config.applied_hash)
        sections = world.active.effective.sections
        said = find(self.conditions, names.CONFIG_APPLIED)
        was_applied = said is not None and said.status == "True"
        config, self._taken = with_kubelet(
            world.config, before, offered, registrations, sections, was_applied=was_applied
        )
        facts = self.facts = NodeFacts(
            world=world,
            verdicts=with_daemons(world.known.verdicts, world.state.clients, world.daemons),
            probes=tuple(
                ProbeFacts(name=name, inventory=part, silent=name in outcome.silent, error=probe_errors[name])
                for name, part in world.known.owned.items()
            ),
            registrations=registrations,
            config=config,
            unschedulable={cordon.id: cordon.reason for cordon in world.state.unschedulable if cordon.holds(now)},
            cores=cores,
            started=self._started,
            running_seconds=time.monotonic() - world.started,
            problems=problems,
            previous=self.conditions,
            previous_probes=self._probes,
            now=now,
        )
        if self._publisher is None or self._made_by is None:
            return
        if world.known.inventory.line_monotonic is None and not outcome.silent:
            return
        report, out_of_service = self._made_by
        status = report(facts)
        self.conditions, self._probes = status.conditions, status.probes
        something = bool(world.known.inventory.devices) or world.known.inventory.accelerators_on_bus > 0
        self._publisher.want(
            self._fitting(to_dict(status)),
            may_create=something,
            unschedulable=out_of_service(world.state.unschedulable, now),
        )

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


# --- whether the kubelet has accepted the resources of the configuration in effect -----------------------------------
_OVER = {names.APPLIED, names.NO_CONFIG, names.WAITING_FOR_HOLDERS, names.WAITING_FOR_DAEMON}
_THERE = {RegistrationState.REGISTERED, RegistrationState.SERVED_BY_ANOTHER}


class Taken(Struct, frozen=True, kw_only=True):
    """The state of one configuration with the kubelet."""

    config_hash: str | None = None  # of the configuration in effect
    done: bool = False  # the kubelet has had all its names
    shown: str | None = None  # the hash that is reported


def with_kubelet(
    config: ConfigStatus,
    before: Taken,
    plan: Plan | None,
    registrations: Sequence[Registration],
    sections: Resolved,
    *,
    was_applied: bool,
) -> tuple[ConfigStatus, Taken]:
    """Return the configuration's status with the kubelet's part, and the next state. `plan` None: nothing is planned
    yet; an empty one: the kubelet has nothing to accept. `sections`: those in effect. `was_applied`: the last report
    said that it was applied, possibly the report of an earlier agent."""
    state = {registration.resource: registration for registration in registrations}
    # The names that the kubelet does not have yet, each with the reason. One without ids is not registered.
    missing = {
        resource.name: state[resource.name].message if resource.name in state else ""
        for resource in (plan.resources if plan is not None else ())
        if resource.ids and (resource.name not in state or state[resource.name].state not in _THERE)
    }
    current = config.applied_hash
    done = (before.done and before.config_hash == current) or (plan is not None and not missing)
    taken = Taken(config_hash=current, done=done, shown=current if done else before.shown)
    again = was_applied and taken.shown == current  # a restart of the agent does not change that, either
    config = replace(config, applied_hash=taken.shown)
    refused = [
        state[resource.name]
        for resource in (plan.resources if plan is not None else ())
        if resource.name in state and state[resource.name].state is RegistrationState.REJECTED
    ]
    if refused and config.reason in _OVER:
        said = "; ".join(
            f"the kubelet refuses {registration.resource}: {registration.message}" for registration in refused
        )
        refusal = Refused(field=_named_by(refused[0].resource, sections), message=said)
        config = replace(config, reason=names.REGISTRATION_REJECTED, message=said, refused=refusal)
    elif missing and config.reason == names.APPLIED and not done and not again:
        why = next(filter(None, missing.values()), "")
        message = f"the kubelet has not taken {', '.join(sorted(missing))} yet" + (f": {why}" if why else "")
        config = replace(config, reason=names.WAITING_FOR_KUBELET, message=message)
    return config, taken


def _named_by(name: str, sections: Resolved) -> str:
    """Return the field that gives the name; empty where it is a usual one."""
    shared = (
        f"sharing.resources[{number}].rename"
        for number, resource in enumerate(sections.sharing.resources)
        if resource.rename == name
    )
    named = (
        f"resources.devices[{number}].name"
        for number, rule in enumerate(sections.resources.devices)
        if rule.name == name
    )
    return next(chain(shared, named), "")
