"""What is refused is said all at once: files, device files and sections, and whatever else there is to say."""

from __future__ import annotations

from nodedevices_api.base import to_dict
from nodedevices_plugin.model import Holder
from nodedevices_plugin.pipeline.configuration import request_config
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.status.report import report
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_plugin.vendors.nic.rdma_config import RdmaConfig
from nodedevices_plugin.vendors.nic.sriov_config import SriovConfig
from support.exposed import facts
from support.facts import START, gpu, gpu_id
from support.local import at_once
from support.stepped_node import Node

GPU = "nvidia.com/gpu"
RDMA, SRIOV = "rdma.json", "sriov.json"
FLAGS = ("--node-name=n1", "--probe=simulated", "--simulated=h100 x 2")
LOCAL = at_once([*FLAGS, "--devices-dir=/d"], {})
GOOD = {RDMA: DeviceFileOutcome(content=RdmaConfig()), SRIOV: DeviceFileOutcome(content=SriovConfig())}
BAD = {RDMA: DeviceFileOutcome(error="not JSON"), SRIOV: DeviceFileOutcome(error="no such file", field="resourceList")}
TYPO = {"sharing": {"strategy": "timeSlicin"}}
TWO = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}]}}


def spoiled() -> Node:
    """A node that had good files."""
    node = Node(gpu(0), gpu(1), local=LOCAL)
    node.given(device_files=GOOD)
    node.now()
    node.given(device_files=BAD)
    return node


def test_every_file_and_section_that_is_wrong_is_named_also_while_a_change_waits_for_pods() -> None:
    config = spoiled().now(TWO).world.config
    assert config.reason == "ConfigInvalid"
    assert config.message == (
        "/d/rdma.json: not JSON; its last content stays in effect; "
        "/d/sriov.json: no such file; its last content stays in effect"
    )
    assert [(each.section, each.field) for each in config.others] == [("", ""), ("", "resourceList")]
    assert config.refused is None, "nothing that is wanted is not applied"
    node = spoiled()
    held = Holder(namespace="ml", pod="train-0", container="c", resource=GPU, ids=(gpu_id(0),), since=START)
    config = node.now(TWO, held).world.config
    assert config.reason == "WaitingForHolders"
    assert "ml/train-0" in config.message
    assert "/d/rdma.json: not JSON" in config.message
    assert "/d/sriov.json: no such file" in config.message
    assert len(config.others) == 2
    config = spoiled().now(TYPO).world.config
    assert config.refused is not None
    assert config.refused.section == "sharing"
    assert "timeSlicin" in config.message
    assert "/d/rdma.json: not JSON" in config.message
    assert [each.section for each in config.others] == ["", "", "sharing"]


def test_behind_a_configuration_file_that_is_wrong_nothing_else_hides() -> None:
    local = parse(["--node-name=n1", "--config-file=/c.yaml", "--devices-dir=/d"], {})
    spec = SeenSpec(config=TYPO, config_hash="h")
    requested = request_config(local, FileOutcome(error="line 1: not YAML"), spec, {RDMA: BAD[RDMA]})
    assert [each.message.partition(":")[0] for each in requested.others] == [
        "configuration file /c.yaml",
        "/d/rdma.json",
        "spec.config.sharing.strategy",
    ]


def test_each_is_a_field_of_the_report() -> None:
    config = spoiled().now(TWO).world.config
    shown = to_dict(report(facts(config=config)))["configuration"]
    assert [each["message"].partition(":")[0] for each in shown["refusals"]] == [
        "/d/rdma.json",
        "/d/sriov.json",
    ]
    assert shown["filesAlone"]
