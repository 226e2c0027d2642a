"""Decides which configuration is in effect, and the condition ConfigApplied.

The last good configuration stays until another one is known to be good and possible on this node. Then the settings
that do not change ids take effect at once. Settings that decide ids (Effective.in_shape_of) take effect when the state
file has them, so that a restart comes back with the same ids, and when no change has to wait for pods
(offering.occupancy).
The result is a shape; the gates decide which of its ids go to new containers.

Where there never was a good configuration (a first start with a bad file), nothing is offered until there is one: wrong
names or numbers would be worse. For the same reason a node that remembers no configuration waits a while for the
operator's before it registers. Each step compares the wanted configuration with the one in effect, so nothing has to be
remembered about an attempt: it succeeds when a file is corrected, a pod ends or a device appears.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names

from nodedevices_plugin.gates import apply as gates
from nodedevices_plugin.gates.base import NoSpecification, WaitingChange
from nodedevices_plugin.health import reasons
from nodedevices_plugin.model import (
    HoldersState,
    NodePods,
    Plan,
    PlanError,
    Refused,
    Unmatched,
)
from nodedevices_plugin.offering.occupancy import ChangeDecision, HeldId, changed_names, decide_change, held_otherwise
from nodedevices_plugin.offering.shape import fitting, make_shape, no_way_for_claims, shape_of, staying
from nodedevices_plugin.offering.unmatched import unmatched, unmatched_capacity, unmatched_cordons, unmatched_rules
from nodedevices_plugin.pipeline import access
from nodedevices_plugin.pipeline.assess import Assessment
from nodedevices_plugin.pipeline.configuration import (
    ActiveConfig,
    ConfigProblem,
    ConfigStatus,
    RequestedConfig,
    of_holders,
    of_problem,
    plan_settings,
)
from nodedevices_plugin.pipeline.foreign import take_over
from nodedevices_plugin.settings.effective import Effective
from nodedevices_plugin.sharing.base import mode_of
from nodedevices_plugin.sharing.daemons import announced, client_ids, kept_text, still_used
from nodedevices_plugin.sharing.mps import MpsDaemon


class Configured(Struct, frozen=True, kw_only=True):
    """The outcome of one step. `plan` None: there was no good configuration yet.

    `to_save`: the configuration that the state file should have: the one in effect, or one that waits for nothing else.
    """

    active: ActiveConfig
    to_save: Effective | None
    plan: Plan | None
    status: ConfigStatus
    refused: str  # file | spec | plan | cdi | mps: what was refused; empty: nothing
    # Needed for what is in effect, or waited for by what is wanted; None: not known yet, and what runs stays.
    daemons: tuple[MpsDaemon, ...] | None


class _Running(Struct, frozen=True, kw_only=True):
    """The configuration in effect, with the current devices."""

    shape: Plan | None = None
    daemons: tuple[MpsDaemon, ...] | None = None
    problem: ConfigProblem | None = None


class _Change(Struct, frozen=True, kw_only=True):
    """The wanted configuration, where it is possible on this node."""

    effective: Effective
    shape: Plan
    daemons: tuple[MpsDaemon, ...] = ()


def configure(assessed: Assessment) -> Configured:
    """Return the configuration and the plan from now on."""
    before, requested, spec = assessed.world.active, assessed.known.requested, assessed.spec
    wanted = _wanted(before, requested, assessed)
    if before.applied_once and isinstance(wanted, _Change):  # what has no ids waits for nothing
        before = replace(before, effective=wanted.effective.in_shape_of(before.effective))
    running = _running(before, assessed, wanted)
    change = wanted if isinstance(wanted, ConfigProblem) else _change(before, wanted, running, assessed)
    new_hash = spec.config_hash if spec is not None else None
    after, shape, daemons, problem = before, running.shape, running.daemons, running.problem
    match change:
        case _Change():
            after = ActiveConfig(effective=change.effective, applied_hash=new_hash, applied_once=True)
            shape, daemons, problem = change.shape, change.daemons, None
        case ConfigProblem():
            problem = change
        case None if problem is None:
            after = replace(before, applied_hash=new_hash)
    coming = problem.coming if problem is not None else None
    daemons, running_on = _with_used(_with_coming(daemons, coming, assessed), shape, assessed)
    libraries: tuple[NoSpecification, ...] = ()
    others: tuple[HeldId, ...] = ()
    plan = None
    if shape is not None:
        libraries = access.without_libraries(after.effective, assessed.devices) if after.applied_once else ()
        others = (
            () if after.effective.observing else held_otherwise(shape, assessed.facts.held, assessed.known.inventory)
        )
        facts = replace(
            assessed.facts,
            held_otherwise=others,
            change=problem and problem.takes_away,
            staying=running_on,
            no_specification=(*libraries, *access.without_name(after.effective, assessed.devices)),
        )
        plan = gates.apply(shape, facts, ours=_ours_of_kubelet(after.effective, assessed))
    ours = _ours(others, shape, assessed) if shape is not None else []
    status = _status(after, problem, ours, plan, assessed)
    if problem is None:
        if running_on:
            message = "; ".join(filter(None, (status.message, kept_text(running_on))))
            status = replace(status, reason=names.WAITING_FOR_HOLDERS, message=message)
        status = replace(status, unmatched=_unmatched(after.effective, shape or Plan(), assessed, requested.from_file))
    if after.applied_once:
        status = _with_cdi(status, after.effective, assessed, libraries)
    status = _with_others(_with_pods(status, plan, assessed.inputs.pods), requested)
    refused = "" if problem is None or problem.waits else problem.source
    to_save = problem.to_save if problem is not None else None
    if to_save is not None and not assessed.inputs.unsaved_because:  # it is only waited for: nothing to report yet
        status = replace(assessed.world.config, generation=status.generation)
    return Configured(
        active=after,
        to_save=to_save or (after.effective if after.applied_once else None),
        plan=plan,
        status=status,
        refused=refused or ("cdi" if libraries else "file" if requested.others else ""),
        daemons=daemons,
    )


def _with_coming(
    daemons: tuple[MpsDaemon, ...] | None, coming: tuple[MpsDaemon, ...] | None, assessed: Assessment
) -> tuple[MpsDaemon, ...] | None:
    """Return the daemons of what is in effect, with those that a waiting change needs (`coming`)."""
    if coming is None:
        return daemons
    named = {daemon.resource for daemon in coming}
    if assessed.world.active.applied_once:
        coming = announced(coming, assessed.inputs.mps.taken)
    return (*coming, *(daemon for daemon in daemons or () if daemon.resource not in named))


def _with_used(
    daemons: tuple[MpsDaemon, ...] | None, shape: Plan | None, assessed: Assessment
) -> tuple[tuple[MpsDaemon, ...] | None, tuple[MpsDaemon, ...]]:
    """Return the daemons with those that stay although they are no longer wanted, while clients use them; and these."""
    if daemons is None:
        return None, ()
    last = assessed.inputs.mps.before if assessed.world.daemons is None else assessed.world.daemons
    in_use = still_used(last, daemons, partial(_is_used, assessed))
    if not in_use or shape is None:
        return daemons, in_use
    named = {daemon.resource for daemon in in_use}
    return (*in_use, *(daemon for daemon in daemons if daemon.resource not in named)), in_use


def _status(
    active: ActiveConfig,
    problem: ConfigProblem | None,
    ours: Sequence[HeldId],
    plan: Plan | None,
    assessed: Assessment,
) -> ConfigStatus:
    """Return the status of the configuration itself. `ours`: what is held in another shape of the plan's devices."""
    seen, requested = assessed.inputs.seen, assessed.known.requested
    status = ConfigStatus(
        generation=seen.generation if seen is not None else None,
        applied_hash=active.applied_hash,
        sources=requested.sources,
    )
    if problem is not None:
        return of_problem(status, problem, applied_once=active.applied_once)
    if plan is not None and ours:
        return of_holders(status, ours, assessed.known.inventory, plan)
    if not assessed.local.standalone and (seen is None or seen.config is None):
        kept = "its last configuration is" if assessed.spec is not None else "the node's own settings are"
        message = f"the operator has not resolved this node: {kept} in effect"
        return replace(status, reason=names.NO_CONFIG, message=message)
    return replace(status, message=requested.note) if requested.note else status


