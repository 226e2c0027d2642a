"""Which configuration is in force, and what ConfigApplied says. Pure.

The last good one stays until another one is known to be good, makes sense on this node, and takes nothing away from a
pod (resources.changes). Where there never was a good one (a first start with a bad file), nothing is offered until
there is: other names or numbers than those meant would be worse. What is asked for is compared with what is in force
at every step, so nothing has to be remembered about an attempt: a file that is corrected, a pod that ends or a device
that appears is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from nodedevices_api import conditions as names
from nodedevices_api.errors import InputError

from nodedevices_plugin.foreign import Names, may_begin, may_start, take_over
from nodedevices_plugin.model import HoldersState, Holdings, Inventory, OfferedResource, Plan, RecentAllocate, Verdict
from nodedevices_plugin.report import ConfigStatus
from nodedevices_plugin.resources import cdi, mps
from nodedevices_plugin.resources.changes import decide_change
from nodedevices_plugin.resources.errors import PlanError
from nodedevices_plugin.resources.injection import CDI_STRATEGIES, InjectionContext
from nodedevices_plugin.resources.plan import PlanSettings, make_plan, refresh_health
from nodedevices_plugin.resources.unmatched import unmatched
from nodedevices_plugin.settings.effective import Effective, resolve
from nodedevices_plugin.settings.file import FileConfig
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.problems import ConfigError
from nodedevices_plugin.state import SeenSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutcome:
    """The configuration file as it was read last: its content, or why it cannot be used. Neither: there is none.

    `place` is for people, where it is one of several (settings.named).
    """

    config: FileConfig | None = None
    error: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenObject:
    """What matters of the node's own NodeDevices. `exists` False: the API server says there is none."""

    exists: bool = False
    generation: int | None = None
    config: Mapping[str, Any] | None = None  # spec.config; None: nobody has resolved this node
    config_hash: str | None = None
    config_name: str | None = None
    unschedulable: tuple[str, ...] = ()
    confirm: str = ""  # annotation nodedevices.io/confirm


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What file and `spec.config` ask for together: a configuration, or why there is none."""

    effective: Effective | None = None
    error: str | None = None
    source: str = ""  # file | spec: what has to be corrected
    note: str = ""  # for people, while it is in force: which of several files it is
    from_file: frozenset[str] = frozenset()  # sections that the file gives


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The configuration in force. `told`: its plan was made at least once, in this run or before the last restart.

    Until then it is the node's own settings without the file: devices are judged by it, and nothing is offered.
    """

    effective: Effective
    applied_hash: str | None = None
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The outcome of one step. `plan` None: there was no good configuration yet."""

    in_force: InForce
    plan: Plan | None
    status: ConfigStatus
    refused: str = ""  # file | spec | plan | mps | cdi: what was refused; empty: nothing
    # Needed for what is in force, or waited for by what is asked for; None: nobody knows yet, and what runs stays.
    daemons: tuple[mps.Daemon, ...] | None = None


def ask(local: Local, file: FileOutcome, spec: SeenSpec | None) -> Asked:
    """What is asked for now. `spec`: the latest that the operator resolved, None for none ever."""
    if file.error is not None:
        return Asked(error=f"{file.place or f'configuration file {local.config_file}'}: {file.error}", source="file")
    note = file.place
    if local.config_dir is None and spec is not None and spec.config_name:
        note = f"spec.configName {spec.config_name!r} chooses nothing here: the agent has no --config-dir"
    given = spec.config if spec is not None else {}
    from_file = frozenset(
        name for name in ("resources", "sharing") if getattr(file.config, name, None) is not None and name not in given
    )
    try:
        effective = resolve(local, file.config, spec.config if spec is not None else None)
        return Asked(effective=effective, note=note, from_file=from_file)
    except (ConfigError, InputError) as error:
        return Asked(error=str(error), source="spec")


def configure(
    before: InForce,
    asked: Asked,
    *,
    spec: SeenSpec | None,
    seen: SeenObject | None,
    standalone: bool,
    inventory: Inventory,
    verdicts: Mapping[str, Verdict],
    holdings: Holdings,
    recent: Sequence[RecentAllocate],
    last_plan: Plan | None,
    monotonic: float,
    existing: Set[str] = frozenset(),
    answers: mps.Answers = MappingProxyType({}),
    not_ours: Set[str] = frozenset(),
    wanted_before: Sequence[mps.Daemon] = (),
    cdi_here: cdi.Here = cdi.Here(),  # noqa: B008  frozen
) -> Configured:
    """The configuration and the plan from now on.

    `existing`: the node's optional device nodes (resources.nodes). `answers`: of the MPS control daemons; a
    configuration that needs one takes effect when it answers. `not_ours`: names of the plan that another plugin serves
    to the kubelet; what pods hold of them is not ours, and no change of ours takes it away. `wanted_before`: the
    daemons that the agent's run before this one asked for. `cdi_here`: a configuration that begins to hand out CDI
    names takes effect where the files that have them can be written.
    """
    status = ConfigStatus(
        reason=names.APPLIED,
        generation=seen.generation if seen is not None else None,
        unschedulable=seen.unschedulable if seen is not None else (),
    )
    new_hash = spec.config_hash if spec is not None else None
    after, refused, message, starting = before, "", "", False
    plan: Plan | None = None
    daemons: tuple[mps.Daemon, ...] | None = None
    coming: tuple[mps.Daemon, ...] | None = None  # of a configuration that waits for them
    clients: Set[tuple[str, str]] = frozenset()
    if before.told:
        plan, message = _plan(before.effective, inventory, verdicts, last_plan, existing)
        refused = "plan" if message else ""
        served, clients = _served(plan, not_ours, holdings, answers), _shares(plan)
        if plan.resources or not message:
            daemons = mps.daemons(served, inventory)
        if not message and (message := mps.silent(served, answers)):
            refused, starting = "mps", mps.starting(served, answers)
            ids = Names(inventory, index_prefix=before.effective.index_prefix)
            start = may_start(mps.unanswered(served, answers), holdings, ids, clients=clients)
            if start.waiting_for:  # not where nobody knows: after a restart daemons are wanted at once
                message, starting, daemons = start.message, True, None
    if asked.effective is None:
        refused, message = asked.source, asked.error or ""
    elif why := _nameless(before, asked.effective, inventory, existing, cdi_here):
        refused, message = "cdi", why
    elif not before.told or asked.effective != before.effective:
        try:
            wanted = _made(asked.effective, inventory, verdicts, existing)
        except PlanError as error:
            refused, message = "plan", str(error)
        else:
            ids = Names(inventory, index_prefix=(before.effective if before.told else asked.effective).index_prefix)
            served = _served(wanted, not_ours, holdings, answers)
            unanswered = mps.unanswered(served, answers)
            if not before.told:
                decision = may_begin(unanswered, wanted, holdings, ids)
                same = {each.resource for each in mps.daemons(wanted, inventory) if each in wanted_before}
                clients = _shares(Plan(resources=tuple(each for each in wanted.resources if each.name in same)))
            elif before.effective.observing and not asked.effective.observing:
                decision = take_over(wanted, holdings, ids)
            else:
                current = Plan(
                    resources=tuple(each for each in (plan or Plan()).resources if each.name not in not_ours)
                )
                decision = decide_change(current, wanted, holdings, recent, monotonic=monotonic)
            if decision.apply:
                decision = may_start(unanswered, holdings, ids, clients=clients)
            if not decision.apply:
                waiting = replace(status, reason=names.WAITING_FOR_HOLDERS, message=decision.message)
                return Configured(
                    in_force=before,
                    plan=_offered(plan, last_plan, answers),
                    status=replace(waiting, applied_hash=before.applied_hash),
                    daemons=daemons,
                )
            if why := mps.silent(served, answers):
                refused, message, coming = "mps", why, mps.daemons(served, inventory)
                starting = mps.starting(served, answers)
            else:
                daemons = mps.daemons(served, inventory)
                after, plan = InForce(effective=asked.effective, applied_hash=new_hash, told=True), wanted
                refused, message = "", ""
    elif not refused:
        after = replace(before, applied_hash=new_hash)
    status = replace(status, applied_hash=after.applied_hash)
    if coming is not None:
        named = {each.resource for each in coming}
        daemons = (*coming, *(each for each in daemons or () if each.resource not in named))
    plan = _offered(plan, last_plan, answers)
    if refused:
        waits = refused == "mps" and starting  # nothing is refused: it takes effect by itself
        reason = names.WAITING_FOR_HOLDERS if waits else names.CONFIG_INVALID
        return Configured(
            in_force=after,
            plan=plan,
            status=replace(status, reason=reason, message=f"{message}; {_meanwhile(after, refused, coming)}"),
            refused="" if waits else refused,
            daemons=daemons,
        )
    if not standalone and (seen is None or seen.config is None):
        kept = "the last one that it had" if spec is not None else "the node's own settings"
        status = replace(
            status, reason=names.NO_CONFIG, message=f"the operator has not resolved this node: {kept} are in force"
        )
    elif asked.note:
        status = replace(status, message=asked.note)
    status = replace(status, unmatched=_unmatched(after.effective, inventory, asked.from_file))
    return Configured(in_force=after, plan=plan, status=status, daemons=daemons)


def _meanwhile(after: InForce, refused: str, coming: tuple[mps.Daemon, ...] | None) -> str:
    if refused == "mps" and coming is None:
        return "its shares are withheld until it answers"
    if not after.told:
        return "nothing is offered until " + ("it answers" if refused == "mps" else "there is a good one")
    return "the last good one stays in force" + (" until it answers" if refused == "mps" else "")


def _served(plan: Plan, not_ours: Set[str], holdings: Holdings, answers: mps.Answers) -> Plan:
    """What MPS daemons are wanted for: not for what another plugin serves, since its pods know no daemon.

    But one that runs stays while pods hold its shares: they may be its clients, from before the other plugin came.
    """
    held = {(holder.resource, each) for holder in holdings.holders for each in holder.ids}

    def in_use(resource: OfferedResource) -> bool:
        runs = not mps.unanswered(Plan(resources=(resource,)), answers)
        known = holdings.state is HoldersState.SYNCED
        return runs and (not known or any((resource.name, each.id) in held for each in resource.ids))

    return Plan(resources=tuple(each for each in plan.resources if each.name not in not_ours or in_use(each)))


def _shares(plan: Plan) -> frozenset[tuple[str, str]]:
    """Resource and id of each share by MPS."""
    return frozenset((each.name, one.id) for each in plan.resources if each.sharing == "mps" for one in each.ids)


def _offered(plan: Plan | None, last: Plan | None, answers: mps.Answers) -> Plan | None:
    return mps.withheld(plan, last, answers) if plan is not None else None


def injection(
    effective: Effective, inventory: Inventory, existing: Set[str], toolkit: Sequence[cdi.ToolkitDevice] = ()
) -> InjectionContext:
    """What Allocate answers by. `toolkit`: the devices of the container toolkit's own CDI spec."""
    node = effective.node
    return InjectionContext.from_section(
        effective.sections.injection,
        inventory=inventory,
        host=node.host(existing),
        cdi_annotation_prefix=node.cdi_annotation_prefix,
        cdi_names=cdi.toolkit_names(inventory, toolkit) if toolkit else None,
        mps_root=node.mps_root,
    )


