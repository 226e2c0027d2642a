"""A support bundle has what helps, and no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, gpu, node
from support.recorded_api import EVENTS, NODE_DEVICES, NODES, POLICIES, RecordedApi

PODS = "/api/v1/namespaces/nodedevices-system/pods"
SECRET = "hunter2"


@pytest.fixture
def house(api: RecordedApi) -> RecordedApi:
    """A cluster whose objects have a secret wherever people put them."""
    item = node("n1", gpu(0, "ml/train-0"))
    item["metadata"]["annotations"] = {"nodedevices.io/confirm": "x=recovered", "kubectl/last-applied": SECRET}
    item["metadata"]["managedFields"] = [{"manager": SECRET}]
    variable = {"name": "LIMITER_LICENSE", "value": SECRET}
    sharing = {"strategy": "memory", "resources": [{"name": "nvidia.com/gpu", "container": {"env": [variable]}}]}
    item["spec"] = {"config": {"sharing": sharing}}
    api.add(NODE_DEVICES, item)
    api.add(POLICIES, {"metadata": {"name": "share"}, "spec": {"nodeSelector": {}, "sharing": sharing}})
    container = {
        "name": "agent",
        "args": [f"--password={SECRET}"],
        "command": ["sh", "-c", SECRET],
        "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]}},
        "env": [{"name": "PASSWORD", "value": SECRET}, {"name": "POD_NAME", "valueFrom": {"fieldRef": {}}}],
    }
    spec = {"containers": [container], "initContainers": [container]}
    status = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "agent", "restartCount": 7, "lastState": {"terminated": {"exitCode": 2, "message": SECRET}}}
        ],
    }
    ours = {"name": "agent-1", "annotations": {"vault": SECRET}, "labels": {"app.kubernetes.io/name": "nodedevices"}}
    api.add(PODS, {"metadata": ours, "spec": spec, "status": status}, {"metadata": {"name": "of-others"}, "spec": spec})
    api.add(EVENTS, {"metadata": {"name": "e"}, "message": "gpu-0"})
    api.add(
        NODES, {"metadata": {"name": "n1", "annotations": {"x": SECRET}}, "status": {"images": [{"names": [SECRET]}]}}
    )
    api.singles["/version"] = {"gitVersion": "v1.37.2"}
    return api


def unpacked(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as archive:
        files = {Path(each.name).name: archive.extractfile(each) for each in archive.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_a_bundle_has_what_helps_and_no_secret(house: RecordedApi, kubectl: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    assert kubectl("support", "-f", str(path)) == 0
    files = unpacked(path)
    assert set(files) == {
        f"{name}.json" for name in ("nodedevices", "devicepolicies", "nodes", "pods", "events", "versions", "check")
    } | {"README.txt"}
    assert not [name for name, data in files.items() if SECRET.encode() in data or b"not-a-secret" in data]
    [item] = json.loads(files["nodedevices.json"])
    assert item["status"]["devices"][0]["holders"][0]["pod"] == "train-0"
    assert item["metadata"]["annotations"] == {"nodedevices.io/confirm": "x=recovered"}
    [pod] = json.loads(files["pods.json"])
    assert (pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]) == ("agent-1", "agent")
    [said] = pod["status"]["containerStatuses"]
    assert said == {"name": "agent", "restartCount": 7, "lastState": {"terminated": {"exitCode": 2}}}
    [policy] = json.loads(files["devicepolicies.json"])
    assert policy["spec"]["sharing"]["resources"][0]["container"]["env"] == [
        {"name": "LIMITER_LICENSE", "value": "<redacted>"}
    ]
    assert "lease: missing: there is none, or you may not read it" in files["README.txt"].decode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Read it before you send it to others." in kubectl.err
    assert not [target for _, target in house.requests if "secret" in target or "configmap" in target]


def test_a_bundle_lists_each_collection_once(house: RecordedApi, kubectl: CommandLine, tmp_path: Path) -> None:
    assert kubectl("support", "-f", str(tmp_path / "bundle.tar.gz")) == 0
    paths = [target.partition("?")[0] for _, target in house.requests]
    assert [paths.count(each) for each in (NODE_DEVICES, NODES, POLICIES)] == [1, 1, 1]


def test_a_dry_run_reads_what_a_bundle_has(house: RecordedApi, kubectl: CommandLine, tmp_path: Path) -> None:
    assert kubectl("support", "-f", str(tmp_path / "bundle.tar.gz")) == 0
    saved = []
    for name in ("nodedevices", "nodes"):
        (tmp_path / name).write_bytes(unpacked(tmp_path / "bundle.tar.gz")[f"{name}.json"])
        saved += ["--from", str(tmp_path / name)]
    policy = {"kind": "DevicePolicy", "apiVersion": "nodedevices.io/v1alpha1", "metadata": {"name": "a"}}
    (tmp_path / "a.json").write_text(json.dumps({**policy, "spec": {"nodeSelector": {}, "labels": {}}}))
    assert kubectl("policy", "dry-run", "-f", str(tmp_path / "a.json"), *saved) == 0
    assert "it selects 1 of 1 nodes" in kubectl.err


def test_a_file_that_is_there_is_kept(house: RecordedApi, kubectl: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_text("mine")
    assert kubectl("support", "-f", str(path)) == 1
    assert path.read_text() == "mine"
    assert "this file exists already; give another one with -f" in kubectl.err


def test_what_may_not_be_read_is_named_in_the_bundle(house: RecordedApi, kubectl: CommandLine, tmp_path: Path) -> None:
    house.refusals[PODS] = [403]
    house.refusals[POLICIES] = [403]
    path = tmp_path / "bundle.tar.gz"
    assert kubectl("support", "-f", str(path)) == 0
    readme = unpacked(path)["README.txt"].decode()
    assert "pods: missing: API server" in readme
    assert "devicepolicies: missing: API server" in readme