def awaits(assessed: Assessment) -> str:
    """Return why a node that remembers no configuration must not register yet; empty: it may.

    Its first pods would hold the ids that they are offered first: ids of local settings before the policy has come, or
    ids beside those that pods of a forgotten configuration hold.
    """
    world, local, holdings = assessed.world, assessed.local, assessed.inputs.holdings
    seconds = local.operator_wait_seconds
    if world.active.applied_once or assessed.monotonic >= world.started + seconds:
        return ""
    if not local.standalone and assessed.spec is None:
        what = "the operator's configuration of this node"
    elif holdings.state is not HoldersState.SYNCED and holdings.possible is None:
        what = "the kubelet's list of pods that hold devices"
    else:
        return ""
    return f"no saved configuration: the first registration waits for {what}, {seconds:.0f} s at most"


def _is_used(assessed: Assessment, daemon: MpsDaemon) -> bool:
    """True when containers are the daemon's clients, or may be: they hold shares of its devices under its name."""
    return not assessed.inputs.holdings.known or any(
        held_id.resource == daemon.resource and held_id.replica is not None and held_id.device_id in daemon.device_ids
        for held_id in assessed.facts.held
    )


def _with_cdi(
    status: ConfigStatus, active: Effective, assessed: Assessment, libraries: Sequence[NoSpecification]
) -> ConfigStatus:
    """Add what is wrong with CDI: devices that containers would get without the driver's libraries are not offered, and
    a broken source of these is named while the last good one is used."""
    if not libraries:
        return replace(status, cdi_problem=access.stale(active, assessed.devices))
    why = "; ".join(missing.why for missing in libraries)
    status = replace(status, cdi_problem=f"CDI: {why}; devices that need it are not offered until then")
    if status.reason not in {names.APPLIED, names.NO_CONFIG}:
        return status
    return replace(status, reason=names.CONFIG_INVALID, refused=Refused(message=status.cdi_problem))


