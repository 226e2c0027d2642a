"""`kubectl nodedevices` beside a real API server: pages, a watch, a cordon, and what the CRD makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nodedevices_kube.errors import ApiError
from nodedevices_kubectl import objects
from nodedevices_kubectl.api import connect, find_context
from support.fleet import FleetNode, device_id
from support.kubectl import Kubectl

COMMAND = Path(sys.executable).with_name("kubectl-nodedevices")
SECONDS = 60


def run(kubectl: Kubectl, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)}
    return subprocess.run(
        [COMMAND, *args], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def heed_interrupts() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def fleet(kubectl: Kubectl) -> list[FleetNode]:
    return [FleetNode(kubectl, f"n{number}").create() for number in range(3)]


def test_pages_of_a_real_api_server_make_one_list(kubectl: Kubectl, fleet: list[FleetNode]) -> None:
    api = connect(find_context(str(kubectl.kubeconfig), "", {}), {})
    api.page = 2
    counts: list[int] = []
    api.page_read = counts.append
    items, version = api.list_all(objects.NODE_DEVICES)
    assert counts == [2, 3]
    assert [item["metadata"]["name"] for item in items] == ["n0", "n1", "n2"]
    assert int(version) > 0
    assert api.names(objects.NODE_DEVICES) == ["n0", "n1", "n2"]
    with pytest.raises(ApiError) as missing:
        api.get(objects.at(objects.NODE_DEVICES, "n9"))
    assert missing.value.absent
    with pytest.raises(ApiError) as unknown:
        api.list_all("/apis/nodedevices.io/v1alpha1/nodetoys")
    assert unknown.value.no_such_kind
    api.close()


def test_a_cordon_is_what_the_crd_takes_and_a_second_writer_keeps_its_entry(
    kubectl: Kubectl, fleet: list[FleetNode]
) -> None:
    theirs = {"spec": {"unschedulable": [{"id": device_id(1), "reason": "theirs"}]}}
    kubectl.patch("nodedevices", "n0", theirs)
    done = run(kubectl, "cordon", "n0/0", "--reason", "RMA 4711", "--until", "8h")
    assert done.returncode == 0, done.stderr
    entries: list[dict[str, Any]] = fleet[0].object["spec"]["unschedulable"]
    assert [each["id"] for each in entries] == [device_id(1), device_id(0)]
    assert entries[1]["by"]  # whoever the kubeconfig says
    run(kubectl, "uncordon", f"n0/{device_id(0)}", f"n0/{device_id(1)}")
    assert "unschedulable" not in fleet[0].object["spec"]


def test_a_watch_prints_the_device_that_fails_and_ends_with_130(kubectl: Kubectl, fleet: list[FleetNode]) -> None:
    watching = subprocess.Popen(
        [COMMAND, "devices", "-w", "--no-headers", "--kubeconfig", str(kubectl.kubeconfig)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no thread of ours holds a lock
    )
    with watching:
        try:
            assert watching.stdout is not None
            first = [watching.stdout.readline().split()[:2] for _ in range(6)]
            assert first[0][0] == "n0"
            fleet[1].fail(1)
            changed = watching.stdout.readline().split()
            assert changed[0] == "n1"
            assert "Xid79" in changed
            watching.send_signal(signal.SIGINT)
            assert watching.wait(SECONDS) == 130
        finally:
            watching.kill()


def test_a_policy_is_tried_by_the_api_server_and_nothing_is_written(
    kubectl: Kubectl, fleet: list[FleetNode], tmp_path: Path
) -> None:
    policy = {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "tried"},
        "spec": {"nodeSelector": {}, "health": {"holdDownSeconds": 5}},
    }
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy))
    for change in ("created", "changed"):
        done = run(kubectl, "policy", "dry-run", "-f", str(path))
        assert (done.returncode, f"policy tried would be {change}" in done.stderr) == (0, True), done.stderr
        assert "has not checked" not in done.stderr
        if change == "created":
            assert kubectl.get("devicepolicy", "tried") is None
            kubectl.create({**policy, "spec": {**policy["spec"], "priority": 7}})  # type: ignore[dict-item]
    assert (kubectl.get("devicepolicy", "tried") or {})["spec"]["priority"] == 7
