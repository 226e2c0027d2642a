"""Decides how containers get the devices that they are granted, injection and CDI; and which MPS daemons a plan awaits
before their shares are offered, and the pods that these wait for: where a plan meets the node.

A CDI name must be in a file before it is handed out, and the file must have the driver's libraries where its devices
need them, unless the configuration allows device nodes alone. So a configuration with CDI names is refused where there
is no such file. One that is in effect already goes on with the last good file; without one its devices are withheld.
Each vendor decides which files of ours are needed, and how a program makes them (vendors.cdi); host.cdi_keeper runs the
programs and writes the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress

from msgspec import Struct, field

from nodedevices_plugin.gates.base import NoSpecification
from nodedevices_plugin.granting.answers import NodeContainers, node_containers
from nodedevices_plugin.model import Holder, Holdings, Inventory, Offer, OfferedResource, Plan, PlanError
from nodedevices_plugin.offering.occupancy import ChangeDecision, wait, when_free
from nodedevices_plugin.pipeline.configuration import ConfigProblem
from nodedevices_plugin.pipeline.foreign import DeviceIndex, offered_text, other_plugins
from nodedevices_plugin.settings.effective import Effective
from nodedevices_plugin.sharing import daemons, mps
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.vendors import cdi
from nodedevices_plugin.vendors.base import FolderFiles, NodeView
from nodedevices_plugin.vendors.cdi import STRATEGIES, CdiEnvironment, CdiNeeds, SpecRequest


class Access(Struct, frozen=True, kw_only=True):
    """How containers get devices, by the configuration in effect and the current devices.

    containers: what each needs for what it is granted. cdi: by vendor, where containers get devices by CDI name. files:
    the files that vendors keep on the node for other programs.
    """

    containers: NodeContainers = field(default_factory=NodeContainers)
    cdi: Mapping[str, CdiNeeds] = field(default_factory=dict)
    files: tuple[FolderFiles, ...] = ()


class Devices(Struct, frozen=True, kw_only=True):
    """The node's devices, its optional device nodes (host.machine), and its CDI environments, by vendor."""

    inventory: Inventory
    existing: Set[str]
    cdi: Mapping[str, CdiEnvironment]
    mount_dirs: tuple[str, ...] = ()  # which the node's flag allows policies to mount

    def found(self, vendor: str) -> CdiEnvironment:
        return self.cdi.get(vendor) or CdiEnvironment()


def access(effective: Effective, devices: Devices, plan: Plan | None = None) -> Access:
    """Return the access for a configuration that is in effect, or may be. `plan`: what is offered."""
    containers = node_containers(
        devices.inventory,
        effective.sections.injection,
        existing=devices.existing,
        values=effective.values,
        cdi=devices.cdi,
        modes=mode_settings(effective, devices),
    )
    files = _files(effective, devices, plan) if plan is not None else ()
    return Access(containers=containers, cdi=_needs(effective, devices), files=files)


def mode_settings(effective: Effective, devices: Devices) -> Settings:
    """The node's flags that sharing modes read."""
    return Settings(mps_root=effective.node.mps_root, mount_dirs=devices.mount_dirs)


def _files(effective: Effective, devices: Devices, plan: Plan) -> tuple[FolderFiles, ...]:
    every = effective.vendors.every
    kept = (vendor.node_files(plan.resources, _view(vendor.name, effective, devices)) for vendor in every)
    return tuple(files for files in kept if files is not None)


def check(effective: Effective, devices: Devices) -> None:
    """Raises PlanError where something that a vendor's flags require is not on the node."""
    for vendor in effective.vendors.every:
        vendor.check(_view(vendor.name, effective, devices))


def missing_nodes(
    active: Effective | None, requested: Effective | None, devices: Devices
) -> dict[str, tuple[str, ...]]:
    """Return by device the nodes that its containers are to get and that are not there. In Observe another plugin gives
    them. `requested`: counts where none is in effect yet, unless it waits for such nodes itself."""
    effective = active or requested
    if effective is None or effective.observing:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    with suppress(PlanError):
        if active is None:
            check(effective, devices)
        for vendor in effective.vendors.every:
            found |= vendor.missing_nodes(_view(vendor.name, effective, devices))
    return found


