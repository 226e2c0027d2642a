"""What the operator writes on pods and Nodes, and how often it speaks: its manager against an API server in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from nodedevices_api import conditions as names
from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.concerns.budget import BURST, SECONDS_PER_EVENT, SUM_UP_SECONDS, NodeEvents
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.kube.apply import MOST, Writer
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names as paths
from support.cases import cases
from support.fakekube import FakeKube, Raw
from support.marking import events_sent, next_node
from support.opfacts import GPU, NOW, SINCE, device, health, holder, node_devices, raw_policy, record
from support.whole_operator import POLICY, arrive, condition, verdict

LATER = "2026-11-21T12:30:00Z"
REFUSED = "nodedevices_operator_refused_writes_total"


class Cluster:
    """Nodes with a NodeDevices each, pods, and the operator's manager, which looks at a node whenever it changes."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.manager = Manager(self.kube, OperatorMetrics())

    async def start(self, specs: Mapping[str, Raw] = MappingProxyType({}), /, **nodes: list[Raw]) -> Cluster:
        for name, devices in nodes.items():
            ready = [{"type": "Ready", "status": "True", "lastTransitionTime": SINCE}]
            shown = {"capacity": {GPU: "1"}, "allocatable": {GPU: "1"}, "conditions": ready}
            self.kube.put(f"{paths.NODES}/{name}", {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": shown})
            self.kube.put(self._path(name), self._object(name, devices, spec=specs.get(name)))
        await self.manager.relister.once()
        await self._rest()
        return self

    def policy(self, **sections: Any) -> None:
        self.kube.put(POLICY, raw_policy("p", **sections))

    def pod(self, name: str, node: str, *, phase: str = "Running", gated: bool = False, conditions: Any = ()) -> None:
        gates = [{"conditionType": names.POD_DEVICE_HEALTHY}] if gated else []
        container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
        pod = {
            "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}"},
            "spec": {"nodeName": node, "containers": [container], "readinessGates": gates},
            "status": {"phase": phase, "startTime": SINCE, "conditions": list(conditions)},
        }
        self.kube.put(paths.pod_path("ml", name), pod)

    def ends(self, name: str, phase: str = "Failed") -> None:
        self.kube.objects[paths.pod_path("ml", name)]["status"]["phase"] = phase

    async def report(self, name: str, *devices: Raw, **status: Any) -> None:
        """The agent's next status; the operator's part stays, unless it is given."""
        before = self.kube.objects[self._path(name)]
        made = self._object(name, list(devices), **status)
        made["spec"], made["metadata"]["generation"] = before["spec"], before["metadata"]["generation"]
        made["status"].setdefault("affectedPods", before["status"].get("affectedPods", []))
        made["status"].setdefault("actions", before["status"].get("actions", []))
        kept = {"PolicyResolved", "ActionsSynced", "Stale"}
        made["status"]["conditions"] += [entry for entry in before["status"]["conditions"] if entry["type"] in kept]
        arrive(self.manager, self.kube, self._path(name), made)
        await self._rest()

    async def _rest(self) -> None:
        while (name := await next_node(self.manager)) is not None:
            await self.manager.reconcile_node(name)
            self.manager.nodes.done(name)
        await events_sent()

    def pod_mark(self, name: str) -> tuple[str, str]:
        """Status and reason of the pod's condition; empty: none."""
        return verdict(self.kube, paths.pod_path("ml", name), names.POD_DEVICE_HEALTHY)

    def shown(self, name: str) -> list[Raw]:
        conditions: list[Raw] = self.kube.objects[paths.pod_path("ml", name)]["status"]["conditions"]
        return conditions

    def affected(self, name: str) -> list[str]:
        return [it["name"] for it in self.kube.objects[self._path(name)]["status"].get("affectedPods", [])]

    def suppressed(self) -> float:
        text = self.manager.metrics.render().decode()
        [value] = re.findall(r"^nodedevices_operator_suppressed_events_total (\S+)$", text, re.MULTILINE)
        return float(value)

    @staticmethod
    def _path(name: str) -> str:
        return f"{paths.NODE_DEVICES}/{name}"

    @staticmethod
    def _object(name: str, devices: list[Raw], **status: Any) -> Raw:
        made = node_devices(*devices, **status)
        made["metadata"] |= {"name": name, "uid": f"nd-{name}"}
        return made


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def lost(index: int, *holders: str) -> Raw:
    return device(index, "Unhealthy", "Xid79", holders=[holder(name) for name in holders])


def silent(index: int, *holders: str) -> Raw:
    return device(index, "Unknown", "ProbeSilent", holders=[holder(name) for name in holders])


async def test_a_pod_that_is_no_longer_among_the_holders_listed_keeps_its_mark_while_some_are_left_out() -> None:
    cluster = Cluster()
    cluster.pod("train", "n1")
    cluster.pod("other", "n1")
    await cluster.start(n1=[lost(0, "train")])
    assert cluster.pod_mark("train") == ("False", "Xid79")
    await cluster.report("n1", lost(0, "other") | {"holdersTruncated": 1})
    assert cluster.pod_mark("train") == ("False", "Xid79")
    assert cluster.affected("n1") == ["other", "train"] or cluster.affected("n1") == ["train", "other"]
    await cluster.report("n1", lost(0, "other"))
    assert cluster.pod_mark("train")[0] == "True"
    assert cluster.affected("n1") == ["other"]


def well(index: int, *holders: str) -> Raw:
    return device(index, holders=[holder(name) for name in holders])


# --- what a container asked for --------------------------------------------------------------------------------------
def conflicting(index: int, *holders: str) -> Raw:
    """A device that is well, whose holders have another resource that sets the same variable."""
    conflict = health("Degraded", "EnvironmentConflict", message="only one is seen", faultDomain="Application")
    return device(index, holders=[holder(name) | {"health": conflict} for name in holders])


@cases(("condition", "mark"), ("OnFault", ("", "")), ("Always", ("True", "Healthy")))
async def test_a_conflict_of_two_resources_is_a_notice_on_a_well_pod(condition: str, mark: tuple[str, str]) -> None:
    cluster = Cluster()
    cluster.policy(faults={"podCondition": condition})
    cluster.pod("two", "n1")
    await cluster.start(n1=[conflicting(0, "two"), conflicting(1, "two")])
    await cluster.report("n1", conflicting(0, "two"), conflicting(1, "two"))
    [event] = [it for it in cluster.kube.events if it["involvedObject"]["name"] == "two"]
    assert event["reason"] == "DeviceNotice"
    assert "EnvironmentConflict: only one is seen" in event["message"]
    assert cluster.pod_mark("two") == mark
    assert cluster.affected("n1") == []


# --- what a program did to itself ------------------------------------------------------------------------------------
def struck(index: int, *holders: str, code: str = "Xid31", count: int = 1, since: str = SINCE) -> Raw:
    """A device that is well, where a program of these pods failed."""
    notice = {"code": code, "message": "GPU memory page fault (XID 31)", "since": since, "time": since, "count": count}
    return device(index, holders=[holder(name) for name in holders], notices=[notice])


def notices(cluster: Cluster) -> list[tuple[str, str]]:
    reported = [it for it in cluster.kube.events if it["reason"] == "DeviceNotice"]
    return sorted((it["involvedObject"]["uid"], it["message"]) for it in reported)


async def test_the_pods_that_held_the_device_get_one_event_however_often_it_comes_and_no_mark(cluster: Cluster) -> None:
    for name in ("train", "shares-it", "elsewhere"):
        cluster.pod(name, "n1")
    await cluster.start(n1=[well(0, "train", "shares-it"), well(1, "elsewhere")])
    for count in (1, 500):
        await cluster.report("n1", struck(0, "train", "shares-it", count=count), well(1, "elsewhere"))
    text = (
        "gpu-0 GPU-0: Xid31: GPU memory page fault (XID 31). The device stays in service. This node's NodeDevices "
        "counts further occurrences."
    )
    assert notices(cluster) == [("uid-shares-it", text), ("uid-train", text)]
    assert cluster.pod_mark("train") == ("", "")
    assert cluster.kube.written("/pods/") == []


async def test_what_fails_after_an_event_has_one_of_its_own(cluster: Cluster) -> None:
    for name in ("train", "shares-it"):
        cluster.pod(name, "n1")
    await cluster.start(n1=[well(0, "train")])
    await cluster.report("n1", struck(0, "train"))
    await cluster.report("n1", struck(0, "train", "shares-it"))
    assert [uid for uid, _ in notices(cluster)] == ["uid-shares-it", "uid-train"]
    await cluster.report("n1", struck(0, "train", "shares-it", since=LATER))
    await cluster.report("n1", struck(0, "train", "shares-it", since=LATER, code="Xid13"))
    assert len(notices(cluster)) == 6


async def test_a_pod_that_came_after_it_and_one_of_another_partition_get_nothing(cluster: Cluster) -> None:
    for name in ("before", "after", "beside"):
        cluster.pod(name, "n1")
    of_part = {"notices": struck(0)["notices"], "holders": [holder("before"), holder("after") | {"since": LATER}]}
    parts = [
        {"id": "MIG-1", "name": "mig-1", "profile": "1g", **of_part},
        {"id": "MIG-2", "name": "mig-2", "profile": "1g", "holders": [holder("beside")]},
    ]
    await cluster.start(n1=[well(0)])
    await cluster.report("n1", well(0) | {"partitions": parts})
    assert [uid for uid, _ in notices(cluster)] == ["uid-before"]


async def test_a_namesake_and_a_pod_of_another_node_get_nothing() -> None:
    cluster = Cluster()
    cluster.pod("elsewhere", "n2")
    cluster.pod("train", "n1")
    await cluster.start(n1=[well(0)], n2=[well(1)])
    await cluster.report("n1", struck(0, "elsewhere", "gone"))
    assert notices(cluster) == []


@cases("error", KubeError("no", status=503), KubeError("no", status=403), KubeError("no answer"))
async def test_an_event_that_could_not_be_written_is_counted_and_dropped(error: KubeError) -> None:
    cluster = Cluster()
    cluster.pod("train", "n1")
    await cluster.start(n1=[well(0, "train")])
    cluster.kube.fails = lambda verb, path: error if "/events" in path else None
    await cluster.report("n1", struck(0, "train"))
    labels = {"concern": "event", "code": str(error.status)}
    assert cluster.manager.metrics.registry.get_sample_value(REFUSED, labels) == 1
    cluster.kube.fails = lambda verb, path: None
    await cluster.report("n1", struck(0, "train", count=2))
    assert notices(cluster) == []


async def test_all_pods_of_a_node_are_marked_while_events_have_no_answer(cluster: Cluster) -> None:
    names_of_pods = [f"train-{number}" for number in range(8)]
    for name in names_of_pods:
        cluster.pod(name, "n1")
    await cluster.start(n1=[well(0, *names_of_pods)])
    answered = asyncio.Event()
    create = cluster.kube.create

    async def silent_for_events(path: str, body: JsonObject) -> JsonObject:
        if path.endswith("/events"):
            await answered.wait()
        return await create(path, body)

    cluster.kube.create = silent_for_events  # type: ignore[method-assign]
    reported = asyncio.create_task(cluster.report("n1", lost(0, *names_of_pods)))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert [cluster.pod_mark(name) for name in names_of_pods] == [("False", "Xid79")] * 8
    answered.set()
    await reported


async def test_events_beyond_what_may_wait_are_dropped_and_counted() -> None:
    bench = Bench()
    writer = Writer(bench.kube, bench.metrics, lambda: NOW)
    about = ObjectRef("NodeDevices", "n1", "nd-uid")
    for number in range(MOST + 3):
        writer.event(Event("DeviceFault", about, "text", "n1", f"GPU-{number}", "Xid79", SINCE))
    await events_sent()
    assert len(bench.kube.events) == MOST
    assert bench.metrics.registry.get_sample_value("nodedevices_operator_suppressed_events_total") == 3


# --- an agent that stops ---------------------------------------------------------------------------------------------
async def test_the_stop_of_an_agent_and_its_return_write_nothing_to_any_pod(cluster: Cluster) -> None:
    cluster.pod("train", "n1")
    cluster.pod("other", "n1")
    await cluster.start(n1=[lost(0, "train"), well(1, "other")])
    marked = cluster.shown("train")
    cluster.kube.writes.clear()
    for ready in ("AgentStopped", "AgentRunning"):
        status = "False" if ready == "AgentStopped" else "True"
        await cluster.report("n1", lost(0, "train"), well(1, "other"), conditions={"Ready": (status, ready)})
    assert cluster.kube.written("/pods/") == []
    assert cluster.shown("train") == marked
    assert cluster.affected("n1") == ["train"]


# --- whose pods ------------------------------------------------------------------------------------------------------
async def test_an_entry_that_names_another_nodes_pod_takes_no_mark_from_it(cluster: Cluster) -> None:
    cluster.pod("trainer", "a")
    await cluster.start(a=[lost(0, "trainer")], b=[well(1)])
    assert cluster.pod_mark("trainer") == ("False", "Xid79")
    stolen = {"namespace": "ml", "name": "trainer", "uid": "uid-trainer", "device": "GPU-1", "reason": "Xid79"}
    events_before = len(cluster.kube.events)
    await cluster.report("b", well(1), affectedPods=[stolen | {"since": SINCE}])
    assert cluster.pod_mark("trainer") == ("False", "Xid79")
    assert cluster.affected("a") == ["trainer"]
    assert cluster.affected("b") == []
    assert len(cluster.kube.events) == events_before


# --- pods that have ended --------------------------------------------------------------------------------------------
@cases("condition", "OnFault", "Always")
@cases(
    "then", well(0, "trainer"), silent(0, "trainer"), device(0, "Degraded", "NvlinkDown", holders=[holder()]), well(0)
)
async def test_a_pod_that_has_ended_keeps_its_condition_and_its_entry_goes(condition: str, then: Raw) -> None:
    cluster = Cluster()
    cluster.policy(faults={"podCondition": condition})
    cluster.pod("trainer", "a")
    await cluster.start(a=[lost(0, "trainer")])
    assert cluster.pod_mark("trainer") == ("False", "Xid79")
    cluster.ends("trainer")
    evidence = list(cluster.shown("trainer"))
    cluster.kube.writes.clear()
    for _ in range(2):  # with the pod remembered, and again
        await cluster.report("a", then)
    assert cluster.shown("trainer") == evidence
    assert cluster.kube.written("/pods/") == []
    assert cluster.affected("a") == []


async def test_a_pod_that_has_ended_unmarked_is_not_marked(cluster: Cluster) -> None:
    cluster.policy(faults={"podCondition": "Always"})
    cluster.pod("trainer", "a")
    await cluster.start(a=[well(0, "trainer")])
    cluster.ends("trainer", "Succeeded")
    await cluster.report("a", lost(0, "trainer"))
    assert cluster.pod_mark("trainer") == ("True", "Healthy")
    assert cluster.affected("a") == []


# --- health unknown --------------------------------------------------------------------------------------------------
@cases("condition", "OnFault", "Always")
@cases("before", well(0, "web"), lost(0, "web"))
async def test_a_silent_probe_changes_reason_and_message_and_never_the_status(condition: str, before: Raw) -> None:
    cluster = Cluster()
    cluster.policy(faults={"podCondition": condition})
    known = {"type": names.POD_DEVICE_HEALTHY, "status": "True", "reason": "Healthy", "message": ""}
    cluster.pod("web", "a", gated=True, conditions=[known | {"lastTransitionTime": SINCE}])
    await cluster.start(a=[before])
    status = cluster.pod_mark("web")[0]
    assert status == ("True" if before["health"]["state"] == "Healthy" else "False")
    [shown] = cluster.shown("web")
    await cluster.report("a", silent(0, "web"))
    assert cluster.pod_mark("web") == (status, "ProbeSilent")
    [now] = cluster.shown("web")
    assert now["lastTransitionTime"] == shown["lastTransitionTime"]
    assert f"Health unknown since {SINCE}" in now["message"]
    assert cluster.affected("a") == ["web"]
    await cluster.report("a", well(0, "web"))
    assert cluster.pod_mark("web") == ("True", "Healthy")
    assert cluster.affected("a") == []


async def test_a_pod_without_a_condition_gets_none_while_health_is_unknown(cluster: Cluster) -> None:
    cluster.pod("web", "a")
    await cluster.start(a=[well(0, "web")])
    await cluster.report("a", silent(0, "web"))
    assert cluster.pod_mark("web") == ("", "")
    assert cluster.affected("a") == []
    await cluster.report("a", lost(0, "web"))
    assert cluster.pod_mark("web") == ("False", "Xid79")


async def test_a_lesser_fault_is_reported_where_another_device_is_silent(cluster: Cluster) -> None:
    cluster.pod("web", "a")
    worn = device(1, "Degraded", "NvlinkDown", holders=[holder("web")])
    await cluster.start(a=[silent(0, "web"), worn])
    assert cluster.pod_mark("web")[0] == "True"
    assert cluster.affected("a") == ["web"]


async def test_a_pod_is_well_again_with_its_faulty_device_though_the_probe_of_another_is_silent() -> None:
    """The silent one was well when it was last seen; else the pod would be out of its Service for as long as that."""
    cluster = Cluster()
    cluster.pod("web", "a", gated=True)
    await cluster.start(a=[lost(0, "web"), well(1, "web")])
    await cluster.report("a", lost(0, "web"), silent(1, "web"))
    assert cluster.pod_mark("web") == ("False", "Xid79")
    await cluster.report("a", silent(0, "web"), silent(1, "web"))
    assert cluster.pod_mark("web") == ("False", "ProbeSilent"), "nobody knows whether it is over"
    await cluster.report("a", well(0, "web"), silent(1, "web"))
    assert cluster.pod_mark("web") == ("True", "ProbeSilent")
    assert cluster.affected("a") == ["web"]
    await cluster.report("a", well(0, "web"), lost(1, "web"))
    assert cluster.pod_mark("web") == ("False", "Xid79")
    await cluster.report("a", well(0, "web"), silent(1, "web"))
    assert cluster.pod_mark("web") == ("False", "ProbeSilent")


async def test_with_always_a_pod_that_was_never_seen_well_is_marked_unknown(cluster: Cluster) -> None:
    cluster.policy(faults={"podCondition": "Always"})
    cluster.pod("web", "a", gated=True)
    await cluster.start(a=[silent(0, "web")])
    assert cluster.pod_mark("web") == ("Unknown", "ProbeSilent")


# --- nobody watches any more -----------------------------------------------------------------------------------------
@pytest.fixture
async def marked() -> Cluster:
    """Three pods that were marked for a fault: one with a readinessGate, one without, and one that has ended since."""
    cluster = Cluster()
    for name, gated in (("gated", True), ("plain", False), ("ended", True)):
        cluster.pod(name, "a", gated=gated)
    await cluster.start(a=[lost(0, "gated", "plain", "ended")])
    cluster.ends("ended")
    return cluster


async def clean(cluster: Cluster) -> None:
    assert await clean_up(cluster.kube, dry_run=False) == 0


async def never(cluster: Cluster) -> None:
    arrive(cluster.manager, cluster.kube, POLICY, raw_policy("p", faults={"podCondition": "Never"}))
    await cluster.report("a", lost(0, "gated", "plain", "ended"))


@pytest.mark.parametrize("leave", [clean, never])
async def test_a_readiness_gate_stays_open_unwatched(marked: Cluster, leave: Callable[[Cluster], Any]) -> None:
    await leave(marked)
    assert marked.pod_mark("gated") == ("True", "NotMonitored")
    assert marked.pod_mark("plain") == ("", "")
    assert marked.pod_mark("ended") == ("False", "Xid79")
    assert marked.affected("a") == []


async def test_cleanup_of_pods_is_done_once_and_a_dry_run_writes_nothing(marked: Cluster) -> None:
    marked.kube.writes.clear()
    await clean_up(marked.kube, dry_run=True)
    assert marked.kube.writes == []
    await clean(marked)
    marked.kube.writes.clear()
    await clean(marked)
    assert marked.kube.written("/pods/") == []


# --- how often it speaks ---------------------------------------------------------------------------------------------
async def test_an_agent_that_changes_its_mind_all_the_time_gets_so_many_events_and_no_more() -> None:
    cluster = await Cluster().start(a=[well(0)], b=[well(1)])
    for minute in range(10):
        faults = [device(index, health=health("Unhealthy", "Xid79")) for index in range(64)]
        for fault in faults:
            fault["health"]["since"] = f"2026-11-21T11:{minute:02}:00Z"
        await cluster.report("a", *faults)
    assert BURST <= len(cluster.kube.events) <= BURST + 1  # one token may have come back meanwhile
    assert cluster.suppressed() == 640 - len(cluster.kube.events)
    await cluster.report("b", lost(1))
    assert cluster.kube.events[-1]["involvedObject"]["name"] == "b"


class Bench:
    def __init__(self) -> None:
        self.now = 1000.0
        self.kube = FakeKube()
        self.metrics = OperatorMetrics()
        self.events = NodeEvents(Writer(self.kube, self.metrics, lambda: NOW), self.metrics, lambda: self.now)
        self.record = record(device(0))

    async def flood(self, count: int, since: str = SINCE) -> None:
        about = ObjectRef("NodeDevices", "n1", "nd-uid")
        for index in range(count):
            self.events.write(Event("DeviceFault", about, "text", "n1", f"GPU-{index}", "Xid79", since))
        await events_sent()

    @property
    def reasons(self) -> list[str]:
        return [it["reason"] for it in self.kube.events]


async def test_what_was_too_much_is_summed_up_in_one_event_after_a_minute() -> None:
    bench = Bench()
    await bench.flood(BURST + 7)
    assert bench.reasons == ["DeviceFault"] * BURST
    assert bench.events.sum_up(bench.record) == SUM_UP_SECONDS
    bench.now += SUM_UP_SECONDS
    assert bench.events.sum_up(bench.record) is None
    await events_sent()
    assert bench.reasons[BURST:] == ["EventsSuppressed"]
    assert "7 more Events" in bench.kube.events[-1]["message"]
    assert bench.kube.events[-1]["involvedObject"]["uid"] == bench.record.uid
    assert bench.events.sum_up(bench.record) is None
    assert len(bench.kube.events) == BURST + 1


async def test_a_node_may_write_events_again_in_time_and_nothing_is_summed_up_that_was_not_suppressed() -> None:
    bench = Bench()
    await bench.flood(BURST)
    bench.now += 3 * SECONDS_PER_EVENT
    await bench.flood(5, LATER)
    assert len(bench.kube.events) == BURST + 3
    bench = Bench()
    await bench.flood(BURST)
    bench.now += SUM_UP_SECONDS
    assert bench.events.sum_up(bench.record) is None
    assert bench.reasons == ["DeviceFault"] * BURST


# --- what happened to one holder alone -------------------------------------------------------------------------------
DAEMON = health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp", faultDomain="Node")


async def test_of_the_holders_of_a_well_device_only_the_one_is_marked_that_something_happened_to() -> None:
    cluster = Cluster()
    for name in ("old", "new"):
        cluster.pod(name, "a")
    await cluster.start(a=[device(0, holders=[holder("new"), holder("old", health=DAEMON)])])
    assert cluster.pod_mark("old") == ("False", "MpsDaemonRestarted")
    assert cluster.pod_mark("new") == ("", "")
    assert cluster.affected("a") == ["old"]
    assert [it["reason"] for it in cluster.kube.events if it["involvedObject"]["name"] == "old"] == ["DeviceFault"]


async def test_a_worse_fault_of_the_device_counts_for_the_holder_until_it_is_over(cluster: Cluster) -> None:
    cluster.pod("old", "a")
    ill = device(0, "Unhealthy", "Xid79", holders=[holder("old", health=DAEMON)])
    await cluster.start(a=[ill])
    assert cluster.pod_mark("old") == ("False", "Xid79")
    await cluster.report("a", device(0, holders=[holder("old", health=DAEMON)]))
    assert cluster.pod_mark("old") == ("False", "MpsDaemonRestarted")


@cases(("started", "reported"), (SINCE, "False"), (NOW, "True"))
async def test_a_container_that_was_started_since_is_well_again(started: str, reported: str) -> None:
    cluster = Cluster()
    cluster.pod("old", "a")
    await cluster.start(a=[device(0, holders=[holder("old", health=DAEMON)])])
    running = {"name": "main", "state": {"running": {"startedAt": started}}}
    cluster.kube.objects[paths.pod_path("ml", "old")]["status"]["containerStatuses"] = [running]
    await cluster.report("a", device(0, holders=[holder("old", health=DAEMON)]), heartbeat=NOW, appliedConfigHash="1")
    assert cluster.pod_mark("old")[0] == reported
    assert cluster.affected("a") == ([] if reported == "True" else ["old"])


async def test_a_container_that_does_not_run_has_lost_nothing(cluster: Cluster) -> None:
    cluster.pod("old", "a")
    waits = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}
    cluster.kube.objects[paths.pod_path("ml", "old")]["status"]["containerStatuses"] = [waits]
    await cluster.start(a=[device(0, holders=[holder("old", health=DAEMON)])])
    assert cluster.pod_mark("old") == ("", "")