def _with_pods(status: ConfigStatus, plan: Plan | None, pods: NodePods) -> ConfigStatus:
    """Add why shares of computing power are not offered (gates.reasons.pods_unknown)."""
    by_pods = [resource.name for resource in (plan or Plan()).resources if resource.sharing.cores]
    if not by_pods:
        return status
    if pods.pods is not None:
        problem = f"this node's pods may have changed meanwhile: {pods.problem}" if pods.problem else ""
        return replace(status, pods_problem=problem)
    why = f"{', '.join(by_pods)}: not offered until this node's pods are known: {pods.problem}"
    status = replace(status, pods_problem=why)
    if status.reason not in {names.APPLIED, names.NO_CONFIG}:
        return status
    if not pods.forbidden:
        return replace(status, reason=names.WAITING_FOR_HOLDERS, refused=None)
    return replace(status, reason=names.CONFIG_INVALID, refused=Refused(field="sharing.resources", message=why))


def _with_others(status: ConfigStatus, requested: RequestedConfig) -> ConfigStatus:
    """Add everything that is refused, in addition to other problems: a file may be wrong while the rest is in effect,
    or waits for pods."""
    left = [refused.message for refused in requested.others if refused.message not in status.message]
    status = replace(status, others=requested.others)
    if requested.others and status.reason in {names.APPLIED, names.NO_CONFIG}:
        return replace(status, reason=names.CONFIG_INVALID, message="; ".join(left), refused=requested.refused)
    return replace(status, message="; ".join([status.message, *left])) if left else status


def _ours_of_kubelet(active: Effective, assessed: Assessment) -> Collection[str]:
    """Return the names that the kubelet has of us. Where DRA serves, also those that it had: it forgets what a pod of
    theirs had when it is sent a list, and on such a node nothing else has it send one."""
    state = assessed.world.state
    if active.observing:
        return ()
    return {*state.offered, *state.retired} if active.by_dra else state.offered


