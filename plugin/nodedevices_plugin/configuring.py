"""Which configuration is in force, and what ConfigApplied says. Pure.

The last good one stays until another one is known to be good and makes sense on this node. Then what has no ids takes
effect at once (Effective.shape); what decides which ids are offered does when the state file has it, so that a restart
comes back with the same ids, and when nothing that it changes has to wait for pods (resources.changes). Devices that
pods hold in another shape are withheld from new ones whatever is in force (resources.occupancy).

Where there never was a good one (a first start with a bad file), nothing is offered until there is: other names or
numbers than those meant would be worse. For the same reason a node that remembers none waits a while for the
operator's word before it registers. What is asked for is compared with what is in force at every step, so nothing has
to be remembered about an attempt: a file that is corrected, a pod that ends or a device that appears is enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from nodedevices_api import conditions as names
from nodedevices_api.sections import SECTION_NAMES
from nodedevices_common.errors import InputError

from nodedevices_plugin import access
from nodedevices_plugin.awaiting import Awaited, awaited, known_clients, may_begin, may_start
from nodedevices_plugin.device_names import device_names
from nodedevices_plugin.foreign import Names, take_over
from nodedevices_plugin.health import reasons
from nodedevices_plugin.model import (
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    Plan,
    PlanError,
    RecentAllocate,
    Refused,
    Unmatched,
    Verdict,
    WaitingPod,
)
from nodedevices_plugin.report import ConfigStatus, listing
from nodedevices_plugin.resources.changes import ChangeDecision, changed_ids, decide_change, drained, pods_named
from nodedevices_plugin.resources.occupancy import Held, protect
from nodedevices_plugin.resources.plan import PlanSettings, make_plan, refresh_health
from nodedevices_plugin.resources.unmatched import unmatched
from nodedevices_plugin.settings.effective import Effective, resolve
from nodedevices_plugin.settings.file import FileConfig
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.problems import ConfigError
from nodedevices_plugin.sharing.base import Helper, HelperFacts
from nodedevices_plugin.sharing.helpers import shares, withheld
from nodedevices_plugin.state import SeenSpec
from nodedevices_plugin.vendors.nvidia.cdi import Here


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
    field: str = ""  # which field of `spec.config` the error is about, where it is known
    source: str = ""  # file | spec: what has to be corrected
    sources: tuple[str, ...] = ()  # where the configuration comes from, strongest first
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
class Node:
    """What the decision sees of the node, beside what is asked for."""

    inventory: Inventory
    verdicts: Mapping[str, Verdict]
    holdings: Holdings
    unlisted: Sequence[RecentAllocate]  # Allocates that PodResources has not shown yet
    held: Sequence[Held]  # all ids of our devices that these and `holdings` tell of (foreign.held)
    last_plan: Plan | None
    offered: Set[str]  # names that the kubelet has of us
    saved: Effective | None  # the configuration in the state file, as far as it is known to be written
    unsaved_because: str  # why the state file cannot be written
    awaits: str  # why nothing may be registered yet where no configuration is remembered; empty: it may
    existing: Set[str]  # the optional device nodes (vendors.nvidia.nodes)
    helpers: HelperFacts  # what needs a helper takes effect when that answers
    # Names of the plan that another plugin serves to the kubelet; what pods hold of them is not ours, and no change of
    # ours takes it away.
    not_ours: Set[str]
    cdi_here: Here  # CDI names are handed out where files that have them can be written

    @property
    def devices(self) -> access.Devices:
        """As it matters for how containers get them."""
        return access.Devices(inventory=self.inventory, existing=self.existing, here=self.cdi_here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The outcome of one step. `plan` None: there was no good configuration yet.

    `to_save`: the configuration that the state file should have: the one in force, or one that waits for nothing else.
    """

    in_force: InForce
    to_save: Effective | None
    plan: Plan | None
    status: ConfigStatus
    refused: str = ""  # file | spec | plan | cdi | a sharing mode: what was refused; empty: nothing
    saving: bool = False  # `to_save` is only waited for: nothing worth telling yet
    # Needed for what is in force, or waited for by what is asked for; None: nobody knows yet, and what runs stays.
    helpers: tuple[Helper, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    """Why what is asked for is not in force, or what is in force does not do what it says."""

    of: str  # as Configured.refused; holders: it waits for pods; operator: for its word; state: to be saved
    message: str
    field: str = ""  # of the sections, where one is at fault
    waiting_for: tuple[Holder, ...] = ()
    waits: bool = False  # nothing is refused: it takes effect by itself
    awaits: int = 0  # of so many resources the helper of the sharing mode `of` is not ready
    coming: tuple[Helper, ...] | None = None  # helpers that what is asked for waits for
    to_save: Effective | None = None  # it waits for nothing but the state file
    takes_away: Plan | None = None  # the plan that it waits for: what that does not have goes to no new pod


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """What is in force, with the devices of now."""

    plan: Plan | None = None
    helpers: tuple[Helper, ...] | None = None
    clients: Set[tuple[str, str]] = frozenset()  # resource and id of the shares whose pods are a helper's clients
    trouble: _Trouble | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is asked for, and makes sense here."""

    effective: Effective
    plan: Plan
    helpers: tuple[Helper, ...] = ()


def ask(local: Local, file: FileOutcome, spec: SeenSpec | None) -> Asked:
    """What is asked for now. `spec`: the latest that the operator resolved, None for none ever."""
    if file.error is not None:
        return Asked(error=f"{file.place or f'configuration file {local.config_file}'}: {file.error}", source="file")
    note = file.place
    if local.config_dir is None and spec is not None and spec.config_name:
        note = (
            f"the Node's label nvidia.com/device-plugin.config names the configuration {spec.config_name!r}, and no "
            "folder of configurations is mounted here (--config-dir): the label changes nothing; install the component "
            "named-configs (manifests/components/named-configs), or remove the label"
        )
    given = spec.config if spec is not None else {}
    by = {"policy": bool(given), **dict.fromkeys(local.sources, True), "file": file.config is not None}
    sources = tuple(name for name, says in by.items() if says)
    from_file = frozenset(
        name for name in ("resources", "sharing") if getattr(file.config, name, None) is not None and name not in given
    )
    try:
        effective = resolve(local, file.config, spec.config if spec is not None else None)
        return Asked(effective=effective, note=note, from_file=from_file, sources=sources)
    except ConfigError as error:
        return Asked(error=str(error), field=error.field, source="spec", sources=sources)
    except InputError as error:
        return Asked(error=str(error), field=error.place, source="spec", sources=sources)


def refusal(field: str, message: str) -> Refused:
    """What is refused, with the section that the field stands in, if it stands in one."""
    section = re.split(r"[.:\[]", field, maxsplit=1)[0]
    return Refused(section=section if section in SECTION_NAMES else "", field=field, message=message)


def configure(
    before: InForce,
    asked: Asked,
    node: Node,
    *,
    spec: SeenSpec | None,
    seen: SeenObject | None,
    standalone: bool,
) -> Configured:
    """The configuration and the plan from now on."""
    wanted = _wanted(before, asked, node)
    if before.told and isinstance(wanted, _Change):  # what has no ids waits for nothing
        before = replace(before, effective=wanted.effective.in_shape_of(before.effective))
    running = _running(before, node)
    change = wanted if isinstance(wanted, _Trouble) else _change(before, wanted, running, node)
    new_hash = spec.config_hash if spec is not None else None
    after, plan, helpers, trouble = before, running.plan, running.helpers, running.trouble
    match change:
        case _Change():
            after = InForce(effective=change.effective, applied_hash=new_hash, told=True)
            plan, helpers, trouble = change.plan, change.helpers, None
        case _Trouble():
            trouble = change
            if plan is not None and change.takes_away is not None:
                plan = drained(plan, change.takes_away, node.held)
        case None if trouble is None:
            after = replace(before, applied_hash=new_hash)
    if trouble is not None and trouble.coming is not None:
        named = {each.resource for each in trouble.coming}
        helpers = (*trouble.coming, *(each for each in helpers or () if each.resource not in named))
    status = ConfigStatus(
        reason=names.APPLIED,
        generation=seen.generation if seen is not None else None,
        unschedulable=seen.unschedulable if seen is not None else (),
        applied_hash=after.applied_hash,
        sources=asked.sources,
    )
    strangers: tuple[Held, ...] = ()
    if plan is not None and not after.effective.observing:
        plan, strangers = protect(plan, node.held, node.inventory, node.verdicts, names=node.offered)
    if trouble is not None and trouble.of == "operator":
        status = replace(status, reason=names.NO_CONFIG, message=trouble.message)
    elif trouble is not None:
        status = replace(
            status,
            reason=_reason(trouble),
            message=_told(trouble, after),
            refused=refusal(trouble.field, trouble.message) if not trouble.waits else None,
            waiting_for=_holding(trouble.waiting_for),
            waiting_for_helpers=trouble.awaits if not trouble.waiting_for else 0,
        )
    elif plan is not None and (withheld_for := _ours(strangers, plan, node)):
        waits, pods = _waits(withheld_for, node), _in_another_shape(withheld_for)
        status = replace(status, reason=names.WAITING_FOR_HOLDERS, message=waits, waiting_for=pods)
    elif not standalone and (seen is None or seen.config is None):
        kept = "the last one that it had" if spec is not None else "the node's own settings"
        message = f"the operator has not resolved this node: {kept} are in force"
        status = replace(status, reason=names.NO_CONFIG, message=message)
    elif asked.note:
        status = replace(status, message=asked.note)
    if trouble is None:
        status = replace(status, unmatched=_unmatched(after.effective, node.inventory, asked.from_file))
    to_save = trouble.to_save if trouble is not None else None
    configured = Configured(
        in_force=after,
        to_save=to_save or (after.effective if after.told else None),
        plan=withheld(plan, node.last_plan, node.helpers.answers) if plan is not None else None,
        status=status,
        refused="" if trouble is None or trouble.waits else trouble.of,
        saving=to_save is not None and not node.unsaved_because,
        helpers=helpers,
    )
    return _with_cdi(configured, node)


def _reason(trouble: _Trouble) -> str:
    if not trouble.waits:
        return names.CONFIG_INVALID
    if trouble.of == "state":
        return names.STATE_NOT_SAVED
    return names.WAITING_FOR_DAEMON if trouble.awaits and not trouble.waiting_for else names.WAITING_FOR_HOLDERS


def _ours(strangers: Sequence[Held], plan: Plan, node: Node) -> list[Held]:
    """What is held in another shape of devices that are withheld for it.

    Not those that are not to be offered at all (excluded), nor those that another plugin serves: its pods are no
    business of our configuration.
    """
    theirs = {each.device_id for each in node.held if each.resource in node.not_ours}
    offered = {each.device_id for resource in plan.resources for each in resource.ids}
    return [each for each in strangers if each.device_id in offered - theirs]


def _waits(ours: Sequence[Held], node: Node) -> str:
    """For people."""
    held = {each.device_id for each in ours}
    called = device_names(node.inventory)
    devices = listing(called[each.fact.id] for each in node.inventory.devices if each.fact.id in held)
    pods = pods_named([each.holder for each in ours if each.holder])
    who = f"these pods have ended: {pods}" if pods else "their pods, which the kubelet does not list yet, have ended"
    return f"{devices}: held in another shape, and withheld from new pods until {who}; all else is in force"


def _in_another_shape(ours: Sequence[Held]) -> tuple[WaitingPod, ...]:
    """Their pods, as far as they are known."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in ours:
        if each.holder:
            found.setdefault((each.holder, each.resource or ""), []).append(each.id)
    return tuple(
        WaitingPod(namespace=namespace, pod=pod, resource=resource, ids=tuple(sorted(ids)))
        for (holder, resource), ids in sorted(found.items())
        for namespace, _, pod in [holder.partition("/")]
    )


def _holding(holders: Sequence[Holder]) -> tuple[WaitingPod, ...]:
    """A pod's containers together."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for each in holders:
        found.setdefault((each.namespace, each.pod, each.resource or ""), set()).update(each.ids)
    return tuple(
        WaitingPod(namespace=namespace, pod=pod, resource=resource, ids=tuple(sorted(ids)))
        for (namespace, pod, resource), ids in sorted(found.items())
    )


def _wanted(before: InForce, asked: Asked, node: Node) -> _Change | _Trouble:
    """What is asked for, with its plan, or why it cannot be."""
    if asked.effective is None:
        return _Trouble(of=asked.source, field=asked.field, message=asked.error or "")
    if why := access.refusal(before.effective if before.told else None, asked.effective, node.devices):
        return _Trouble(of="cdi", field=why.field, message=str(why))
    if not before.told and node.awaits and not asked.effective.observing:
        return _Trouble(of="operator", message=node.awaits, waits=True)
    try:
        return _Change(effective=asked.effective, plan=_made(asked.effective, node))
    except PlanError as error:
        return _Trouble(of="plan", field=error.field, message=str(error))


def _running(before: InForce, node: Node) -> _Running:
    """What is in force where it was told before; nothing at a first start."""
    if not before.told:
        return _Running()
    plan, why = _plan(before.effective, node)
    clients, needs = shares(plan), _awaited(plan, node)
    helpers = needs.helpers if plan.resources or not why else None
    if why:
        trouble = _Trouble(of="plan", field=why.field, message=str(why))
        return _Running(plan=plan, helpers=helpers, clients=clients, trouble=trouble)
    if not needs.why:
        return _Running(plan=plan, helpers=helpers, clients=clients)
    ids = Names(node.inventory, index_prefix=before.effective.index_prefix)
    start = may_start(needs.unanswered, node.holdings, ids, clients=clients)
    if start.waiting_for:  # not where nobody knows: after a restart helpers are wanted at once
        trouble = replace(_helpers_await(needs), message=start.message, waits=True, waiting_for=start.waiting_for)
        return _Running(plan=plan, clients=clients, trouble=trouble)
    return _Running(plan=plan, helpers=helpers, clients=clients, trouble=_helpers_await(needs))


def _helpers_await(needs: Awaited) -> _Trouble:
    """Some helpers are not ready."""
    count = len(needs.unanswered)
    return _Trouble(of=needs.mode, field="sharing.strategy", message=needs.why, waits=needs.starting, awaits=count)


def _change(before: InForce, wanted: _Change, running: _Running, node: Node) -> _Change | _Trouble | None:
    """What is asked for, or why it cannot take effect; None: it is in force."""
    asked, plan = wanted.effective, wanted.plan
    if before.told and asked.shape == before.effective.shape:
        return None
    needs = _awaited(plan, node)
    decision = _may(before, asked, plan, needs=needs, running=running, node=node)
    if not decision.apply:
        known = node.holdings.state is HoldersState.SYNCED
        shown = plan if known and not asked.observing else None
        waiting_for = decision.waiting_for
        return _Trouble(of="holders", message=decision.message, waits=True, waiting_for=waiting_for, takes_away=shown)
    if needs.why:
        return replace(_helpers_await(needs), coming=needs.helpers)
    if before.told and (node.saved is None or node.saved.shape != asked.shape):
        what = ", ".join(sorted(changed_ids(running.plan or Plan(), plan))) or "what is offered"
        message = (
            f"the change of {what} waits until the state file has it: {node.unsaved_because or 'it is being written'}"
        )
        return _Trouble(of="state", message=message, waits=True, to_save=asked)
    return replace(wanted, helpers=needs.helpers)


def _may(
    before: InForce,
    asked: Effective,
    wanted: Plan,
    *,
    needs: Awaited,
    running: _Running,
    node: Node,
) -> ChangeDecision:
    """Whether it may be in force at once, but for the devices that pods hold."""
    ids = Names(node.inventory, index_prefix=(before.effective if before.told else asked).index_prefix)
    clients = running.clients
    if not before.told:
        decision = may_begin(needs.unanswered, wanted, node.holdings, ids)
        clients = known_clients(wanted, node.inventory, node.helpers)
    elif before.effective.observing and not asked.observing:
        decision = take_over(wanted, node.holdings, ids)
    else:
        resources = running.plan.resources if running.plan is not None else ()
        current = Plan(resources=tuple(each for each in resources if each.name not in node.not_ours))
        decision = decide_change(current, wanted, node.holdings, node.unlisted, whole=asked.observing)
    return may_start(needs.unanswered, node.holdings, ids, clients=clients) if decision.apply else decision


def _told(trouble: _Trouble, after: InForce) -> str:
    """For people: what is the matter, and what holds meanwhile."""
    if trouble.of in {"holders", "state"}:
        return trouble.message
    if trouble.awaits and trouble.coming is None:
        meanwhile = "its shares are withheld until it answers"
    elif not after.told:
        meanwhile = "nothing is offered until " + ("it answers" if trouble.awaits else "there is a good one")
    else:
        meanwhile = "the last good one stays in force" + (" until it answers" if trouble.awaits else "")
    return f"{trouble.message}; {meanwhile}"


def _awaited(plan: Plan, node: Node) -> Awaited:
    return awaited(plan, node.inventory, node.holdings, node.helpers, node.not_ours)


def _with_cdi(configured: Configured, node: Node) -> Configured:
    """With what CDI does to what is in force: devices that containers would get without the driver's libraries are
    withheld, and a source of these that broke is named while the last good one is used."""
    plan, status = configured.plan, configured.status
    active = configured.in_force.effective if configured.in_force.told else None
    if plan is None or active is None:
        return configured
    why = access.missing(active, node.devices)
    if not why:
        return replace(configured, status=replace(status, cdi_trouble=access.stale(active, node.devices)))
    status = replace(status, cdi_trouble=f"CDI: {why}; what it is missing for is withheld until then")
    if status.reason in {names.APPLIED, names.NO_CONFIG}:
        status = replace(status, reason=names.CONFIG_INVALID, refused=Refused(message=status.cdi_trouble))
    withheld = access.withheld(plan, node.last_plan, node.devices)
    return replace(configured, plan=withheld, status=status, refused=configured.refused or "cdi")


def _made(effective: Effective, node: Node) -> Plan:
    if not effective.observing:
        effective.node.check(node.existing)
    return make_plan(node.inventory, node.verdicts, _plan_settings(effective))


def _plan_settings(effective: Effective) -> PlanSettings:
    return PlanSettings.from_sections(
        effective.sections, resource_prefix=effective.resource_prefix, modes=effective.node.sharing_modes
    )


def _unmatched(effective: Effective, inventory: Inventory, from_file: Set[str]) -> tuple[Unmatched, ...]:
    """Of a configuration that is in force, and so has a plan."""
    rules = effective.sections.health.rules
    return (*unmatched(inventory, _plan_settings(effective), from_file), *reasons.unmatched(rules))


def _plan(effective: Effective, node: Node) -> tuple[Plan, PlanError | None]:
    """The plan of what is in force; where it makes no sense with the devices of now, the last one and why."""
    try:
        return _made(effective, node), None
    except PlanError as error:
        return refresh_health(node.last_plan or Plan(), node.inventory, node.verdicts), error