def uses_cdi(effective: Effective | None) -> bool:
    """True when containers get their devices by CDI name, from us."""
    if effective is None or effective.observing:
        return False
    return not STRATEGIES.isdisjoint(effective.sections.injection.device_list_strategies)


def refusal(active: Effective | None, requested: Effective, devices: Devices) -> PlanError | None:
    """Return why the requested configuration would give containers CDI names that no file has, or devices without the
    driver's libraries. None: it would not, or the configuration in effect does so already; that is reported elsewhere
    (`without_libraries`, host.cdi_files).

    active: the configuration in effect; None: there is none yet.
    """
    before = _needs(active, devices)
    needs = _needs(requested, devices).items()
    or_else = "" if requested.by_dra else ", or use envvar"
    reasons = (_refused(need, before.get(name), devices.found(name), or_else=or_else) for name, need in needs)
    why = next(filter(None, reasons), "")
    listed = requested.sections.injection.device_list_strategies
    strategies = ", ".join(strategy for strategy in listed if strategy in STRATEGIES)
    return PlanError("injection.deviceListStrategies", strategies, why) if why else None


def _refused(needs: CdiNeeds, before: CdiNeeds | None, found: CdiEnvironment, *, or_else: str) -> str:
    """`before`: of the configuration in effect; None: in it containers get no device by CDI name. `or_else`: what else
    than a CDI file would do, if anything."""
    if before is None and found.unwritable and (needs.specs or not needs.present):
        return f"cannot write {found.unwritable}; install the component cdi (manifests/components/cdi){or_else}"
    if needs.nodes_will_do or (before is not None and not before.nodes_will_do):
        return ""
    return cdi.missing(needs.specs, found, active=before is not None)


def stale(active: Effective, devices: Devices) -> str:
    """Return what is wrong with the source of the libraries while the last good one is used. Empty: nothing."""
    needs = _needs(active, devices).items()
    found = (cdi.stale(need.specs, devices.found(name)) for name, need in needs if not need.nodes_will_do)
    return "; ".join(filter(None, found))


def without_libraries(active: Effective | None, devices: Devices) -> tuple[NoSpecification, ...]:
    """Return by vendor why devices of the configuration in effect would come without the driver's libraries, and which
    these are (gates.reasons.no_specification)."""
    return tuple(
        NoSpecification(
            why=why,
            devices=frozenset(
                device.fact.id
                for device in devices.inventory.devices
                if active is not None and active.vendors.vendor_of(device.fact).name == name
            ),
            elsewhere=frozenset(need.elsewhere),
        )
        for name, need in _needs(active, devices).items()
        if not need.nodes_will_do and (why := cdi.missing(need.specs, devices.found(name), active=True))
    )


def without_name(active: Effective | None, devices: Devices) -> tuple[NoSpecification, ...]:
    """Return the devices of the configuration in effect that no CDI specification names as a whole, by vendor."""
    parts = frozenset(unit.id for unit in devices.inventory.units if unit.partition is not None)
    return tuple(
        NoSpecification(why=need.unnamed_because, devices=need.unnamed, elsewhere=parts)
        for need in _needs(active, devices).values()
        if need.unnamed
    )


def program_requests(
    active: Effective | None, requested: Effective | None, devices: Devices
) -> Mapping[str, SpecRequest]:
    """Return what vendors' programs have to make before a decision: for a configuration that would be refused, or
    devices that would be withheld, without it."""
    lacking = requested if requested is not None and refusal(active, requested, devices) is not None else None
    if lacking is None and without_libraries(active, devices):
        lacking = active
    return {name: need.request for name, need in _needs(lacking, devices).items() if need.request is not None}


def _view(vendor: str, effective: Effective, devices: Devices) -> NodeView:
    return NodeView(
        inventory=devices.inventory,
        injection=effective.sections.injection,
        existing=devices.existing,
        local=effective.node.vendors.get(vendor),
        files=effective.node.files,
        cdi=devices.found(vendor),
    )


