"""config.json of the SR-IOV network device plugin: selectors, the order of resources, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from nodedevices_common.errors import InputError
from nodedevices_plugin.vendors.nic.sriov_config import SriovConfig, parse
from nodedevices_probe.protocol import Attribute, DeviceFact
from support.cases import cases
from support.nics import function, hca, port, vf


def read(*entries: dict[str, Any]) -> SriovConfig:
    return parse(json.dumps({"resourceList": list(entries)}).encode())


def pool(selectors: object, **values: Any) -> dict[str, Any]:
    return {"resourceName": "net_a", "selectors": selectors, **values}


def problems(document: object) -> tuple[str, ...]:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InputError) as caught:
        parse(raw)
    return tuple(map(str, caught.value.problems))


def selected(config: SriovConfig, *facts: DeviceFact) -> list[str]:
    return [each.id for each in facts if config.resource_for(each) is not None]


DRIVERS = ("mlx5_core", "mlx5_core.sf", "vfio-pci")
EIGHT = tuple(vf(number) for number in range(8))


@cases(
    ("pattern", "numbers"),
    ("p0", [0, 1, 2, 3, 4, 5, 6, 7]),
    ("p0#0,2-4,7", [0, 2, 3, 4, 7]),
    ("p0#5", [5]),
    ("P0#5-5", [5]),
    ("p1", []),
    ("p", []),
)
def test_pf_names_are_names_with_ranges_of_functions(pattern: str, numbers: list[int]) -> None:
    config = read(pool({"pfNames": [pattern]}))
    assert selected(config, *EIGHT) == [function(each) for each in numbers]


def test_several_selectors_must_all_fit_and_the_first_that_does_says_what_a_container_gets() -> None:
    config = read(pool({"pfNames": ["p0#0-1", "p0#6-7"]}))
    assert selected(config, *EIGHT) == [function(each) for each in (0, 1, 6, 7)]
    config = read(pool({"vendors": ["15b3"], "drivers": ["vfio-pci"]}))
    assert selected(config, vf(0), vf(1, driver="vfio-pci")) == [function(1)]
    config = read(pool([{"drivers": ["vfio-pci"], "needVhostNet": True}, {"vendors": ["15b3"]}]))
    [resource] = config.resources
    first, second = resource.selector(vf(0, driver="vfio-pci")), resource.selector(vf(1))
    assert first is not None
    assert second is not None
    assert (first.need_vhost_net, second.need_vhost_net) == (True, False)


@cases("of", port(0), "0000:1B:00.0")
def test_root_devices_are_addresses_of_physical_functions(of: str) -> None:
    config = read(pool({"rootDevices": [f"{of}#1"]}))
    assert selected(config, *EIGHT, vf(1, of=1)) == [function(1)]


@cases(
    ("selector", "fits", "does_not"),
    ({"vendors": ["8086", "15b3"]}, {}, {"pciVendor": "1924"}),
    ({"devices": ["1018"]}, {}, {"deviceID": "1016"}),
    ({"drivers": ["vfio-pci"]}, {"driver": "vfio-pci"}, {}),
    ({"pciAddresses": [function(0)]}, {}, None),
    ({"acpiIndexes": ["101"]}, {"acpiIndex": 101}, {}),
    ({"linkTypes": ["infiniband"]}, {"linkType": "infiniband"}, {}),
    ({"ddpProfiles": ["GTPv1-C/U IPv4/IPv6 payload"]}, {"ddpProfile": "GTPv1-C/U IPv4/IPv6 payload"}, {}),
    ({"pKeys": ["0x8001"]}, {"pKeys": "0xffff,0x8001"}, {"pKeys": "0xffff"}),
    ({"isRdma": True}, {"rdmaDevice": "mlx5_2"}, {}),
    ({"vdpaType": "vhost"}, {"vdpaType": "vhost"}, {"vdpaType": "virtio"}),
    ({"needVhostNet": True}, {}, None),
)
def test_each_selector(selector: dict[str, Any], fits: dict[str, Any], does_not: dict[str, Any] | None) -> None:
    config = read(pool(selector))
    assert selected(config, vf(0, **fits)) == [function(0)]
    if does_not is not None:
        assert selected(config, vf(0, **does_not)) == []


def test_a_device_belongs_to_the_first_resource_that_selects_it_and_a_card_with_functions_to_none() -> None:
    config = read(pool({"pfNames": ["p0#0-1"]}), pool({"vendors": ["15b3"]}, resourceName="rest"))
    names = [found.full_name("openshift.io") for each in EIGHT[:3] if (found := config.resource_for(each)) is not None]
    assert names == ["openshift.io/net_a", "openshift.io/net_a", "openshift.io/rest"]
    config = read(pool({"vendors": ["15b3"]}))
    assert selected(config, hca(0, virtualFunctions=1), hca(1, virtualFunctions=0)) == [port(1)]


def test_subfunctions_are_only_those_of_aux_net_device_also_in_the_sriov_operators_files() -> None:
    subfunction = DeviceFact(
        id="mlx5_core.sf.2", index=0, type="nic", vendor="mellanox", extra=vf(0, auxType="sf").extra
    )
    assert selected(read(pool({"vendors": ["15b3"]})), subfunction) == []
    config = read(pool({"auxTypes": ["sf"], "pfNames": ["p0"]}, deviceType="auxNetDevice"))
    assert selected(config, subfunction, vf(0)) == ["mlx5_core.sf.2"]
    assert selected(read(pool({}, deviceType="accelerator")), subfunction, vf(0), hca(0)) == []
    first, second = parse(OF_THE_OPERATOR).resources
    assert [each.id for each in EIGHT if first.selector(each)] == [function(0), function(1)]
    assert (second.name, second.exclude_topology) == ("res-rdma", True)
    [selector] = second.selectors
    assert (selector.is_rdma, selector.need_vhost_net) == (True, True)


def test_no_selectors_select_every_free_function_and_info_of_one_device_comes_after_that_of_all() -> None:
    assert selected(read({"resourceName": "all"}), vf(0), hca(1)) == [function(0), port(1)]
    assert selected(read(pool([])), vf(0)) == []
    [resource] = read(pool({}, additionalInfo={"*": {"a": "1", "b": "1"}, function(0): {"b": "2"}})).resources
    assert resource.additional_info(function(0)) == {"a": "1", "b": "2"}
    assert resource.additional_info(function(1)) == {"a": "1", "b": "1"}


@cases(
    ("entry", "said"),
    (pool({"pfNames": ["p0#"]}), "resourceList[0].selectors.pfNames[0]: 'p0#': '' is not an index or range"),
    (pool({"pfNames": ["p0#3-1"]}), "'3-1' is not an index or range of virtual functions; write p0#0,2-7"),
    (pool({"pfNames": ["p0#a"]}), "'a' is not an index"),
    (pool({"pfNames": ["p0#1#2"]}), "'1#2' is not an index"),
    (pool({"pfNames": ["#1"]}), "a name before # is missing"),
    (pool({"pfNames": ["ens.*#1"]}), "pfNames[0]: 'ens.*#1': names are compared and not searched for; list them"),
    (pool({"rootDevices": ["^0000:3b"]}), "names are compared and not searched for"),
    (pool({"rootDevices": ["86:00.0"]}), "rootDevices[0]: '86:00.0': give a PCI address, such as 0000:86:02.0"),
    (pool({"pciAddresses": ["p0"]}), "pciAddresses[0]: 'p0': give a PCI address"),
    (pool({"acpiIndexes": [101]}), "acpiIndexes[0]: 101 is not a text"),
    (pool({"pKeys": ["8001"]}), "pKeys[0]: '8001': give a key, such as 0x8001"),
    (pool({"isRdma": "true"}), 'isRdma: "true" is not allowed; give true or false'),
    (pool({"isRdma": True, "vdpaType": "vhost"}), "resourceList[0].selectors.vdpaType: given beside isRdma"),
    (pool({"vdpaType": "vhst"}), 'vdpaType: "vhst" is not allowed; choose virtio or vhost'),
    (pool({"pfName": ["p0"]}), "selectors.pfName: unknown key; did you mean pfNames?"),
    (pool([{}, {"pfName": ["p0"]}]), "resourceList[0].selectors[1].pfName: unknown key"),
    (pool({}, isRdma=True), "resourceList[0].isRdma: unknown key; it belongs into selectors"),
    (pool({}, excludeTopologi=True), "excludeTopologi: unknown key; did you mean excludeTopology?"),
    (pool({}, deviceType="netdevice"), 'deviceType: "netdevice" is not allowed; choose netDevice, accelerator or'),
    (pool({"pfNames": ["p0"]}, deviceType="accelerator"), "it belongs to deviceType"),
    (pool({}, deviceType="auxNetDevice"), "selectors.auxTypes: missing; deviceType auxNetDevice needs it"),
    (pool({"auxTypes": ["eth"]}, deviceType="auxNetDevice"), 'auxTypes[0]: "eth" is not allowed; choose sf'),
    (pool({}, additionalInfo={"*": {"a": 1}}), "additionalInfo.*.a: 1 is not a text"),
    (pool({}, additionalInfo={"*": "a"}), 'additionalInfo.*: "a" is not allowed; give keys and values'),
    (pool({}, resourceName="a.b"), "resourceList[0].resourceName: 'a.b': only letters, digits, _ and -"),
    (pool({}, SelectorObjs=[{}]), "resourceList[0].SelectorObjs: [{}] is not allowed, only null; give selectors"),
    (pool({"isRdma": True, "IsRdma": False}), "selectors.isRdma: there twice, written in two ways"),
    (pool({}, IsRdma=True), "resourceList[0].IsRdma: unknown key; it belongs into selectors"),
    ({"selectors": {}}, "resourceList[0].resourceName: missing"),
)
def test_what_is_wrong_is_named_with_what_would_be_right(entry: dict[str, Any], said: str) -> None:
    found = problems({"resourceList": [entry]})
    assert any(said in each for each in found), found


# What the SR-IOV operator (249e200) writes for a node: Go's encoding/json of that plugin's own types.
OF_THE_OPERATOR = (
    b'{"resourceList":[{"resourceName":"resvfiopci","selectors":{"vendors":["15b3"],"pfNames":["p0#0-1"],'
    b'"IsRdma":false,"NeedVhostNet":false},"SelectorObjs":null},{"resourceName":"res-rdma","excludeTopology":true,'
    b'"selectors":{"pfNames":["p0#2-7"],"linkTypes":["ether"],"IsRdma":true,"NeedVhostNet":true},"SelectorObj":null}]}'
)


@cases("raw", b'{"resourceList":null}', b'{"resourceList": []}')
def test_a_node_without_policies_of_the_operator_offers_no_function(raw: bytes) -> None:
    assert parse(raw) == SriovConfig()


def test_keys_are_read_in_any_case_and_a_selector_that_says_nothing_stands_with_any_type() -> None:
    usual = pool({"pfNames": ["p0#1"], "needVhostNet": True}, additionalInfo={"*": {"a": "1", "A": "2"}})
    other = pool({"PFNAMES": ["p0#1"], "NeedVhostNet": True}, AdditionalInfo={"*": {"a": "1", "A": "2"}})
    assert parse(json.dumps({"ResourceList": [other]}).encode()) == read(usual)
    assert read(pool({"IsRdma": False, "pfNames": []}, deviceType="accelerator")).resources


def test_a_subfunction_goes_by_its_cards_driver_the_default_route_by_address_and_names_are_unique() -> None:
    part = vf(0, auxType="sf", driver="mlx5_core.sf", pfDriver="mlx5_core")
    by_driver = {name: pool({"auxTypes": ["sf"], "drivers": [name]}, deviceType="auxNetDevice") for name in DRIVERS}
    assert [name for name, entry in by_driver.items() if selected(read(entry), part)] == ["mlx5_core"]
    card = replace(hca(0), extra={**hca(0).extra, "defaultRoute": Attribute(boolean=True)})
    for selector in ({}, {"vendors": ["15b3"]}, {"pfNames": ["p0"]}, {"rootDevices": [port(0)]}):
        assert selected(read(pool(selector)), card) == []
    assert selected(read(pool({"pciAddresses": [port(0)]})), card, hca(1)) == [port(0)]
    read(pool({}), pool({}, resourcePrefix="mellanox.com"))
    found = problems({"resourceList": [pool({}), pool({}, resourcePrefix="intel.com")]})
    assert found == ("resourceList[1].resourceName: resourceList[0] has the name intel.com/net_a, too; choose another",)
