"""The names and ids that a node would offer with another configuration, by the agent's own reckoning.

The agent's shape of the configuration in effect must be what the node shows; then its shape of the other configuration
says what would be. Where it is not (the node's own flags or files have a part in it, a change is still under way), the
names that may change are said, without a number, as a DryRun policy does (nodedevices_operator.desired.dry_run).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import orjson
from msgspec import Struct
from nodedevices_common.observing import OBSERVE
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_operator.desired.configuration import understood
from nodedevices_operator.desired.dry_run import id_changes
from nodedevices_operator.records.objects import NodeDevicesRecord, Note
from nodedevices_plugin.health import reasons
from nodedevices_plugin.model import Api, Inventory, OfferedResource, Plan, PlanError, Unmatched, device_names
from nodedevices_plugin.offering.occupancy import HeldId, decide_change, held_as, held_otherwise, not_in
from nodedevices_plugin.offering.shape import PlanSettings, fitting, make_shape, no_way_for_claims, staying
from nodedevices_plugin.offering.unmatched import unmatched, unmatched_rules
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.daemons import has_daemon
from nodedevices_plugin.vendors.registry import VENDORS

from nodedevices_dryrun import facts

_BY = {Api.DEVICE_PLUGIN: "plugin", Api.DRA: "dra"}  # status.resources[].managedBy
DECIDE_IDS = ("serving", "resources", "sharing", "partitions")  # as Effective.shape has them
INJECTION = "injection"


class ResourceChange(Struct, frozen=True):
    """Numbers of ids; `gone` and `added` differ from their difference where devices change places."""

    name: str
    before: int
    after: int
    gone: int
    added: int
    sharing: str  # as it would be
    by: str = "plugin"  # as status.resources[].managedBy would be
    formerly: str = ""  # as it is, where it would be another


class IdEffect(Struct, frozen=True):
    """`unknown`: why there are no numbers; then `names` are those that may change."""

    resources: tuple[ResourceChange, ...] = ()
    refused: str = ""  # why the agent would keep the configuration of now
    waits: str = ""  # why the change would wait as a whole
    waits_for: tuple[str, ...] = ()  # pods, namespace/name
    held_back: tuple[str, ...] = ()  # devices that go to no new pod until `pods` have ended
    pods: tuple[str, ...] = ()  # that hold what would no longer be offered to them
    unknown: str = ""
    names: tuple[str, ...] = ()
    unmatched: tuple[Note, ...] = ()  # entries without effect on the node
    assumes: str = ""  # what of the node has to be so, and is not known here


def id_effect(raw: Raw, record: NodeDevicesRecord, now: Mapping[str, Any], then: Mapping[str, Any]) -> IdEffect:
    """`now` and `then`: the node's configuration by policies, in wire form, without and with the change."""
    if all(now.get(name) == then.get(name) for name in (*DECIDE_IDS, INJECTION)):
        return IdEffect()
    status = mapping(raw.get("status"))
    inventory = facts.inventory(status)
    if why := _not_for_claims(status, inventory, then):
        return IdEffect(refused=why)
    if all(now.get(name) == then.get(name) for name in DECIDE_IDS):
        return IdEffect()
    before, after = _settings(now), _settings(then)
    current, _ = _fitting(inventory, before)
    doubt = _doubt(status, record, now, then)
    if not doubt and (current is None or _summary(current) != _shown(status)):
        doubt = "what it offers depends on its own flags or files, too, and not only on policies"
    if doubt or current is None:
        changes = id_changes(record, now, then)
        return IdEffect(unknown=doubt, names=tuple(sorted({*changes.names, *_shown(status)})), pods=changes.pods)
    wanted, misfit = _fitting(inventory, after)
    if wanted is None or misfit is not None:
        return IdEffect(refused=str(misfit))
    observes = after.serving.mode == OBSERVE
    holdings, ids = facts.holdings(status), facts.held(status)
    decision = decide_change(current, wanted, holdings, (), whole=observes)
    leaving = set(not_in(wanted, ids)) - set(not_in(current, ids))
    kept = () if observes else _held_back(current, wanted, ids, inventory)
    return IdEffect(
        resources=_changes(current, wanted),
        waits="" if decision.apply else decision.message,
        waits_for=_pods(decision.waits_for),
        held_back=tuple(kept),
        pods=_pods(held_id.holder for held_id in leaving),
        unmatched=_notes((*unmatched(inventory, after), *staying(wanted, after.serving))),
        assumes=_assumes(current, wanted),
    )


