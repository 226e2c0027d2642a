"""docs/migrate-from-gpushare.md, followed to the letter: a node moves from Aliyun's GPU share to ours and back.

Each way is run a second time, on a node that has moved already: the pods that run there by then stay.
A small device plugin stands in for Aliyun's: its resource and its kind of ids, on the nodes with its label.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support import installing, simulated, vendor
from support.bookings import physical
from support.cluster import GPU, NAMESPACE, Cluster
from support.memory_shares import ALIYUN, agreed, variables
from support.pagesteps import Page

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.any_cluster]

PAGE = installing.ROOT / "docs" / "migrate-from-gpushare.md"
THEIRS, TAKEOVER = "gpushare", "nodedevices.io/takeover"
# The agent lists the pods of an observed node every 5 s. One that it has never listed is not told from an init
# container, which no List shows, until the kubelet writes its checkpoint again: minutes. No user's pod is that young.
LISTED_SECONDS = 8.0
EACH = simulated.L4_MIB // 1024


@pytest.fixture
def theirs(cluster: Cluster) -> Iterator[set[str]]:
    """Their plugin serves node b, by its label; ours observes there. Their ids."""
    ids = sorted(f"{device}-_-{number}" for device in cluster.devices(cluster.b) for number in range(EACH))
    observe = {"serving": {"mode": "Observe"}}
    cluster.policy("observe", observe, priority=-500, selector={"kubernetes.io/hostname": cluster.b})
    cluster.until("ours serves nothing", lambda: not cluster.ids(cluster.b))
    plugin = vendor.pod(
        "gpushare", "", ids, namespace=NAMESPACE, image=cluster.image, arguments=[f"--resource={ALIYUN}"]
    )
    del plugin["spec"]["nodeName"]
    metadata = {"name": "gpushare-device-plugin-ds", "namespace": NAMESPACE}
    labels = {"app": "gpushare"}
    template = {"metadata": {"labels": labels}, "spec": plugin["spec"] | {"nodeSelector": {THEIRS: "true"}}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    try:
        cluster.kubectl.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
        cluster.kubectl.run("label", "node", cluster.b, f"{THEIRS}=true")
        cluster.until("theirs serves", lambda: cluster.ids(cluster.b, ALIYUN) == set(ids))
        yield set(ids)
    finally:
        cluster.kubectl.run("label", "node", cluster.b, f"{THEIRS}-", f"{TAKEOVER}-")
        cluster.kubectl.run("uncordon", cluster.b)
        cluster.kubectl.delete("daemonsets", metadata["name"], namespace=NAMESPACE)


def test_a_node_moves_from_aliyuns_gpu_share_and_back(cluster: Cluster, theirs: set[str], tmp_path: Path) -> None:
    page = Page.read(PAGE)
    path = f"{Path(cluster.kubectl.binary).parent}:{os.environ['PATH']}"
    environment = {**cluster.kubectl.environment(), "PATH": path, "NODE": cluster.b}
    [policy] = re.findall(r"^## Aliyun's.*?^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    cluster.kubectl.apply(yaml.safe_load(policy))
    cluster.until("the Node has theirs", lambda: cluster.node_count(cluster.b, ALIYUN) == len(theirs))
    cluster.pod("old", cluster.b, {ALIYUN: 3})
    assert cluster.held(cluster.b, "old") <= theirs, "the policy alone changes nothing"
    time.sleep(LISTED_SECONDS)

    page.run("3", folder=tmp_path, environment=environment)
    assert cluster.kubectl.get("pod", "old", NAMESPACE) is None
    ours = cluster.ids(cluster.b, ALIYUN)
    devices = set(cluster.devices(cluster.b))
    assert ours == {f"{device}::1Gi.{number}" for device in devices for number in range(EACH)}
    assert cluster.ids(cluster.b, GPU) == set()
    cluster.pod("new", cluster.b, {ALIYUN: 3})
    assert agreed(cluster, "new")["new"]["main"].shares == 3
    assert variables(cluster, "new")["ALIYUN_COM_GPU_MEM_DEV"] == str(EACH)
    assert cluster.node_count(cluster.b, "aliyun.com/gpu-count") == len(devices)

    mine = cluster.kubectl.get("pod", "new", NAMESPACE)
    assert mine is not None
    page.run("3", folder=tmp_path, environment=environment)
    cluster.alive(mine)
    assert not cluster.node(cluster.b)["spec"].get("unschedulable")

    page.run("4", folder=tmp_path, environment=environment)
    assert cluster.kubectl.get("pod", "new", NAMESPACE) is None
    cluster.until("theirs serves again", lambda: cluster.ids(cluster.b, ALIYUN) == theirs)
    cluster.until("the Node has theirs again", lambda: cluster.node_count(cluster.b, ALIYUN) == len(theirs))
    cluster.pod("again", cluster.b, {ALIYUN: 3})
    assert {physical(each) for each in cluster.held(cluster.b, "again")} <= theirs

    back = cluster.kubectl.get("pod", "again", NAMESPACE)
    assert back is not None
    page.run("4", folder=tmp_path, environment=environment)
    cluster.alive(back)
    assert not cluster.node(cluster.b)["spec"].get("unschedulable")
    assert cluster.ids(cluster.b, ALIYUN) == theirs
