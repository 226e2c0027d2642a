"""Whatever other programs left on a node or answer there: it is understood or refused, and the agent goes on."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_plugin.claims.records import RecordError
from nodedevices_plugin.host.claim_files import ClaimFiles
from nodedevices_plugin.inputs.cluster import node_pod
from nodedevices_plugin.inputs.reader import ProbeLineError, parse_line
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as api
from nodedevices_plugin.kubelet.checkpoint import CheckpointError, parse
from nodedevices_plugin.kubelet.holders import listed, offers
from nodedevices_plugin.model import DRA_DRIVER, AllocationError, NodePods
from nodedevices_plugin.pipeline.state import StateError, StateFile
from nodedevices_probe.loop import encode
from support.corpus import changed, changed_json, recorded, sentence
from support.facts import START, gpu, gpu_id, partition
from support.fuzzing import scaled
from support.odd_json import with_odd_value
from support.stepped_node import Node, Steps, report_of

RECORDED = "2f6c0f5e-4f2b-4b2a-9f56-0d7b2f7f3a10"  # the claim of the corpus
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
IDS = (gpu_id(0), f"{gpu_id(0)}::1", "::1", f"{gpu_id(1)}::99999999999999999999", "a" * 300, "\x00\u202e")
TEXTS = st.sampled_from(["", "nvidia.com/gpu", *IDS]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)  # protobuf takes no half of a character


# --- the kubelet's checkpoint ----------------------------------------------------------------------------------------
def ids_in(value: Any) -> Iterator[str]:
    """Every text of a value."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from ids_in(inner)


def check_checkpoint(raw: bytes) -> None:
    try:
        entries = parse(raw)
    except CheckpointError as error:
        sentence(error)
        return
    listed_there = json.loads(raw)["Data"]["PodDeviceEntries"]
    assert listed_there is None or isinstance(listed_there, list), "empty, of what is no list of entries"
    given_there = {each for entry in listed_there or () for each in ids_in(entry["DeviceIDs"])}
    assert {each for entry in entries for each in entry.ids} == given_there, "an id is lost, or was made up"
    for entry in entries:
        " ".join((entry.pod_uid, entry.container, entry.resource, *entry.ids)).encode()


@recorded("checkpoint")
def test_a_recorded_checkpoint_is_read_or_refused(path: Path) -> None:
    check_checkpoint(path.read_bytes())


@given(changed_json("checkpoint") | changed("checkpoint"))
def test_a_changed_checkpoint_has_every_id_or_is_refused(raw: bytes) -> None:
    check_checkpoint(raw)


# --- our own state file ----------------------------------------------------------------------------------------------
def check_state(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = StateFile(Path(folder, "state.json"))
        file.path.write_bytes(raw)
        try:
            state = file.load()
        except StateError as error:
            sentence(error)
            assert Path(folder, "state.json.unreadable").exists(), "a person can look at it"
            return
        node = Node(gpu(0), state=state)
        node.now()
        report_of(node.world, node.time)
        file.save(node.world.state)
        assert file.load() == node.world.state
        assert not file.unread


@recorded("state")
def test_a_recorded_state_is_read_or_put_aside(path: Path) -> None:
    check_state(path.read_bytes())


@settings(max_examples=scaled(50), suppress_health_check=SLOW)
@given(changed_json("state") | changed("state"))
def test_an_agent_starts_with_any_state_file_and_saves_what_it_knows(raw: bytes) -> None:
    check_state(raw)


# --- records of claims -----------------------------------------------------------------------------------------------
def check_record(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "claims", f"{RECORDED}.json")
        path.parent.mkdir()
        path.write_bytes(raw)
        files = ClaimFiles(path.parent, Path(folder, "cdi"), driver=DRA_DRIVER)
        found = files.read()
    for problem in filter(None, (files.problem, *(record.problem for record in found.values()))):
        sentence(RecordError(problem))
    for record in found.values():
        assert record.uid == RECORDED
        assert record.prepared or record.not_understood, "it holds nothing, and is not set aside"
    assert bool(found) is not bool(files.problem), "neither kept nor set aside"


@recorded("claim-record")
def test_a_recorded_claim_is_read_or_set_aside(path: Path) -> None:
    check_record(path.read_bytes())


@given(changed_json("claim-record") | changed("claim-record"))
def test_a_changed_record_keeps_a_device_or_is_set_aside(raw: bytes) -> None:
    check_record(raw)


# --- a probe's lines -------------------------------------------------------------------------------------------------
def check_line(raw: bytes) -> None:
    try:
        line = parse_line(raw)
    except ProbeLineError as error:
        sentence(error)
        return
    assert parse_line(encode(line)) == line
    node = Steps().step(line)
    node.clock += 1
    node.step(line)
    report_of(node.world, node.time)


@recorded("probe-line")
def test_a_recorded_line_is_read_or_refused(path: Path) -> None:
    check_line(path.read_bytes())


@settings(max_examples=scaled(50), suppress_health_check=SLOW)
@given(changed_json("probe-line") | changed("probe-line"))
def test_a_changed_line_is_read_and_reported_or_refused(raw: bytes) -> None:
    check_line(raw)


# --- PodResources ----------------------------------------------------------------------------------------------------
DEVICES = st.builds(
    lambda name, ids: api.ContainerDevices(resource_name=name, device_ids=ids), TEXTS, st.lists(TEXTS, max_size=3)
)
CLAIMS = st.builds(
    lambda name, namespace, driver, pool, device: api.DynamicResource(
        claim_name=name,
        claim_namespace=namespace,
        claim_resources=[api.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)],
    ),
    *[TEXTS] * 2,
    st.just("gpu.nvidia.com") | TEXTS,
    *[TEXTS] * 2,
)
CONTAINERS = st.builds(
    lambda name, devices, claims: api.ContainerResources(name=name, devices=devices, dynamic_resources=claims),
    TEXTS,
    st.lists(DEVICES, max_size=2),
    st.lists(CLAIMS, max_size=2),
)
PODS = st.builds(
    lambda name, namespace, containers: api.PodResources(name=name, namespace=namespace, containers=containers),
    TEXTS,
    TEXTS,
    st.lists(CONTAINERS, max_size=2),
)
LISTS = st.lists(PODS, max_size=3).map(lambda pods: api.ListPodResourcesResponse(pod_resources=pods))
OFFERS = st.lists(DEVICES, max_size=3).map(lambda devices: api.AllocatableResourcesResponse(devices=devices))