async def test_while_a_daemon_is_down_a_container_that_was_started_since_is_not_well(cluster: Cluster) -> None:
    cluster.pod("old", "a")
    down = health("Unhealthy", "MpsDaemonDown", recoveryAction="Inspect", faultDomain="Node")
    running = {"name": "main", "state": {"running": {"startedAt": NOW}}}
    cluster.kube.objects[paths.pod_path("ml", "old")]["status"]["containerStatuses"] = [running]
    await cluster.start(a=[device(0, holders=[holder("old", health=down)])])
    assert cluster.pod_mark("old") == ("False", "MpsDaemonDown")


# --- labels that a policy may not set --------------------------------------------------------------------------------
RESERVED = {"node-role.kubernetes.io/control-plane": "", "nodedevices.io/agent": "away"}


async def test_a_stored_policy_with_a_label_that_others_act_by_is_refused_and_says_so() -> None:
    """Where a CRD without that rule let it in."""
    cluster = Cluster()
    cluster.policy(labels={"extra": {"example.com/pool": "a", **RESERVED}})
    await cluster.start(a=[well(0)])
    await cluster.manager.reconcile_policy("p")
    assert "labels" not in cluster.kube.objects[f"{paths.NODES}/a"]["metadata"]
    assert verdict(cluster.kube, POLICY, "Accepted") == ("False", "Invalid")
    for key in RESERVED:
        assert key in condition(cluster.kube, POLICY, "Accepted")["message"]
