"""What NVIDIA's file, flags and variables say and a policy's section says, too, is one configuration: one code path."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_plugin.settings.effective import Effective, resolve
from nodedevices_plugin.settings.file import parse
from nodedevices_plugin.settings.flags import parse as parse_flags
from support.cases import cases

GPU = "nvidia.com/gpu"
MPS = ("--mps-root=/run/nvidia/mps",)


def by(*arguments: str, variables: dict[str, str] | None = None, file: str = "", policy: Any = None) -> Effective:
    local = parse_flags(["--node-name=n1", *arguments], variables or {})
    return resolve(local, parse(file.encode()), policy)


def shared(strategy: str, **more: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": strategy, "resources": [{"name": GPU, "replicas": 4} | more]}}


H100 = {"match": {"vendor": "nvidia", "productName": "NVIDIA H100*"}, "name": "nvidia.com/h100"}
SMALL = {"match": {"profile": "1g.5gb"}, "name": "nvidia.com/mine"}
FLAGS = ("renameByDefault", "failRequestsGreaterThanOne")
SLICED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4%s}]}}"


@cases(
    ("own", "policy"),

        pytest.param(by(file="flags: {migStrategy: mixed}"), {"partitions": {"strategy": "mixed"}}, id="mig, file"),
        pytest.param(by("--mig-strategy=single"), {"partitions": {"strategy": "single"}}, id="mig, flag"),
        pytest.param(by(file=SLICED % ""), shared("timeSlicing"), id="time-slicing"),
        pytest.param(by(file=SLICED % ", rename: a.b/c"), shared("timeSlicing", rename="a.b/c"), id="renamed"),
        pytest.param(by(file=SLICED % ", devices: [0, '1:0']"), shared("timeSlicing", devices=["0", "1:0"]), id="some"),
        pytest.param(
            by(file="sharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: "
               "[{name: nvidia.com/gpu, replicas: 4}]}}"),
            {"sharing": shared("timeSlicing")["sharing"] | dict.fromkeys(FLAGS, True)},
            id="one share each, under another name",
        ),
        pytest.param(
            by(*MPS, file="sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"), shared("mps"), id="mps"
        ),
        pytest.param(
            by(file="resources: {gpus: [{pattern: 'NVIDIA H100*', name: h100}], mig: [{pattern: 1g.5gb, name: mine}]}"),
            {"resources": {"devices": [H100, SMALL]}},
            id="names by pattern",
        ),
        pytest.param(
            by(variables={"DEVICE_LIST_STRATEGY": "volume-mounts,cdi-cri", "PASS_DEVICE_SPECS": "true"}),
            {"injection": {"deviceListStrategies": ["volume-mounts", "cdi-cri"], "passDeviceSpecs": True}},
            id="injection, variables",
        ),
        pytest.param(
            by(file="flags: {plugin: {deviceIDStrategy: index}}"),
            {"injection": {"deviceIDStrategy": "index"}},
            id="index",
        ),
        pytest.param(
            by(variables={"DP_DISABLE_HEALTHCHECKS": "48,79", "DP_ENABLE_HEALTHCHECKS": "13"}),
            {
                "health": {
                    "rules": [
                        {"reasons": ["Xid13"], "state": "Unhealthy"},
                        {"reasons": ["Xid48", "Xid79"], "state": "Ignored"},
                    ]
                }
            },
            id="XIDs",
        ),
        pytest.param(by("--serving-mode=Observe"), {"serving": {"mode": "Observe"}}, id="observe"),

)  # fmt: skip
def test_the_nodes_own_words_and_a_policys_make_one_configuration(own: Effective, policy: dict[str, Any]) -> None:
    theirs = by(*(MPS if own.node.mps_root else ()), policy=policy)
    assert theirs == own
    assert theirs != by(), "and it is not the default"
