"""NICs from a probe's line to the kubelet's ids and a container: by Mellanox' file, the SR-IOV plugin's, by rules."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_api import conditions
from nodedevices_plugin.model import AllocationError, DeviceNode, Holder
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_plugin.vendors.nic import rdma_config, sriov_config
from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact, Partition
from support.cases import cases
from support.facts import START, gpu, old
from support.local import at_once
from support.nics import function, hca, port, vf
from support.stepped_node import Node
from support.there import there

FLAGS = ("--node-name=n1",)
FILES = ("--probe=nic", "--devices-dir=/d")
HOST = frozenset({"/dev/infiniband/rdma_cm", "/dev/vfio/vfio", "/dev/vhost-net", "/dev/net/tun"})
RDMA = {"configList": [{"resourceName": "hca_a", "rdmaHcaMax": 100, "selectors": {"vendors": ["15b3"]}}]}


def local(*more: str) -> Local:
    return at_once([*FLAGS, *FILES, *more], {})


class Nics(Node):
    """A node with both files; without content they were not there from the start."""

    def __init__(
        self, *devices: DeviceFact, rdma: object = None, sriov: object = None, flags: tuple[str, ...] = (), **node: Any
    ) -> None:
        super().__init__(*devices, local=local(*flags), **{"existing": HOST, **node})
        self.gives(rdma=rdma, sriov=sriov)

    def gives(self, *, rdma: object = None, sriov: object = None) -> Nics:
        empty = (rdma_config.RdmaConfig(), sriov_config.SriovConfig())
        files = {
            "rdma.json": DeviceFileOutcome(
                content=empty[0] if rdma is None else rdma_config.parse(json.dumps(rdma).encode())
            ),
            "sriov.json": DeviceFileOutcome(
                content=empty[1] if sriov is None else sriov_config.parse(json.dumps(sriov).encode())
            ),
        }
        return self.given(device_files=files)

    def numa_nodes(self, resource: str) -> set[int | None]:
        plan = there(self.world.plan)
        return {one.numa_node for each in plan.resources if each.name == resource for one in each.ids}


def rw(*paths: str, permissions: str = "rw") -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(container_path=path, host_path=path, permissions=permissions) for path in paths)


def sriov(selectors: object, **values: Any) -> dict[str, Any]:
    return {"resourceList": [{"resourceName": "net_a", "selectors": selectors, **values}]}


def information(node: Nics, resource: str, *ids: str) -> tuple[str, Any]:
    """The two variables, the second one read."""
    envs = node.container(resource, *ids).envs
    key = f"PCIDEVICE_{resource.replace('/', '_').replace('.', '_').upper()}"
    assert sorted(envs) == [key, f"{key}_INFO"]
    return envs[key], json.loads(envs[f"{key}_INFO"])


# --- by itself, and by rules -----------------------------------------------------------------------------------------
def test_no_nic_is_offered_by_itself_but_by_a_rule_before_both_files_and_the_sriov_file_first() -> None:
    node = Nics(hca(0), hca(1), vf(0), gpu(0, readings=old())).now()
    assert list(node.offers) == ["nvidia.com/gpu"]
    rules = {"resources": {"devices": [{"match": {"ids": [port(0)]}, "name": "example.com/mine"}]}}
    node = Nics(hca(0), hca(1), hca(2), rdma=RDMA, sriov=sriov({"pciAddresses": [port(1)]}))
    assert {name: len(ids) for name, ids in node.now(rules).offers.items()} == {
        "example.com/mine": 1,
        "intel.com/net_a": 1,
        "rdma/hca_a": 100,
    }


def test_a_rule_offers_nics_and_their_containers_get_their_nodes_and_variables() -> None:
    rules = {"resources": {"devices": [{"match": {"type": "vf", "vendor": "mellanox"}, "name": "example.com/vf"}]}}
    node = Nics(hca(0), vf(0, rdmaDevice="mlx5_2", nodes=["/dev/infiniband/uverbs2"]), vf(1)).now(rules)
    assert node.offers == {"example.com/vf": [function(0), function(1)]}
    assert node.container("example.com/vf", function(0)).devices == rw(
        "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"
    )
    assert information(node, "example.com/vf", function(1), function(0)) == (
        f"{function(1)},{function(0)}",
        {
            function(1): {"generic": {"deviceID": function(1)}},
            function(0): {
                "generic": {"deviceID": function(0)},
                "rdma": {
                    "rdma_cm": "/dev/infiniband/rdma_cm",
                    "rdma_dev": "mlx5_2",
                    "uverbs": "/dev/infiniband/uverbs2",
                },
            },
        },
    )


def test_a_rule_gives_whatever_nodes_somebody_elses_probe_lists_of_a_nic_and_of_its_partitions() -> None:
    part = Partition(id="vf-0", profile="vf", index=0, device_nodes=("/dev/special1",))
    nic = DeviceFact(
        id="NIC-0", index=0, type="nic", vendor="acme", device_nodes=("/dev/special0",), partitions=(part,)
    )
    whole = {"resources": {"devices": [{"match": {"type": "nic"}, "name": "example.com/nic"}]}}
    assert Nics(nic).now(whole).container("example.com/nic", "NIC-0").devices == rw("/dev/special0")
    parts = {"resources": {"devices": [{"match": {"type": "nic", "profile": "vf"}, "name": "example.com/vf"}]}}
    node = Nics(nic).now({**parts, "partitions": {"strategy": "mixed"}})
    assert node.offers == {"example.com/vf": ["vf-0"]}
    assert node.container("example.com/vf", "vf-0").devices == rw("/dev/special1")


@cases("match", {"vendor": "intel"}, {"productName": "*"}, {"minMemory": "0"})
def test_a_rule_for_products_of_a_maker_does_not_offer_its_nics_by_the_way(match: dict[str, Any]) -> None:
    rules = {"resources": {"devices": [{"match": match, "name": "example.com/gpu"}]}}
    node = Nics(dataclasses.replace(hca(0), vendor="intel"), gpu(0, readings=old())).now(rules)
    assert port(0) not in node.offers.get("example.com/gpu", [])
    by_type = {"resources": {"devices": [{"match": {**match, "type": "nic"}, "name": "example.com/nic"}]}}
    assert node.now(by_type).offers["example.com/nic"] == [port(0)]


# --- Mellanox' file --------------------------------------------------------------------------------------------------
def test_every_container_gets_all_hcas_with_that_plugins_permissions_and_no_variable() -> None:
    node = Nics(hca(0), hca(1), rdma=RDMA).now()
    assert len(node.offers["rdma/hca_a"]) == 100
    edits = node.container("rdma/hca_a", f"{port(1)}::7")
    assert edits.devices == rw(
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/umad0",
        "/dev/infiniband/uverbs1",
        "/dev/infiniband/umad1",
        "/dev/infiniband/rdma_cm",
        permissions="rwm",
    )
    assert edits.envs == {}


@cases(("total", "each"), (1000, [500, 500]), (5, [3, 2]), (1, [1, 0]))
def test_rdma_hca_max_is_the_number_of_all_together(total: int, each: list[int]) -> None:
    entry = {"resourceName": "hca_a", "rdmaHcaMax": total, "selectors": {"vendors": ["15b3"]}}
    ids = Nics(hca(0), hca(1), rdma={"configList": [entry]}).now().offers["rdma/hca_a"]
    assert [sum(id_.startswith(port(number)) for id_ in ids) for number in range(2)] == each


def test_a_number_of_zero_offers_nothing_of_its_hcas_and_no_later_entry_has_them() -> None:
    """As pkg/resources/resources_manager_test.go of that plugin has it: 0 is a valid rdmaHcaMax."""
    none = {"resourceName": "none", "rdmaHcaMax": 0, "selectors": {"ifNames": ["p0"]}}
    rest = {"resourceName": "rest", "rdmaHcaMax": 2, "selectors": {"vendors": ["15b3"]}}
    node = Nics(hca(0), hca(1), rdma={"configList": [none, rest]}).now()
    assert node.offers == {"rdma/rest": [f"{port(1)}::0", f"{port(1)}::1"]} | {"rdma/none": []}


def test_an_hca_that_is_down_is_left_out_and_rdma_cm_is_given_only_where_the_host_has_it() -> None:
    node = Nics(hca(0), hca(1, conditions=["linkDown"]), rdma=RDMA).now()
    assert {id_.partition("::")[0] for id_ in node.offers["rdma/hca_a"]} == {port(0)}
    paths = {each.host_path for each in node.container("rdma/hca_a", f"{port(0)}::1").devices}
    assert paths == {"/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/rdma_cm"}
    node = Nics(hca(0), rdma=RDMA, existing=frozenset()).now()
    listed = [each.host_path for each in node.container("rdma/hca_a", f"{port(0)}::0").devices]
    assert listed == ["/dev/infiniband/uverbs0", "/dev/infiniband/umad0"]


def test_single_hcas_tell_their_container_which_they_are() -> None:
    entry = {"resourceName": "hca", "mode": "perDevice", "selectors": {"vendors": ["15b3"]}}
    node = Nics(hca(0), hca(1), rdma={"configList": [entry]}).now()
    assert node.offers == {"rdma/hca": [port(0), port(1)]}
    edits = node.container("rdma/hca", port(1))
    assert [each.host_path for each in edits.devices] == [
        "/dev/infiniband/uverbs1",
        "/dev/infiniband/umad1",
        "/dev/infiniband/rdma_cm",
    ]
    assert information(node, "rdma/hca", port(1))[1][port(1)]["rdma"]["rdma_dev"] == "mlx5_1"


def test_single_hcas_may_have_shares_and_a_subfunction_vhost_net() -> None:
    entry = {"resourceName": "hca", "mode": "perDevice", "sharesPerDevice": 2, "selectors": {"vendors": ["15b3"]}}
    node = Nics(hca(0), hca(1), rdma={"configList": [entry]}).now()
    assert node.offers == {"rdma/hca": [f"{port(0)}::0", f"{port(0)}::1", f"{port(1)}::0", f"{port(1)}::1"]}
    assert information(node, "rdma/hca", f"{port(0)}::1")[0] == port(0)
    selector = {"auxTypes": ["sf"], "drivers": ["mlx5_core"], "needVhostNet": True}
    part = dataclasses.replace(
        vf(0, auxType="sf", driver="mlx5_core.sf", pfDriver="mlx5_core"), id="mlx5_core.sf.2", type="nic"
    )
    node = Nics(part, sriov=sriov(selector, deviceType="auxNetDevice")).now()
    assert node.container("intel.com/net_a", "mlx5_core.sf.2").devices == rw("/dev/vhost-net", "/dev/net/tun")


# --- the SR-IOV plugin's file ----------------------------------------------------------------------------------------
GENERIC = {"generic": {"deviceID": function(0)}}


@cases(
    ("selector", "own", "nodes", "told"),
    ({}, {}, (), {}),
    (
        {"drivers": ["vfio-pci"]},
        {"driver": "vfio-pci", "nodes": ["/dev/vfio/42"]},
        rw("/dev/vfio/vfio", "/dev/vfio/42"),
        {"vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/42"}},
    ),
    (
        {},
        {"driver": "vfio-pci", "nodes": ["/dev/vfio/noiommu-3"]},
        (
            *rw("/dev/vfio/vfio"),
            DeviceNode(container_path="/dev/vfio/3", host_path="/dev/vfio/noiommu-3", permissions="rw"),
        ),
        {"vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/3"}},
    ),
    ({}, {"driver": "igb_uio", "nodes": ["/dev/uio3"]}, rw("/dev/uio3"), {"uio": {"mount": "/dev/uio3"}}),
    (
        {"isRdma": True},
        {"rdmaDevice": "mlx5_2", "nodes": ["/dev/infiniband/uverbs2", "/dev/infiniband/umad2"]},
        rw("/dev/infiniband/uverbs2", "/dev/infiniband/umad2", "/dev/infiniband/rdma_cm"),
        {
            "rdma": {
                "rdma_dev": "mlx5_2",
                "uverbs": "/dev/infiniband/uverbs2",
                "umad": "/dev/infiniband/umad2",
                "rdma_cm": "/dev/infiniband/rdma_cm",
            }
        },
    ),
    ({}, {"rdmaDevice": "mlx5_2", "nodes": ["/dev/infiniband/uverbs2"]}, (), {}),
    (
        {"needVhostNet": True},
        {},
        rw("/dev/vhost-net", "/dev/net/tun"),
        {"vhost": {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}},
    ),
    (
        {"vdpaType": "vhost"},
        {"vdpaType": "vhost", "nodes": ["/dev/vhost-vdpa-1"]},
        rw("/dev/vhost-vdpa-1"),
        {"vdpa": {"mount": "/dev/vhost-vdpa-1"}},
    ),
    ({"vdpaType": "virtio"}, {"vdpaType": "virtio"}, (), {"vdpa": {}}),
)
def test_what_a_container_gets_of_a_function(
    selector: dict[str, Any], own: dict[str, Any], nodes: tuple[DeviceNode, ...], told: Mapping[str, Any]
) -> None:
    node = Nics(vf(0, **own), sriov=sriov(selector)).now()
    assert node.container("intel.com/net_a", function(0)).devices == nodes
    assert information(node, "intel.com/net_a", function(0)) == (function(0), {function(0): {**GENERIC, **told}})


def test_the_variables_are_written_as_that_plugin_writes_them() -> None:
    config = sriov({}, resourcePrefix="mellanox.com", additionalInfo={"*": {"token": "x"}})
    node = Nics(vf(0), vf(1), sriov=config).now()
    assert node.container("mellanox.com/net_a", function(1), function(0)).envs == {
        "PCIDEVICE_MELLANOX_COM_NET_A": f"{function(1)},{function(0)}",
        "PCIDEVICE_MELLANOX_COM_NET_A_INFO": (
            '{"0000:1b:01.0":{"extra":{"token":"x"},"generic":{"deviceID":"0000:1b:01.0"}},'
            '"0000:1b:01.1":{"extra":{"token":"x"},"generic":{"deviceID":"0000:1b:01.1"}}}'
        ),
    }


def test_the_files_prefix_numa_and_preference_are_those_of_that_plugin() -> None:
    node = Nics(vf(0), sriov=sriov({}), flags=("--sriov-resource-prefix=openshift.io",)).now()
    assert list(node.offers) == ["openshift.io/net_a"]
    assert information(node, "openshift.io/net_a", function(0))[0] == function(0)
    assert Nics(vf(0), vf(0, of=1), sriov=sriov({})).now().numa_nodes("intel.com/net_a") == {0, 1}
    excluded = Nics(vf(0), vf(0, of=1), sriov=sriov({}, excludeTopology=True)).now()
    assert excluded.numa_nodes("intel.com/net_a") == {None}
    node = Nics(vf(0), vf(0, of=1), vf(1), vf(1, of=1), sriov=sriov({})).now()
    ids = node.offers["intel.com/net_a"]
    assert set(node.answers.prefer("intel.com/net_a", ids, [function(1, 1)], 2)) == {function(0, 1), function(1, 1)}


def test_a_function_that_has_left_is_said_to_the_pods_owner() -> None:
    node = Nics(vf(0), sriov=sriov({})).now()
    grant = node.answers.grant("intel.com/net_a", [function(0)])
    gone = replace(grant, ids=(replace(grant.ids[0], device_id="0000:ff:00.0"),))
    with pytest.raises(AllocationError, match="is no longer on this node"):
        node.answers.edits(gone)


# --- health ----------------------------------------------------------------------------------------------------------
CONDITIONS = (
    (attributes.LINK_DOWN, "LinkDown"),
    (attributes.DRIVER_UNBOUND, "DriverUnbound"),
    ("deviceNodeMissing", "DeviceNodeMissing"),
)


@cases(("condition", "reason"), *CONDITIONS)
def test_what_is_wrong_with_a_nic_that_is_offered_takes_it_out_of_service(condition: str, reason: str) -> None:
    node = Nics(vf(0, conditions=[condition]), vf(1), sriov=sriov({})).now()
    assert node.states == {function(0): ("Unhealthy", reason), function(1): ("Healthy", "")}
    assert node.offers == {"intel.com/net_a": [function(1)]}


@cases(("condition", "reason"), *CONDITIONS, (attributes.NO_LINK, "NoLink"), (attributes.FEWER_PORTS, "FewerPorts"))
def test_it_is_no_fault_of_the_node_while_nobody_offers_the_nic(condition: str, reason: str) -> None:
    node = Nics(hca(0, conditions=[condition])).now()
    assert node.states == {port(0): ("Degraded", reason)}
    assert node.offers == {}


@cases("resources", {}, {"devices": [{"match": {"type": "nic"}, "name": "example.com/nic"}]})
def test_nor_while_a_configuration_is_requested_that_is_not_possible_here(resources: dict[str, Any]) -> None:
    node = Nics(hca(0, conditions=[attributes.LINK_DOWN]), gpu(1, mig_enabled=True), gpu(2)).now()
    node.now({"partitions": {"strategy": "single"}, "resources": resources})
    assert node.states[port(0)] == ("Degraded", "LinkDown")


def test_a_nic_without_a_link_is_offered_only_where_it_is_named_and_shown_as_degraded() -> None:
    node = Nics(vf(0, conditions=[attributes.LINK_DOWN])).now()
    node.gives(sriov=sriov({})).now()
    assert node.offers == {"intel.com/net_a": []}
    assert node.states[function(0)] == ("Unhealthy", "LinkDown")
    node.gives().now().now()
    assert node.states[function(0)] == ("Degraded", "LinkDown")
    node = Nics(hca(0, conditions=[attributes.NO_LINK]), sriov=sriov({})).now()
    assert node.states == {port(0): ("Degraded", "NoLink")}
    assert node.offers == {"intel.com/net_a": [port(0)]}


def test_a_link_that_is_back_is_healthy_again_and_shared_pods_are_shown_at_all_hcas() -> None:
    requested = {"health": {"holdDownSeconds": 10}}
    node = Nics(vf(0, conditions=[attributes.LINK_DOWN]), sriov=sriov({})).now(dict(requested))
    node.devices = (vf(0),)
    node.now(dict(requested))
    assert node.states[function(0)] == ("Unhealthy", "LinkDown")
    node.clock += 20
    assert node.now(dict(requested)).states[function(0)] == ("Healthy", "")
    node = Nics(hca(0), hca(1), rdma=RDMA).now(None, holder("rdma/hca_a", f"{port(0)}::3"))
    [shown] = node.world.holdings.holders
    assert (shown.ids, shown.also) == ((f"{port(0)}::3",), (port(1),))


# --- while pods have them --------------------------------------------------------------------------------------------
def holder(resource: str, *ids: str, pod: str = "p") -> Holder:
    return Holder(namespace="ml", pod=pod, container="c", resource=resource, ids=ids, since=START)


def test_a_function_or_hca_that_another_resource_names_waits_for_the_pods_that_have_it() -> None:
    node = Nics(vf(0), vf(1), sriov=sriov({})).now()
    held = holder("intel.com/net_a", function(0))
    node.gives(sriov=sriov({}, resourceName="net_b")).now(None, held)
    assert function(0) not in node.offers.get("intel.com/net_b", [])
    assert function(0) not in node.offers.get("intel.com/net_a", [])
    assert function(0) in node.now().offers["intel.com/net_b"]
    node = Nics(hca(0), hca(1), rdma=RDMA).now()
    held = holder("rdma/hca_a", f"{port(0)}::3")
    node.gives(rdma=RDMA, sriov=sriov({"vendors": ["15b3"]})).now(None, held)
    assert node.world.config.reason == conditions.WAITING_FOR_HOLDERS
    assert all(each != port(1) for each in node.offers.get("intel.com/net_a", [])), "the pod has that HCA, too"
    node.now()
    assert node.offers == {"intel.com/net_a": [port(0), port(1)]}


def test_a_nic_whose_interface_or_rdma_device_a_pods_namespace_has_stays_in_its_resource() -> None:
    rdma = {"configList": [{"resourceName": "hca", "mode": "perDevice", "selectors": {"ifNames": ["p0", "p1"]}}]}
    node = Nics(hca(0), hca(1), rdma=rdma).now()
    held = holder("rdma/hca", port(0))
    node.devices = (hca(0, ifName=None, pfName=None, rdmaDevice=None, linkType=None), hca(1))
    assert node.now(None, held).now(None, held).offers == {"rdma/hca": [port(0), port(1)]}
    assert node.now().now().offers == {"rdma/hca": [port(1)]}, "nobody has it, and it has no interface"


def test_after_a_restart_the_files_of_before_hold_while_they_cannot_be_read() -> None:
    node = Nics(vf(0), sriov=sriov({}))
    before = node.now().offers
    node.given(device_files={name: DeviceFileOutcome(error="not read yet") for name in node.inputs.device_files})
    node.restarts()
    assert node.now().offers == before
    assert node.world.config.reason == conditions.CONFIG_INVALID


# --- device-info files -----------------------------------------------------------------------------------------------
def written(node: Nics) -> dict[str, Any]:
    return {name: json.loads(text) for each in node.world.access.files for name, text in each.files.items()}


def test_each_id_of_a_net_device_resource_has_a_file_for_cni_plugins() -> None:
    selectors = [{"isRdma": True}, {"needVhostNet": True}]
    node = Nics(vf(0, rdmaDevice="mlx5_2"), vf(1), hca(1, rdmaDevice=None), sriov=sriov(selectors)).now()
    assert [each.folder for each in node.world.access.files] == ["/var/run/k8s.cni.cncf.io/devinfo/dp"]
    name = "intel.com-net_a-{}-device.json"
    assert written(node) == {
        name.format(function(0)): {
            "type": "pci",
            "version": "1.1.0",
            "pci": {"pci-address": function(0), "rdma-device": "mlx5_2", "pf-pci-address": port(0)},
        },
        name.format(function(1)): {
            "type": "pci",
            "version": "1.1.0",
            "pci": {"pci-address": function(1), "vhost-net": "/dev/vhost-net", "pf-pci-address": port(0)},
        },
        name.format(port(1)): {
            "type": "pci",
            "version": "1.1.0",
            "pci": {"pci-address": port(1), "vhost-net": "/dev/vhost-net"},
        },
    }


@cases(("kind", "path"), ("vhost", "/dev/vhost-vdpa-1"), ("virtio", "/sys/bus/virtio/devices/virtio5"))
def test_a_vdpa_device_is_described_as_one(kind: str, path: str) -> None:
    function_ = vf(0, vdpaType=kind, vdpaDevice="vdpa1", vdpaPath=path)
    assert written(Nics(function_, sriov=sriov({"vdpaType": kind})).now()) == {
        f"intel.com-net_a-{function(0)}-device.json": {
            "type": "vdpa",
            "version": "1.1.0",
            "vdpa": {
                "parent-device": "vdpa1",
                "driver": kind,
                "path": path,
                "pci-address": function(0),
                "pf-pci-address": port(0),
            },
        }
    }


def test_only_functions_have_a_file_and_it_stays_while_a_pod_holds_its_id() -> None:
    rules = {"resources": {"devices": [{"match": {"type": "vf"}, "name": "example.com/vf"}]}}
    assert written(Nics(hca(0), vf(0), rdma=RDMA).now(rules)) == {}
    node = Nics(vf(0), vf(1), sriov=sriov({})).now()
    node.gives(sriov=sriov({}, resourceName="net_b")).now(None, holder("intel.com/net_a", function(0)))
    assert {name for name in written(node) if "net_a" in name} == {f"intel.com-net_a-{function(0)}-device.json"}
    assert f"intel.com-net_b-{function(1)}-device.json" in written(node)
    node.now()
    assert set(written(node)) == {f"intel.com-net_b-{function(each)}-device.json" for each in (0, 1)}
