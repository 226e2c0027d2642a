"""A real Prometheus scrapes the real agents and operator, and the alerts of a fault fire and end with it.

With alerts that fire after a second: how long a condition really has to last is tested by promtool (tests/alerts).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import prometheus_server, simulated
from support.cluster import GPU, NAMESPACE, SYSTEM
from support.prometheus import COMPONENT, program
from support.prometheus_server import Server
from support.rig_cluster import RigCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(program("prometheus") is None, reason="no prometheus: `make cluster-tools` gets one"),
]
JOBS = ("services", "pods")


@pytest.fixture
def prometheus(rig: RigCluster, tmp_path: Path) -> Iterator[Server]:
    """One that has scraped every agent and the operator, by Services and by pods."""
    rig.kubectl.run("apply", "-f", str(COMPONENT / "services.yaml"))
    try:
        with prometheus_server.running(prometheus_server.in_cluster(rig.kubectl), tmp_path, hold="1s") as server:
            pods = [rig.agent(rig.a), rig.agent(rig.b), *rig.operator_pods()]
            expected = {(job, pod["metadata"]["name"]): "up" for job in JOBS for pod in pods}

            def scraped() -> bool:  # the endpoint slices of new Services take a moment
                server.discover()
                return server.up() == expected

            rig.until("every target is up", scraped)
            rig.until("no alert is left of the start", lambda: not server.alerts())
            yield server
    finally:
        rig.kubectl.run("delete", "-f", str(COMPONENT / "services.yaml"), "--ignore-not-found")


def test_a_fault_on_a_held_device_alerts_by_node_device_and_pod_until_it_is_over(
    rig: RigCluster, prometheus: Server
) -> None:
    rig.pod("victim", rig.a, {GPU: 1})
    rig.pod("bystander", rig.a, {GPU: 1})
    [bad] = rig.held(rig.a, "victim")
    index = rig.devices(rig.a)[bad]["index"]
    holder = f'nodedevices_device_holder{{namespace="{NAMESPACE}"}}'
    shown = rig.until(
        "the holders are scraped both ways", lambda: (found := prometheus.series(holder)) and len(found) == 4 and found
    )
    for job in JOBS:
        assert {(one["node"], one["pod"]) for one in shown if one["job"] == job} == {
            (rig.a, "victim"),
            (rig.a, "bystander"),
        }
    rig.never("an alert is even pending", prometheus.alerts, seconds=3)

    rig.hardware(rig.a, simulated.h100s(xid79=index))
    expected = {"NodeDevicesDeviceUnhealthy", "NodeDevicesUnhealthyDeviceHeld", "NodeDevicesDeviceLost"}
    rig.until("the alerts fire", lambda: prometheus.firing() == expected)
    alerts = prometheus.alerts()
    assert set(alerts) == expected
    for [alert] in alerts.values():
        assert (alert["labels"]["node"], alert["labels"]["uuid"]) == (rig.a, bad)
    [held] = alerts["NodeDevicesUnhealthyDeviceHeld"]
    assert (held["labels"]["namespace"], held["labels"]["pod"]) == (NAMESPACE, "victim")
    [unhealthy] = alerts["NodeDevicesDeviceUnhealthy"]
    assert unhealthy["annotations"]["description"].startswith(f"{bad}: Xid79, recovery action ResetBus.")

    rig.hardware(rig.a, simulated.h100s())
    rig.until("the pod alone is left", lambda: prometheus.firing() == {"NodeDevicesUnhealthyDeviceHeld"})
    rig.kubectl.delete("pod", "victim", namespace=NAMESPACE)
    rig.until("the alerts are over", lambda: not prometheus.alerts())


def test_an_operator_that_is_gone_is_noticed_until_another_is_ready(rig: RigCluster, prometheus: Server) -> None:
    rig.operators(0)
    try:
        rig.until("its alert fires", lambda: prometheus.firing() == {"NodeDevicesOperatorDown"})
    finally:
        rig.operators(2)

    def scraped() -> bool:  # of pods that have just started it takes a moment
        prometheus.discover()
        ready = {one["pod"] for one in prometheus.series(f'nodedevices_operator_ready{{namespace="{SYSTEM}"}} == 1')}
        leading = {one["pod"] for one in prometheus.series("nodedevices_operator_leader == 1")}
        pods = {one["metadata"]["name"] for one in rig.operator_pods()}
        return ready == pods and leading == {rig.operator()["metadata"]["name"]} and not prometheus.alerts()

    rig.until("two are ready, one of them leads, and the alert is over", scraped)