def rules_without_effect(raw: Raw, then: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return what of the rules of `health` and `faults` has no effect on the node: about no reason that there is,
    behind a rule that always comes first, or about devices of which the node has none. Reasons are those of the
    built-in vendors."""
    inventory, sections = facts.inventory(mapping(raw.get("status"))), understood(then).sections
    return _notes(
        (
            *reasons.unmatched(sections.health.rules, VENDORS.fault_sources()),
            *reasons.unmatched_faults(sections.faults.rules, VENDORS.fault_sources()),
            *unmatched_rules(inventory, sections),
        )
    )


def _notes(found: Iterable[Unmatched]) -> tuple[Note, ...]:
    return tuple(Note(entry.section, entry.entry, entry.text) for entry in found)


def _doubt(status: Raw, record: NodeDevicesRecord, now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """Return why the status does not say enough; empty: nothing of this kind."""
    own = ", ".join(_own_sources(status))
    ends = ", ".join(name for name in DECIDE_IDS if name in now and name not in then)
    observes = mapping(now.get("serving")).get("mode") == OBSERVE
    doubts = {
        "its agent has not applied the current configuration yet": record.config_hash != record.applied_hash,
        "it does not have the result of the current policies yet": any(
            (record.config or {}).get(name) != now.get(name) for name in DECIDE_IDS
        ),
        "its object has no room for all partitions": status.get("partitionsTruncated"),
        "another plugin serves its kubelet now (serving.mode Observe)": observes,
        f"{ends} would come from its own {own}, which are not known here": own and ends,
    }
    return next((doubt for doubt, there in doubts.items() if there), "")


def _own_sources(status: Raw) -> list[str]:
    """Return where the node has settings from beside policies: its flags, variables and files."""
    sources = mapping(status.get("configuration")).get("sources")
    return [str(source) for source in sources if source != "policy"] if isinstance(sources, list) else []


def _not_for_claims(status: Raw, inventory: Inventory, then: Mapping[str, Any]) -> str:
    """Return why the agent would refuse to serve by DRA with this injection; empty: it would not, or flags and files of
    the node, which are not known here, set that."""
    sections = understood(then).sections
    if sections.serving.api != Api.DRA.value or (INJECTION not in then and _own_sources(status)):
        return ""
    return no_way_for_claims(sections.injection.device_list_strategies, inventory, VENDORS)


def _assumes(current: Plan, wanted: Plan) -> str:
    """Return the component that MPS daemons, or DRA, need where the node has none yet; whether it is there no status
    says."""
    have, want = (any(has_daemon(resource) for resource in plan.resources) for plan in (current, wanted))
    if want and not have:
        return mps.NAME
    return "dra" if wanted.by(Api.DRA).resources and not current.by(Api.DRA).resources else ""


def _settings(config: Mapping[str, Any]) -> PlanSettings:
    return _read(orjson.dumps({name: config[name] for name in DECIDE_IDS if name in config}))


@lru_cache(256)  # a fleet has few different ones
def _read(config: bytes) -> PlanSettings:
    return PlanSettings.from_sections(understood(orjson.loads(config)).sections, modes=Settings(mps_root="not known"))


def _fitting(inventory: Inventory, settings: PlanSettings) -> tuple[Plan | None, PlanError | None]:
    """As the agent does: the plan, without the devices that it does not fit, and why where one of these is here."""
    return fitting(inventory, partial(make_shape, settings=settings))


def _summary(plan: Plan) -> dict[str, tuple[object, ...]]:
    return {
        resource.name: (len(resource.ids), resource.sharing.name, resource.sharing.replicas, _BY[resource.api])
        for resource in plan.resources
    }


def _shown(status: Raw) -> dict[str, tuple[object, ...]]:
    return {
        text(resource.get("name")): (
            resource.get("capacity"),
            text(resource.get("sharing")),
            resource.get("replicas"),
            resource.get("managedBy"),
        )
        for resource in mappings(status.get("resources"))
        if resource.get("managedBy") in _BY.values()
    }


def _changes(current: Plan, wanted: Plan) -> tuple[ResourceChange, ...]:
    before, after = held_as(current), held_as(wanted)
    sharing = {resource.name: _how(resource) for plan in (current, wanted) for resource in plan.resources}
    by = {resource.name: _BY[resource.api] for plan in (current, wanted) for resource in plan.resources}
    formerly = {resource.name: _BY[resource.api] for resource in current.resources}
    return tuple(
        ResourceChange(
            name=name,
            before=len(was),
            after=len(will),
            gone=len(was - will),
            added=len(will - was),
            sharing=sharing[name],
            by=by[name],
            formerly="" if formerly.get(name, by[name]) == by[name] else formerly[name],
        )
        for name in sorted({*before, *after})
        for was, will in [(before.get(name, frozenset()), after.get(name, frozenset()))]
        if was != will
    )


def _how(resource: OfferedResource) -> str:
    sharing = resource.sharing
    return f"{sharing.name}, {sharing.replicas} each" if sharing.replicas else sharing.name


def _held_back(current: Plan, wanted: Plan, ids: Sequence[HeldId], inventory: Inventory) -> list[str]:
    """Return the devices that the change would withhold from new pods, by name."""
    already = {held_id.device_id for held_id in held_otherwise(current, ids, inventory)}
    offered = {schedulable.device_id for resource in wanted.resources for schedulable in resource.ids}
    devices = sorted({held_id.device_id for held_id in held_otherwise(wanted, ids, inventory)} & offered - already)
    called = device_names(inventory)
    return [called.get(device, device) for device in devices]


def _pods(pods: Any) -> tuple[str, ...]:
    return tuple(sorted({pod for pod in pods if pod}))