@settings(max_examples=scaled(25), suppress_health_check=SLOW)
@given(LISTS, OFFERS, st.lists(TEXTS, max_size=4), TEXTS)
def test_whatever_the_kubelet_answers_and_asks_for_it_is_reported_and_a_held_device_has_one_shape(
    answer: api.ListPodResourcesResponse, offered: api.AllocatableResourcesResponse, asked: list[str], resource: str
) -> None:
    node = Node(gpu(0), gpu(1, mig_enabled=True, partitions=(partition(1, 0),)))
    sharing = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}
    holders = listed(answer, START)
    for config in ({"sharing": sharing}, {}):
        node.now(config, *holders)
        node.given(holdings=replace(node.inputs.holdings, offered=offers(offered)))
        node.line()
        report_of(node.world, node.time)
        known = {id_: name for name, ids in node.offers.items() for id_ in ids}
        for name in (resource, *known.values()):
            try:
                node.container(name, *asked)
            except AllocationError:
                continue
            else:
                assert all(known.get(each) == name for each in asked), "what was not offered is not granted"


# --- pods of the node ------------------------------------------------------------------------------------------------
POD = {
    "metadata": {"uid": "u", "name": "a", "namespace": "ml", "annotations": {"nodedevices.io/gpu-cores.main": "30"}},
    "spec": {
        "initContainers": [{"name": "warm", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "resources": {"limits": {"nodedevices.io/gpu-memory": "2"}}}],
    },
    "status": {
        "phase": "Pending",
        "startTime": "2026-11-21T07:00:00Z",
        "containerStatuses": [{"name": "main", "restartCount": 1, "containerID": "x"}],
    },
}
BY_CORES = {
    "sharing": {
        "strategy": "memory",
        "resources": [
            {"name": "nvidia.com/gpu", "memoryUnit": "10Gi", "cores": True, "rename": "nodedevices.io/gpu-memory"}
        ],
    }
}


@settings(max_examples=scaled(40), suppress_health_check=SLOW)
@given(with_odd_value(POD), st.text(max_size=20) | st.sampled_from(["30", "-1", "1e9", "9" * 400, "٣", "100%", "0.5"]))
def test_whatever_a_pod_and_its_annotations_say_the_node_goes_on(pod: Any, cores: str) -> None:
    told = json.loads(json.dumps(POD))
    told["metadata"]["annotations"]["nodedevices.io/gpu-cores.main"] = cores
    pods = tuple(each for each in map(node_pod, (pod, told)) if each is not None)
    node = Node(gpu(0)).given(pods=NodePods(pods=pods))
    node.now(BY_CORES)
    report_of(node.world, node.time)