def _needs(effective: Effective | None, devices: Devices) -> dict[str, CdiNeeds]:
    """Return by vendor what is needed for CDI; nothing where containers get no device by CDI name from us."""
    if effective is None or not uses_cdi(effective):
        return {}
    vendors = effective.vendors.cdi_vendors()
    return {name: vendor.cdi(_view(name, effective, devices)) for name, vendor in vendors.items()}


# --- MPS daemons that a plan awaits ----------------------------------------------------------------------------------
class Awaited(Struct, frozen=True, kw_only=True):
    """The MPS daemons that one plan awaits. `unanswered`: the resources with daemons that are not ready; `problem`:
    which one is not, and its status; None: all are."""

    unanswered: tuple[OfferedResource, ...]
    daemons: tuple[mps.MpsDaemon, ...]
    problem: ConfigProblem | None


def awaited(
    plan: Plan, inventory: Inventory, holdings: Holdings, facts: daemons.MpsFacts, not_ours: Set[str]
) -> Awaited:
    """Return what this plan awaits. `not_ours`: resources that another plugin serves: its pods are no clients of a
    daemon of ours.

    But a daemon that runs stays while pods hold its shares: they may be its clients, from before that plugin came.
    """
    held = {(resource, id_) for resource, ids in holdings.held for id_ in ids}

    def in_use(resource: OfferedResource) -> bool:
        runs = not daemons.unanswered(Plan(resources=(resource,)), facts.statuses)
        return runs and (
            not holdings.known or any((resource.name, schedulable.id) in held for schedulable in resource.ids)
        )

    ours = Plan(
        resources=tuple(resource for resource in plan.resources if resource.name not in not_ours or in_use(resource))
    )
    missing = daemons.unanswered(ours, facts.statuses)
    problem = None
    if missing:
        problem = ConfigProblem(
            source=mps.NAME,
            field=daemons.requested_by(missing[0]),
            message=daemons.silent(missing[0], facts.statuses),
            waits=daemons.starting(ours, facts.statuses),
            awaits=len(missing),
        )
    return Awaited(unanswered=missing, daemons=daemons.wanted(ours, inventory), problem=problem)


def known_clients(plan: Plan, inventory: Inventory, facts: daemons.MpsFacts) -> frozenset[tuple[str, str]]:
    """Return resource and id of the shares with an unchanged daemon since the agent's run before this one: pods that
    hold them are its clients."""
    same = {daemon.resource for daemon in daemons.wanted(plan, inventory) if daemon in facts.before}
    return daemons.client_ids(Plan(resources=tuple(resource for resource in plan.resources if resource.name in same)))


def may_start(
    missing: Sequence[OfferedResource], holdings: Holdings, index: DeviceIndex, *, clients: Collection[tuple[str, str]]
) -> ChangeDecision:
    """Decide whether the daemons of these resources may be started: not while pods that are not their clients hold
    their devices. `clients`: resource and id of the shares whose pods are known to be clients."""
    if not missing:
        return ChangeDecision(apply=True)
    devices = {schedulable.device_id for resource in missing for schedulable in resource.ids}

    def beside(held: Holder | Offer) -> bool:
        strangers = (id_ for id_ in held.ids if (held.resource, id_) not in clients)
        parts = (index.named(held.resource, id_) for id_ in strangers)
        return any(part is not None and part.device_id in devices for part in parts)

    return when_free(_sharing(missing), holdings, beside)


def may_begin(
    missing: Sequence[OfferedResource], wanted: Plan, holdings: Holdings, index: DeviceIndex
) -> ChangeDecision:
    """Decide the same where nothing is registered yet: not while another plugin offers these devices.

    The guard would find that plugin only when the daemons answer. Where the kubelet does not answer, no plugin is
    assumed.
    """
    offers = {
        plugin.resource: plugin
        for resource in missing
        for plugin in other_plugins(resource.name, wanted, holdings.offered or (), index, own=())
    }
    if why := offered_text(tuple(offers.values())):
        return wait(f"{_sharing(missing)} waits: {why}")
    return ChangeDecision(apply=True)


def _sharing(shared: Sequence[OfferedResource]) -> str:
    return f"sharing {', '.join(resource.name for resource in shared)} by MPS"