def _ours(others: Sequence[HeldId], shape: Plan, assessed: Assessment) -> list[HeldId]:
    """Return what is held in another shape of the devices that are withheld for it.

    Without devices that are not to be offered at all (excluded), and those that another plugin serves: its pods do not
    concern our configuration.
    """
    theirs = {held_id.device_id for held_id in assessed.facts.held if held_id.resource in assessed.not_ours}
    offered = {schedulable.device_id for resource in shape.resources for schedulable in resource.ids}
    return [held_id for held_id in others if held_id.device_id in offered - theirs]


def _wanted(before: ActiveConfig, requested: RequestedConfig, assessed: Assessment) -> _Change | ConfigProblem:
    """The wanted configuration with its plan, or why it cannot be."""
    if requested.effective is None:
        wrong = requested.refused or Refused(message="")
        return ConfigProblem(source=requested.source, field=wrong.field, message=wrong.message)
    if refused := access.refusal(assessed.active, requested.effective, assessed.devices):
        return ConfigProblem(source="cdi", field=refused.field, message=str(refused))
    if not before.applied_once and (why := awaits(assessed)) and not requested.effective.observing:
        return ConfigProblem(source="operator", message=why, waits=True)
    if requested.effective.by_dra and (problem := _no_dra(before, requested.effective, assessed)) is not None:
        return problem
    shape, error = _made(requested.effective, assessed)
    if error is None and shape is not None:
        settings = access.mode_settings(requested.effective, assessed.devices)
        modes = ((mode, resource) for resource in shape.resources if (mode := mode_of(resource)) is not None)
        refusals = (mode.refusal(resource, settings) for mode, resource in modes)
        error = next((why for why in refusals if why is not None), None)
    if shape is not None and error is None:
        return _Change(effective=requested.effective, shape=shape)
    return ConfigProblem(source="plan", field=error.field if error else "", message=str(error or ""))


def _no_dra(before: ActiveConfig, requested: Effective, assessed: Assessment) -> ConfigProblem | None:
    """Return why devices cannot be served by DRA; None: they can. A node that does so already waits for nothing."""
    dra, field = assessed.inputs.dra, "serving.api"
    listed = requested.sections.injection.device_list_strategies
    if why := no_way_for_claims(listed, assessed.known.inventory, requested.vendors):
        return ConfigProblem(source="dra", field="injection.deviceListStrategies", message=why)
    if dra.unavailable:
        return ConfigProblem(source="dra", field=field, message=f"{field}: DRA: {dra.unavailable}")
    if dra.waits_for and not (before.applied_once and before.effective.by_dra):
        return ConfigProblem(source="dra", field=field, message=f"{field}: DRA waits: {dra.waits_for}", waits=True)
    return None


def _running(before: ActiveConfig, assessed: Assessment, wanted: _Change | ConfigProblem) -> _Running:
    """Return the configuration in effect where one was applied before; nothing at a first start."""
    if not before.applied_once:
        return _Running()
    if isinstance(wanted, _Change) and wanted.effective == before.effective:  # as a rule: made once
        shape, why = wanted.shape, None
    else:
        made, why = _made(before.effective, assessed)
        # Where it makes no sense with the devices of now: with those with which it does, which a restart does not
        # change, or else as it was.
        shape = made if made is not None else shape_of(assessed.world.plan or Plan())
    needs = _awaited(shape, assessed)
    if why:
        problem = ConfigProblem(source="plan", field=why.field, message=str(why))
        return _Running(shape=shape, daemons=needs.daemons if shape.resources else None, problem=problem)
    if needs.problem is not None and assessed.inputs.holdings.known:  # else after a restart daemons are wanted at once
        index = assessed.known.index.under(before.effective.index_prefix)
        start = access.may_start(needs.unanswered, assessed.inputs.holdings, index, clients=client_ids(shape))
        if not start.apply:
            problem = replace(needs.problem, message=start.message, waits=True, waits_for=start.waits_for)
            return _Running(shape=shape, problem=problem)
    return _Running(shape=shape, daemons=needs.daemons, problem=needs.problem)


