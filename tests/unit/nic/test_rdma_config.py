"""config.json of Mellanox' k8s-rdma-shared-dev-plugin: every key, read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nodedevices_common.errors import InputError
from nodedevices_plugin.vendors.nic.rdma_config import RdmaConfig, RdmaResource, RdmaSelectors, parse
from support.cases import cases
from support.nics import hca


def read(*entries: dict[str, Any], **top: Any) -> RdmaConfig:
    return parse(json.dumps({"configList": list(entries), **top}).encode())


def problems(document: object) -> tuple[str, ...]:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InputError) as caught:
        parse(raw)
    return tuple(map(str, caught.value.problems))


def entry(**values: Any) -> dict[str, Any]:
    return {"resourceName": "hca_a", "rdmaHcaMax": 100, "selectors": {"vendors": ["15b3"]}, **values}


def without(key: str, **values: Any) -> dict[str, Any]:
    return {name: value for name, value in entry(**values).items() if name != key}


def test_every_key_of_the_plugin_is_read() -> None:
    config = read(
        entry(
            resourcePrefix="example.com",
            selectors={
                "vendors": ["15B3"],
                "deviceIDs": ["1017"],
                "drivers": ["mlx5_core"],
                "ifNames": ["p0"],
                "linkTypes": ["ether", "infiniband"],
            },
        ),
        without("selectors", resourceName="hca_b", devices=["ib0", "ib1"]),
        periodicUpdateInterval=300,
    )
    assert config.resources == (
        RdmaResource(
            name="hca_a",
            prefix="example.com",
            containers=100,
            selectors=RdmaSelectors(
                vendors=("15b3",),
                device_ids=("1017",),
                drivers=("mlx5_core",),
                if_names=("p0",),
                link_types=("ether", "infiniband"),
            ),
        ),
        RdmaResource(name="hca_b", containers=100, devices=("ib0", "ib1")),
    )
    assert [each.full_name() for each in config.resources] == ["example.com/hca_a", "rdma/hca_b"]


@cases(
    ("selectors", "selected"),
    ({"vendors": ["8086", "15b3"]}, [0, 1]),
    ({"vendors": ["15b3"], "ifNames": ["p1"]}, [1]),
    ({"vendors": ["8086"], "ifNames": ["p1"]}, []),
    ({"ifNames": ["p0", "p1"], "linkTypes": ["infiniband"]}, [1]),
    ({"deviceIDs": ["1017"], "drivers": ["mlx5_core"]}, [0, 1]),
    ({"vendors": [], "ifNames": ["p0"]}, [0]),
)
def test_elements_of_a_selector_are_alternatives_and_all_fit(selectors: dict[str, Any], selected: list[int]) -> None:
    config = read(entry(selectors=selectors))
    ports = [hca(0), hca(1, linkType="infiniband")]
    assert [number for number, each in enumerate(ports) if config.resource_for(each) is not None] == selected


def test_nics_with_rdma_are_selected_by_the_first_entry_that_names_them_one_by_one_or_with_shares() -> None:
    config = read(entry(selectors={"ifNames": ["p0"]}))
    assert config.resource_for(hca(0, rdmaDevice=None)) is None
    assert config.resource_for(hca(0, pciVendor=None, driver=None, deviceID=None, rdmaDevice="rxe0")) is not None
    config = read(entry(selectors={"ifNames": ["p1"]}), entry(resourceName="rest"))
    names = [found.name for each in (hca(0), hca(1)) if (found := config.resource_for(each)) is not None]
    assert names == ["rest", "hca_a"]
    alone, shared = read(
        without("rdmaHcaMax", mode="perDevice"),
        without("rdmaHcaMax", resourceName="b", mode="perDevice", sharesPerDevice=4),
    ).resources
    assert (alone.together, alone.shares, shared.together, shared.shares) == (False, None, False, 4)


@cases(
    ("document", "said"),
    (b"\xff", "not UTF-8"),
    (b"{", "line 1, column 2: not JSON"),
    (b"[" * 100_000, "not JSON that can be read"),
    (b'{"configList": [' + b"9" * 5000 + b"]}", "not JSON that can be read"),
    (b" " * (300 << 10), "bytes; 262144 are the most"),
    (b"[]", "[] is not an object with configList, periodicUpdateInterval"),
    ({}, "configList: missing or empty"),
    ({"configLst": []}, "configLst: unknown key; did you mean configList?"),
    ({"configList": {}}, "configList: {} is not allowed; give a list"),
    ({"configList": ["x"]}, 'configList[0]: "x" is not allowed; give keys and values'),
    ({"configList": [entry()] * 65}, "is not allowed; give at most 64 entries"),
    ({"configList": [entry()], "periodicUpdateInterval": -1}, "periodicUpdateInterval: -1 is not allowed"),
    ({"configList": [entry(rdmaHcaMx=1)]}, "configList[0].rdmaHcaMx: unknown key; did you mean rdmaHcaMax?"),
    ({"configList": [entry(ifNames=["p0"])]}, "configList[0].ifNames: unknown key; it belongs into selectors"),
    ({"configList": [without("resourceName")]}, "configList[0].resourceName: missing"),
    ({"configList": [entry(resourceName="hca.a")]}, "configList[0].resourceName: 'hca.a': only letters, digits"),
    ({"configList": [entry(resourceName="é")]}, "only letters, digits, _ and - are allowed"),
    ({"configList": [entry(resourceName="a_")]}, "configList[0].resourceName: 'rdma/a_': after the slash only"),
    ({"configList": [entry(resourceName="a" * 64)]}, "64 characters after the slash; 63 are the most"),
    ({"configList": [entry(resourcePrefix="Bad_")]}, "'Bad_/hca_a': not a resource name"),
    ({"configList": [entry(), entry()]}, "configList[1].resourceName: configList[0] has the name rdma/hca_a, too"),
    ({"configList": [without("rdmaHcaMax")]}, "configList[0].rdmaHcaMax: missing; give the number of containers"),
    ({"configList": [entry(rdmaHcaMax="5")]}, "configList[0].rdmaHcaMax: '5' is not allowed; give a number"),
    ({"configList": [entry(rdmaHcaMax=True)]}, "configList[0].rdmaHcaMax: True is not allowed"),
    ({"configList": [entry(rdmaHcaMax=10**9)]}, "give a number from 0 to 100000"),
    ({"configList": [entry(devices=["ib0"])]}, "configList[0].devices: given beside selectors"),
    ({"configList": [entry(selectors={})]}, "configList[0].selectors: missing; say which HCAs"),
    ({"configList": [without("selectors")]}, "configList[0].selectors: missing; say which HCAs"),
    ({"configList": [entry(selectors={"vendor": ["15b3"]})]}, "selectors.vendor: unknown key; did you mean vendors"),
    ({"configList": [entry(selectors={"vendors": "15b3"})]}, 'selectors.vendors: "15b3" is not allowed; give a list'),
    ({"configList": [entry(selectors={"vendors": ["0x15b3"]})]}, "selectors.vendors[0]: '0x15b3': give four"),
    ({"configList": [entry(selectors={"linkTypes": ["eth"]})]}, 'linkTypes[0]: "eth" is not allowed; choose ether or'),
    ({"configList": [entry(selectors={"ifNames": [""]})]}, "selectors.ifNames[0]: empty"),
    ({"configList": [entry(selectors={"ifNames": ["a\nb"]})]}, "printable characters are allowed"),
    ({"configList": [entry(mode="each")]}, 'configList[0].mode: "each" is not allowed; choose shared or perDevice'),
    ({"configList": [entry(mode="perDevice")]}, "configList[0].rdmaHcaMax: counts the containers of all HCAs"),
    ({"configList": [entry(sharesPerDevice=2)]}, "sharesPerDevice: only valid with mode perDevice"),
)
def test_what_is_wrong_is_named_with_what_would_be_right(document: object, said: str) -> None:
    found = problems(document)
    assert any(said in each for each in found), found


def test_problems_are_said_at_once_few_and_with_places_whatever_a_file_is_full_of() -> None:
    raw = b'{"configList": [{"resourceName": "a", "resourceName": "b", "rdmaHcaMax": 1, "devices": ["ib0"]}]}'
    assert problems(raw) == ("the key 'resourceName' is given twice in one object; leave one out",)
    raw = json.dumps({"configList": [entry(rdmaHcaMax=-1, selectors={"vendors": ["x"], "y": 1})]}).encode()
    with pytest.raises(InputError) as caught:
        parse(raw)
    assert len(caught.value.problems) == 3
    assert caught.value.place == "configList[0].selectors.y"
    assert len(problems({f"key{number}": 1 for number in range(10_000)})) <= 20
    assert problems(b'{"configList": ' + b"[" * 400 + b"]" * 400 + b"}") == ("nested more than 16 deep",)


def test_prefixes_periods_and_keys_are_read_as_that_plugin_reads_them() -> None:
    [resource] = read(entry(resourcePrefix="")).resources
    assert resource.full_name() == "rdma/hca_a"
    for prefix in ("a\nb", "a" * 300, 5):
        [problem] = problems({"configList": [entry(resourcePrefix=prefix)]})
        assert problem.startswith("configList[0].resource")
        assert len(problem) < 400
    assert read(entry(), periodicUpdateInterval=300) == read(entry())
    usual = {"configList": [{"resourceName": "a", "rdmaHcaMax": 3, "selectors": {"ifNames": ["p0"]}}]}
    other = {"ConfigList": [{"ResourceName": "a", "RdmaHcaMax": 3, "Selectors": {"IfNames": ["p0"]}}]}
    assert parse(json.dumps(other).encode()) == parse(json.dumps(usual).encode())
