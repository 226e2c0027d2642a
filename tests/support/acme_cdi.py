"""The tests' vendor (acme.py) with its own flags and CDI names, as somebody else would write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodedevices_common.options import Values, with_flag_variables
from nodedevices_plugin.model import ContainerEdits, Grant, PlanError
from nodedevices_plugin.vendors.base import Containers, NodeView, VendorFlags
from nodedevices_plugin.vendors.cdi import CdiNeeds, CdiSource, CdiSpec, qualified
from support.acme import CONTROL_NODE, Acme

VENDOR, CLASS = "plugin.acme.com", "fpga"
KIND, FILE = f"{VENDOR}/{CLASS}", f"{VENDOR}-{CLASS}.json"
IMAGE_VARIABLE = "ACME_IMAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeSettings:
    shells: tuple[str, ...] = ()
    image: str = ""
    control_required: bool = False


@dataclass(frozen=True, slots=True)
class ByName:
    settings: AcmeSettings

    def edits(self, grant: Grant) -> ContainerEdits:
        names = tuple(qualified(VENDOR, CLASS, each.device_id) for each in grant.ids)
        return ContainerEdits(envs={"ACME_SHELLS": ",".join(self.settings.shells)}, cdi_devices=names)


def settings(values: Values) -> AcmeSettings:
    return AcmeSettings(
        shells=values.items("acme-shells"),
        image=str(values.given.get(IMAGE_VARIABLE, "")),
        control_required=values.truth("acme-control-required"),
    )


def sections(values: Values) -> Mapping[str, Any]:
    return {"partitions": {"strategy": "mixed"}} if values.truth("acme-regions") else {}


class AcmeByCdi(Acme):
    flags = VendorFlags(
        group="Acme",
        title="of Acme's FPGAs",
        settings=settings,
        settings_type=AcmeSettings,
        sections=sections,
        options=(
            with_flag_variables("acme-shells", "shells", group="Acme", key="flags.acmeShells", default=()),
            with_flag_variables("acme-control-required", "no FPGA without it", group="Acme", default=False),
            with_flag_variables("acme-regions", "offer regions", group="Acme", default=False),
        ),
        variables=(IMAGE_VARIABLE,),
    )
    cdi_source = CdiSource(kind="acme.com/fpga", files=frozenset({FILE}))

    def check(self, node: NodeView) -> None:
        if _own(node).control_required and CONTROL_NODE not in node.existing:
            raise PlanError("acme-control-required", True, f"{CONTROL_NODE} is not on this node")

    def containers(self, node: NodeView) -> Containers:
        return ByName(_own(node))

    def cdi(self, node: NodeView) -> CdiNeeds:
        """Device nodes are enough for an FPGA."""
        found = [each.fact for each in node.inventory.devices if each.fact.vendor == self.name and each.present]
        devices = [
            {"name": fact.id, "containerEdits": {"deviceNodes": [{"path": path} for path in fact.device_nodes]}}
            for fact in found
        ]
        document = {"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}
        specs = (CdiSpec(kind=KIND, file_name=FILE, document=document),) if devices else ()
        return CdiNeeds(specs=specs, present=bool(found))


def _own(node: NodeView) -> AcmeSettings:
    return node.local if isinstance(node.local, AcmeSettings) else AcmeSettings()