def _change(
    before: ActiveConfig, wanted: _Change, running: _Running, assessed: Assessment
) -> _Change | ConfigProblem | None:
    """The wanted configuration, or why it cannot take effect; None: it is in effect."""
    requested, shape = wanted.effective, wanted.shape
    if before.applied_once and requested.has_shape_of(before.effective):
        return None
    needs = _awaited(shape, assessed)
    decision = _may(before, requested, shape, needs=needs, running=running, assessed=assessed)
    if not decision.apply:
        known = assessed.inputs.holdings.state is HoldersState.SYNCED
        return ConfigProblem(
            source="holders",
            message=decision.message,
            waits=True,
            waits_for=decision.waits_for,
            takes_away=WaitingChange(shape=shape, waits_for=decision.waits_for)
            if known and not requested.observing
            else None,
        )
    if needs.problem is not None:
        return replace(needs.problem, coming=needs.daemons)
    if before.applied_once and (assessed.inputs.saved is None or not requested.has_shape_of(assessed.inputs.saved)):
        what = ", ".join(changed_names(running.shape or Plan(), shape)) or "what is offered"
        why = assessed.inputs.unsaved_because or "it is being written"
        message = f"the change of {what} waits until the state file is written: {why}"
        return ConfigProblem(source="state", message=message, waits=True, to_save=requested, coming=needs.daemons)
    return replace(wanted, daemons=needs.daemons)


def _may(
    before: ActiveConfig,
    requested: Effective,
    wanted: Plan,
    *,
    needs: access.Awaited,
    running: _Running,
    assessed: Assessment,
) -> ChangeDecision:
    """Decide whether it may take effect at once, except for the devices that pods hold."""
    index = assessed.known.index.under((before.effective if before.applied_once else requested).index_prefix)
    clients: Set[tuple[str, str]] = client_ids(running.shape or Plan())  # whose pods are a daemon's clients
    if not before.applied_once:
        decision = access.may_begin(needs.unanswered, wanted, assessed.inputs.holdings, index)
        clients = access.known_clients(wanted, assessed.known.inventory, assessed.inputs.mps)
    elif before.effective.observing and not requested.observing:
        decision = take_over(wanted, assessed.inputs.holdings, index)
    else:
        resources = running.shape.resources if running.shape is not None else ()
        current = Plan(resources=tuple(resource for resource in resources if resource.name not in assessed.not_ours))
        decision = decide_change(
            current, wanted, assessed.inputs.holdings, assessed.facts.unconfirmed, whole=requested.observing
        )
    return (
        access.may_start(needs.unanswered, assessed.inputs.holdings, index, clients=clients)
        if decision.apply
        else decision
    )


def _awaited(plan: Plan, assessed: Assessment) -> access.Awaited:
    return access.awaited(
        plan, assessed.known.inventory, assessed.inputs.holdings, assessed.inputs.mps, assessed.not_ours
    )


def _made(effective: Effective, assessed: Assessment) -> tuple[Plan | None, PlanError | None]:
    """As offering.shape.fitting."""
    if not effective.observing:
        try:
            access.check(effective, assessed.devices)
        except PlanError as error:
            return None, error
    return fitting(assessed.known.inventory, partial(make_shape, settings=plan_settings(effective)))


def _unmatched(effective: Effective, shape: Plan, assessed: Assessment, from_file: Set[str]) -> tuple[Unmatched, ...]:
    """Return the notes on entries that match nothing, for a configuration that is in effect and so has a plan."""
    sections = effective.sections
    unsaid = assessed.inputs.dra.unsaid if effective.by_dra else {}  # what the node's ResourceSlices cannot say
    return (
        *unmatched(assessed.known.inventory, plan_settings(effective), from_file),
        *staying(shape, sections.serving),
        *(
            Unmatched(section="serving", entry=f"api DRA for {device}", message="; ".join(problems))
            for device, problems in unsaid.items()
        ),
        *reasons.unmatched(sections.health.rules, assessed.vendors),
        *reasons.unmatched_faults(sections.faults.rules, assessed.vendors),
        *unmatched_rules(assessed.known.inventory, sections),
        *unmatched_capacity(assessed.known.inventory, sections.capacity),
        *unmatched_cordons(
            assessed.known.inventory, frozenset(cordon.id for cordon in assessed.facts.cordons), effective.vendors
        ),
    )
