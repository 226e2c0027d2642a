"""Files by which CNI plugins and Multus learn what a function is: the Device Information Specification 1.1 of the
Network Plumbing Working Group.

One for each id of a resource of the SR-IOV plugin's file, as that plugin writes them; besides, the physical function
and the RDMA device, for which the specification has fields. Multus copies them into a pod's network status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import OfferedResource, SchedulableId
from nodedevices_plugin.vendors.nic.configs import Configs
from nodedevices_plugin.vendors.nic.containers import VHOST_NET
from nodedevices_plugin.vendors.nic.sriov_config import NET, SriovResource, SriovSelector
from nodedevices_plugin.vendors.nic.traits import text

FOLDER = "/var/run/k8s.cni.cncf.io/devinfo/dp"
VERSION = "1.1.0"


def files(resources: Sequence[OfferedResource], facts: Mapping[str, DeviceFact], configs: Configs) -> Mapping[str, str]:
    """Texts by name. What a pod holds under a name that the file no longer has keeps one, too."""
    found = {}
    for resource in resources if configs.sriov.resources else ():
        for schedulable in _ids(resource, configs):
            fact = facts.get(schedulable.device_id)
            if fact is not None and fact.pci_bus_id:
                name = f"{resource.name}-{schedulable.id}-device.json".replace("/", "-")
                found[name] = (
                    json.dumps(_information(configs.sriov.resource_for(fact), fact), separators=(",", ":")) + "\n"
                )
    return found


def _ids(resource: OfferedResource, configs: Configs) -> Sequence[SchedulableId]:
    entry = configs.named(resource.name)
    if isinstance(entry, SriovResource):
        return (*resource.ids, *resource.retained) if entry.device_type == NET else ()
    return resource.retained if entry is None else ()


def _information(entry: SriovResource | None, fact: DeviceFact) -> dict[str, Any]:
    selector = (entry.selector(fact) if entry is not None else None) or SriovSelector()
    kind, said = (
        "pci",
        {
            "pci-address": fact.pci_bus_id,
            "vhost-net": VHOST_NET if selector.need_vhost_net else "",
            "rdma-device": text(fact, attributes.RDMA_DEVICE) if selector.is_rdma else "",
            "pf-pci-address": text(fact, attributes.PHYSICAL_FUNCTION),
        },
    )
    if selector.vdpa_type:
        kind, said = (
            "vdpa",
            {
                "parent-device": text(fact, attributes.VDPA_DEVICE),
                "driver": selector.vdpa_type,
                "path": text(fact, attributes.VDPA_PATH),
                "pci-address": fact.pci_bus_id,
                "pf-pci-address": text(fact, attributes.PHYSICAL_FUNCTION),
            },
        )
    return {"type": kind, "version": VERSION, kind: {key: value for key, value in said.items() if value}}
