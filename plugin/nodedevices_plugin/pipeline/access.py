"""How containers get the devices that they are granted: what decides about injection and CDI. Pure.

A CDI name must be in a file before it is handed out, and the file must bring the driver's libraries along, unless
somebody said that device nodes will do. So a configuration that hands out CDI names is refused where no such file can
be had, and what is in effect already goes on with the last good one; where there is none, its devices are withheld.
Which files of ours are needed, and how `nvidia-ctk` is to be asked for them, follows from the configuration and the
devices. Asking and writing are cdikeeper's matter.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from nodedevices_api.sections import Injection

from nodedevices_plugin.model import Inventory, Plan, PlanError
from nodedevices_plugin.resources.containers import NodeContainers, node_containers
from nodedevices_plugin.settings.effective import Effective
from nodedevices_plugin.vendors.nvidia import cdi, cdi_libraries
from nodedevices_plugin.vendors.nvidia.cdi import CdiEnvironment, CdiSpec, CtkRequest
from nodedevices_plugin.vendors.nvidia.injection import CDI_STRATEGIES, Local
from nodedevices_plugin.vendors.nvidia.units import TYPES as NVIDIAS_TYPES
from nodedevices_plugin.vendors.nvidia.units import VENDOR as NVIDIA


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What follows for containers from the configuration in effect and the devices of now.

    containers: what each needs for what it is granted. specs: the CDI specifications of ours that are needed, as device
    nodes. request: how nvidia-ctk makes that of the GPUs; None: it is not needed. nodes_will_do: without the driver's
    libraries, if there is no way to have them.
    """

    containers: NodeContainers = field(default_factory=NodeContainers)
    specs: tuple[CdiSpec, ...] = ()
    request: CtkRequest | None = None
    nodes_will_do: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What there is on the node: devices, optional device nodes (host.paths), and what CDI finds."""

    inventory: Inventory
    existing: Set[str]
    environment: CdiEnvironment


def access(effective: Effective, devices: Devices) -> Access:
    """Of a configuration that is in effect."""
    containers = node_containers(
        devices.inventory,
        effective.sections.injection or Injection(),
        existing=devices.existing,
        local={NVIDIA: _nvidia(effective, devices)},
        modes=effective.node.sharing_modes,
    )
    if not uses_cdi(effective):
        return Access(containers=containers)
    specs = _specs(effective, devices)
    return Access(
        containers=containers,
        specs=specs,
        request=_request(effective, devices, specs),
        nodes_will_do=effective.node.cdi_without_libraries,
    )


def uses_cdi(effective: Effective | None) -> bool:
    """Whether containers get their devices by CDI name, from us."""
    if effective is None or effective.observing:
        return False
    listed = (effective.sections.injection or Injection()).device_list_strategies
    return not CDI_STRATEGIES.isdisjoint(listed)


def refusal(active: Effective | None, requested: Effective, devices: Devices) -> PlanError | None:
    """Why containers would get CDI names that no file has, or devices without the driver's libraries. None: they would
    not, or it is so in effect already, and what fails then is said beside it (`missing`, host.cdi_files).

    active: the configuration in effect; None: there is none yet.
    """
    if not uses_cdi(requested):
        return None
    environment, specs = devices.environment, _specs(requested, devices)
    in_effect = uses_cdi(active)
    why = ""
    if not in_effect and environment.unwritable and (specs or not cdi.present_units(devices.inventory)):
        what = "install the component cdi (manifests/components/cdi), or use envvar"
        why = f"cannot write {environment.unwritable}; {what}"
    elif not requested.node.cdi_without_libraries and not (
        active is not None and in_effect and not active.node.cdi_without_libraries
    ):
        why = cdi_libraries.missing(specs, environment, active=in_effect)
    listed = (requested.sections.injection or Injection()).device_list_strategies
    strategies = ", ".join(each for each in listed if each in CDI_STRATEGIES)
    return PlanError("injection.deviceListStrategies", strategies, why) if why else None


def missing(active: Effective | None, devices: Devices) -> str:
    """Why devices of the configuration in effect would come without the driver's libraries. Empty: they do not."""
    if active is None or not uses_cdi(active) or active.node.cdi_without_libraries:
        return ""
    return cdi_libraries.missing(_specs(active, devices), devices.environment, active=True)


def stale(active: Effective, devices: Devices) -> str:
    """What is wrong with the source of the libraries while the last good one is used. Empty: nothing."""
    if not uses_cdi(active) or active.node.cdi_without_libraries:
        return ""
    return cdi_libraries.stale(_specs(active, devices), devices.environment)


def withheld(plan: Plan, shown: Plan | None, devices: Devices) -> Plan:
    """The plan without what comes without the driver's libraries. shown: what the kubelet has been shown."""
    facts = [each.fact for each in devices.inventory.devices]
    others = {fact.id for fact in facts if fact.vendor != NVIDIA or fact.type not in NVIDIAS_TYPES}
    return cdi_libraries.withheld(plan, _elsewhere(devices), shown, others=others)


def toolkit_request(active: Effective | None, requested: Effective | None, devices: Devices) -> CtkRequest | None:
    """What nvidia-ctk has to be asked for before it can be decided: for what would be refused or withheld without."""
    lacking = requested if requested is not None and refusal(active, requested, devices) is not None else None
    if lacking is None and missing(active, devices):
        lacking = active
    return access(lacking, devices).request if lacking is not None else None


def _nvidia(effective: Effective, devices: Devices) -> Local:
    """What NVIDIA's flags and CDI's specifications say of this node."""
    node, toolkit = effective.node, devices.environment.toolkit
    return Local(
        host=node.host(devices.existing),
        cdi_annotation_prefix=node.cdi_annotation_prefix,
        cdi_names=cdi.toolkit_names(devices.inventory, toolkit) if toolkit else {},
    )


def _elsewhere(devices: Devices) -> Set[str]:
    """Devices and MIG devices that the container toolkit's own specification has."""
    return cdi.toolkit_names(devices.inventory, devices.environment.toolkit).keys()


def _specs(effective: Effective, devices: Devices) -> tuple[CdiSpec, ...]:
    """What is needed of ours beside the container toolkit's own specification, as device nodes."""
    injection = effective.sections.injection or Injection()
    return cdi.specs(
        devices.inventory,
        effective.node.host(devices.existing),
        id_strategy=injection.device_id_strategy,
        elsewhere=_elsewhere(devices),
    )


def _request(effective: Effective, devices: Devices, specs: tuple[CdiSpec, ...]) -> CtkRequest | None:
    ours = next((each for each in specs if each.kind == cdi.GPU_KIND), None)
    if ours is None:
        return None
    node = effective.node
    return CtkRequest(
        names=frozenset(str(each["name"]) for each in ours.document["devices"]),
        id_strategy=(effective.sections.injection or Injection()).device_id_strategy,
        host=node.host(devices.existing),
        program=node.ctk_program,
        driver_root=node.driver_root_here,
        hook_path=node.cdi_hook_path,
        feature_flags=node.cdi_feature_flags,
        disable_hooks=node.cdi_disable_hooks,
    )
