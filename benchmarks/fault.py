"""From a fault in the probe's input to the kubelet, the NodeDevices, the pod and the Node: on the real cluster.

Two nodes on this machine, our images from our manifests. A device that a pod holds is lost and found again, several
times, slowly enough that the publisher's budget of writes (one per 5 s, after a burst) is not what is measured. The
moment before the new file is sent counts as the beginning, the arrival of the changed object here as the end, so every
number includes the way through the API server and back.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack

from support import simulated
from support.cluster import GPU, HEALTHY, NAMESPACE
from support.kubectl import Watch, condition
from support.rig_cluster import RigCluster

from benchmarks.rig import on_the_rig
from benchmarks.table import Row, percentile

ROUNDS = 5
PAUSE_SECONDS = 6.0
TARGETS = {"kubelet": 1.0, "NodeDevices.status": 2.0, "pod condition": 5.0, "Node allocatable": 15.0}


def measure() -> list[Row]:
    with on_the_rig() as cluster:
        return rows(rounds(cluster))


def rounds(cluster: RigCluster) -> dict[str, list[float]]:
    """Seconds, by where they were read, one for each round."""
    cluster.reset()
    cluster.pod("held", cluster.a, {GPU: 1})
    [bad] = cluster.held(cluster.a, "held")
    cluster.until("NodeDevices names the holder", lambda: cluster.devices(cluster.a)[bad].get("holders"))
    index = cluster.devices(cluster.a)[bad]["index"]
    found: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as watches:

        def watch(*args: str) -> Watch:
            return watches.enter_context(Watch(cluster.kubectl, args))

        devices = watch("nodedevices", cluster.a)
        pod = watch("pod", "held", "-n", NAMESPACE)
        node = watch("node", cluster.a)
        far = watches.enter_context(cluster.reach(cluster.a))
        far.call("watch")
        cluster.until("the watches have begun", lambda: devices.seen and pod.seen and node.seen)
        for _ in range(ROUNDS):
            time.sleep(PAUSE_SECONDS)
            began = cluster.hardware(cluster.a, simulated.h100s(lost=index))
            ends = {
                "kubelet": far.first_allocatable(GPU, 7, after=began),
                "NodeDevices.status": devices.first(
                    "the status", lambda one: one["status"]["summary"]["unhealthy"] == 1, after=began
                )[0],
                "pod condition": pod.first(
                    "the mark", lambda one: condition(one, HEALTHY).get("status") == "False", after=began
                )[0],
                "Node allocatable": node.first(
                    "the Node", lambda one: one["status"]["allocatable"].get(GPU) == "7", after=began
                )[0],
            }
            for where, end in ends.items():
                found[where].append(end - began)
            back = cluster.hardware(cluster.a, simulated.h100s())
            node.first("the Node is back", lambda one: one["status"]["allocatable"].get(GPU) == "8", after=back)
            pod.first("the pod is well", lambda one: condition(one, HEALTHY).get("status") == "True", after=back)
    return found


def rows(found: dict[str, list[float]]) -> list[Row]:
    made = []
    for where, seconds in found.items():
        for name, value in (("median", percentile(seconds, 50)), ("slowest", max(seconds))):
            made.append(
                Row(
                    what=f"fault -> {where}, {name} of {len(seconds)}",
                    measured=value,
                    unit="s",
                    target=TARGETS[where],
                    floor=percentile(found["kubelet"], 50) if where != "kubelet" else None,
                    floor_is="fault -> kubelet, median" if where != "kubelet" else "",
                )
            )
    return made
