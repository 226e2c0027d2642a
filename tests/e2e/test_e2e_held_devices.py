"""On real kubelets: whatever restarts or is lost while pods hold devices, no device goes to a second pod.

These tests stop kubelets and the API server and reach into the nodes' files, so they run on our own rig.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from support.cluster import GPU, NAMESPACE
from support.kubectl import condition
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e]

AGENT = "nodedevices-agent"
STATE_FILE = "/var/lib/kubelet/device-plugins/nodedevices-state.json"
FOUR = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 4}]}}


@pytest.mark.parametrize("operator", ["there", pytest.param("away", marks=pytest.mark.long)])
def test_a_torn_state_file_gives_no_shared_gpu_away_as_a_whole_one(rig: RigCluster, operator: str) -> None:
    rig.policy("share", FOUR, selector={"kubernetes.io/hostname": rig.b})
    rig.until("the GPUs are shared", lambda: len(rig.ids(rig.b)) == 16)
    pod = rig.pod("notebook", rig.b, {GPU: 1})
    [held] = rig.held(rig.b, "notebook")
    shares = rig.ids(rig.b)
    gpus = set(rig.devices(rig.b))
    rig.until("the state file is there", lambda: rig.shell(rig.b, f"cat {STATE_FILE}"))
    api_server = nullcontext() if operator == "there" else rig.without_api_server()
    with api_server, rig.watching(rig.b) as seen:
        before = rig.processes(rig.b, AGENT)
        rig.shell(rig.b, f"head -c -10 {STATE_FILE} > {STATE_FILE}.torn && mv {STATE_FILE}.torn {STATE_FILE}")
        rig.kill(rig.b, AGENT)
        rig.until("it was started anew", lambda: (now := rig.processes(rig.b, AGENT)) and not set(now) & set(before))
        back = shares if operator == "there" else gpus - {held.partition("::")[0]}
        rig.until("the kubelet has devices again", lambda: rig.ids(rig.b) == back)
    assert not [offered for offered in seen() if held.partition("::")[0] in offered], "the shared GPU was offered whole"
    if operator == "there":
        assert not [offered for offered in seen() if not offered <= shares], "a whole GPU was offered first"
    rig.until("the shares are back, those of the held GPU too", lambda: rig.ids(rig.b) == shares)
    rig.alive(pod)


@pytest.mark.long
def test_a_gpu_of_an_init_container_that_no_list_shows_goes_to_nobody_in_shares(rig: RigCluster) -> None:
    spec = rig.pod_spec(rig.b, {})
    [main] = spec["containers"]
    wait = {"name": "fetch", "command": ["sh", "-c", "until [ -e /tmp/done ]; do sleep 0.2; done"]}
    spec["initContainers"] = [{**main, **wait, "resources": {"limits": {GPU: "1"}}}]
    metadata = {"name": "starts-slowly", "namespace": NAMESPACE}
    rig.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    rig.until("its init container runs", lambda: initialising(rig, "starts-slowly"))
    busy = rig.environment("starts-slowly", "fetch")["NVIDIA_VISIBLE_DEVICES"]
    assert rig.held(rig.b, "starts-slowly") == set(), "the kubelet lists no init container"
    rig.policy("share", FOUR, selector={"kubernetes.io/hostname": rig.b})
    free = {f"{one}::{share}" for one in set(rig.devices(rig.b)) - {busy} for share in range(4)}
    with rig.watching(rig.b) as seen:
        rig.until("all but its GPU are shared", lambda: rig.ids(rig.b) == free)
        rig.restart_kubelet(rig.b)
        rig.until("the kubelet has the shares again", lambda: rig.ids(rig.b) == free)
        before = rig.processes(rig.b, AGENT)
        rig.kill(rig.b, AGENT)
        rig.until("it was started anew", lambda: (now := rig.processes(rig.b, AGENT)) and not set(now) & set(before))
        rig.until("and offers the same", lambda: ready(rig) and rig.ids(rig.b) == free)
        rig.never("another is offered", lambda: rig.ids(rig.b) - free, seconds=6)
    assert not [
        offered for offered in seen() if any(each.partition("::")[0] == busy and "::" in each for each in offered)
    ]
    rig.kubectl.exec("starts-slowly", "touch", "/tmp/done", namespace=NAMESPACE, container="fetch")
    rig.running("starts-slowly")
    rig.kubectl.delete("pod", "starts-slowly", namespace=NAMESPACE)
    rig.until("the change is whole", lambda: len(rig.ids(rig.b)) == 16)


def ready(rig: RigCluster) -> bool:
    """The agent of node b has registered what it offers."""
    return bool(condition(rig.agent(rig.b), "Ready").get("status") == "True")


def initialising(rig: RigCluster, name: str) -> bool:
    status = (rig.kubectl.get("pod", name, NAMESPACE) or {}).get("status", {})
    return any("running" in each["state"] for each in status.get("initContainerStatuses", ()))