def _nameless(before: InForce, effective: Effective, inventory: Inventory, existing: Set[str], here: cdi.Here) -> str:
    """Why containers would get CDI names that no file has. Empty: they would not, or it is so in force already, and
    what fails then is told beside it (cdifiles)."""
    if not here.unwritable or effective.observing:
        return ""
    context = injection(effective, inventory, existing)
    if not context.by_cdi:
        return ""
    if before.told and not before.effective.observing and injection(before.effective, inventory, existing).by_cdi:
        return ""
    elsewhere = cdi.toolkit_names(inventory, here.toolkit).keys()
    specs = cdi.specs(inventory, context.host, id_strategy=context.device_id_strategy, elsewhere=elsewhere)
    if not specs and cdi.present_units(inventory):
        return ""
    strategies = ", ".join(each for each in context.device_list_strategies if each in CDI_STRATEGIES)
    hint = f"cannot write {here.unwritable}; install the component cdi (manifests/components/cdi), or use envvar"
    return str(PlanError("injection.deviceListStrategies", strategies, hint))


def _made(effective: Effective, inventory: Inventory, verdicts: Mapping[str, Verdict], existing: Set[str]) -> Plan:
    if not effective.observing:
        effective.node.check(existing)
    return make_plan(inventory, verdicts, _plan_settings(effective))


def _plan_settings(effective: Effective) -> PlanSettings:
    return PlanSettings.from_sections(
        effective.sections, resource_prefix=effective.resource_prefix, mps_root=effective.node.mps_root
    )


def _unmatched(effective: Effective, inventory: Inventory, from_file: Set[str]) -> tuple[str, ...]:
    """Of a configuration that is in force, and so has a plan."""
    return unmatched(inventory, _plan_settings(effective), from_file)


def _plan(
    effective: Effective,
    inventory: Inventory,
    verdicts: Mapping[str, Verdict],
    last: Plan | None,
    existing: Set[str],
) -> tuple[Plan, str]:
    """The plan of what is in force; where it makes no sense with the devices of now, the last one and why."""
    try:
        return _made(effective, inventory, verdicts, existing), ""
    except PlanError as error:
        return refresh_health(last or Plan(), inventory, verdicts), str(error)
