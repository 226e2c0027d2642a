"""A vendor of the tests for what many makers build and several containers use at once: hubs. It is all in this file.

Its device file names the resource, says into how many shares its hubs are divided, and whether whoever gets a share
gets all hubs: `{"name": "example.com/hub", "shares": 5, "together": true}`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nodedevices_common.errors import InputError
from nodedevices_plugin.model import Unit
from nodedevices_plugin.vendors.base import DeviceFile, DeviceNodes, Naming, NodeView, Vendor, VendorShares

FLAG = "hubs.json"
COMMON = "/dev/hubctl"


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    shares: int = 0
    together: bool = False


def parse(raw: bytes) -> HubFile:
    said = json.loads(raw)
    if "name" not in said:
        raise InputError(["name: missing; give a resource such as example.com/hub"], place="name")
    return HubFile(**said)


class Hubs(Vendor):
    name = "hubs"
    types = frozenset({"hub"})
    every_maker = True
    files = (DeviceFile(name=FLAG, type=HubFile, parse=parse),)

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        file = naming.files.get(FLAG)
        return file.name if isinstance(file, HubFile) else None

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        file = naming.files.get(FLAG)
        if not isinstance(file, HubFile) or file.name != name or not file.shares:
            return None
        each, more = divmod(file.shares, len(units))
        return VendorShares(counts=tuple(each + (n < more) for n in range(len(units))), together=file.together)

    def file_names(self, naming: Naming) -> Mapping[str, tuple[str, str]]:
        file = naming.files.get(FLAG)
        return {file.name: (FLAG, "name")} if isinstance(file, HubFile) else {}

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        return (COMMON,) if FLAG in files else ()

    def containers(self, node: NodeView) -> DeviceNodes:
        usual = DeviceNodes.for_devices(node.inventory.devices)
        common = (COMMON,) if COMMON in node.existing else ()
        return DeviceNodes(nodes={id_: (*common, *nodes) for id_, nodes in usual.nodes.items()})
