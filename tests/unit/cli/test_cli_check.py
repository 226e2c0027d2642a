"""Where the chain from driver to pod breaks, what policies make of a node, versions, and proposals for a shell."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from nodedevices_api.conditions import ACTIONS, REASONS
from nodedevices_common import __version__
from nodedevices_common.times import rfc3339
from nodedevices_kubectl.main import proposals
from nodedevices_kubectl.session import Machine
from support.command_line import NOW, CommandLine, JsonObject, action, condition, failed, gpu, node
from support.recorded_api import NODE_DEVICES, NODES, POLICIES, RecordedApi

AGENTS = "/api/v1/namespaces/nodedevices-system/pods"
PODS = "/api/v1/pods"
AGENT = {"app.kubernetes.io/name": "nodedevices", "app.kubernetes.io/component": "agent"}
LINKS = ["node", "agent", "driver", "devices", "health", "configuration", "kubelet", "allocatable", "holders", "pods"]
LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodedevices-system/leases/nodedevices-operator"


def plain_node(name: str, gpus: int, ready: str = "True", **labels: str) -> JsonObject:
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [condition("Ready", ready, "KubeletReady" if ready == "True" else "NodeStatusUnknown")],
        },
    }


@pytest.fixture
def well(api: RecordedApi) -> RecordedApi:
    """One node on which all is well, an operator that leads, and one policy."""
    api.add(NODE_DEVICES, node("n1", gpu(0, "ml/train-0"), gpu(1)))
    api.add(NODES, plain_node("n1", 2))
    api.add(
        POLICIES, {"metadata": {"name": "share"}, "status": {"conditions": [condition("Accepted", "True", "Accepted")]}}
    )
    api.singles[LEASE] = {"spec": {"holderIdentity": "operator-1", "renewTime": "2026-11-23T11:59:55.000000Z"}}
    return api


def found(kubectl: CommandLine) -> dict[tuple[str, str], JsonObject]:
    return {(each["node"], each["link"]): each for each in json.loads(kubectl.out)["items"]}


def test_a_cluster_that_is_well_passes_and_a_named_nodes_links_are_shown(
    well: RecordedApi, kubectl: CommandLine
) -> None:
    assert kubectl("check") == 0
    assert (kubectl.out, kubectl.err) == ("", "1 node: nothing is broken.\n")
    assert kubectl("check", "n1", "--no-headers") == 0
    assert [line.split()[1:3] for line in kubectl.out.splitlines()] == [[link, "ok"] for link in LINKS]
    kubectl("check", "--all", "-o", "name")
    assert kubectl.out.split("\n")[:2] == ["<cluster>/operator", "<cluster>/policies"]


Break = tuple[str, JsonObject]
BREAKS: list[Break] = [
    ("agent", node("n1", gpu(0), conditions=[condition("Stale", "True", "AgentLost")])),
    ("agent", node("n1", gpu(0), agent={"version": "0.1.0", "heartbeatTime": "2026-11-23T11:00:00Z"})),
    ("driver", node("n1", gpu(0), conditions=[condition("Ready", "False", "DriverNotLoaded", "no nvidia module")])),
    ("driver", node("n1", gpu(0), probes=[{"name": "nvml", "state": "Failed", "message": "no library"}])),
    ("devices", node("n1", gpu(0), conditions=[condition("Ready", "False", "DevicesLost")])),
    ("devices", node("n1", gpu(0), conditions=[condition("ExpectedDevices", "False", "Expected8Found1")])),
    ("health", node("n1", gpu(0, **failed()), gpu(1), gpu(2))),
    ("configuration", node("n1", gpu(0), gpu(1), conditions=[condition("ConfigApplied", "False", "ConfigInvalid")])),
    ("kubelet", node("n1", gpu(0), gpu(1), conditions=[condition("Ready", "False", "ServedByAnother")])),
    ("holders", node("n1", gpu(0), gpu(1), conditions=[condition("AllocatedOnce", "False", "DoubleAllocation")])),
]


def test_a_probe_without_which_the_node_is_ready_is_a_warning(well: RecordedApi, kubectl: CommandLine) -> None:
    why = "ProbeUnavailable: kmsg: cannot connect; what only this probe reports"
    ready = condition("Ready", "True", "AgentRunning", why)
    probes = [{"name": "kmsg", "state": "Failed", "message": "cannot connect"}]
    well.objects[NODE_DEVICES] = [node("n1", gpu(0), gpu(1), conditions=[ready], probes=probes)]
    kubectl("check", "-o", "json")
    assert found(kubectl)["n1", "driver"]["status"] == "warning"


@pytest.mark.parametrize(("link", "item"), BREAKS, ids=lambda it: it if isinstance(it, str) else "")
def test_the_chain_breaks_where_it_does(well: RecordedApi, kubectl: CommandLine, link: str, item: JsonObject) -> None:
    well.objects[NODE_DEVICES] = [item]
    assert kubectl("check", "n1", "-o", "json") == 3
    broken = [where for (_, where), each in found(kubectl).items() if each["status"] == "broken"]
    assert broken == [link]
    assert found(kubectl)["n1", link]["next"]
    assert f"1 link is broken on 1. What to do:\n  n1/{link}: " in kubectl.err


def test_what_will_be_well_by_itself_is_a_warning_and_passes(well: RecordedApi, kubectl: CommandLine) -> None:
    well.objects[NODE_DEVICES] = [
        node("n1", gpu(0), gpu(1), conditions=[condition("ConfigApplied", "False", "WaitingForHolders", "ml/train-0")])
    ]
    assert kubectl("check") == 0
    assert kubectl.out.split()[-4:] != []
    assert "WaitingForHolders: ml/train-0" in kubectl.out
    assert kubectl.err == "1 node: nothing is broken; warnings: 1.\n"


def test_what_cloud_and_other_monitors_say_on_the_node_is_a_warning(well: RecordedApi, kubectl: CommandLine) -> None:
    said = [
        condition("MaintenanceScheduled", "True", "Due", "Google Cloud: label L=1"),
        condition("ProblemReported", "True", "NVSentinel", "NVSentinel: GpuMemWatch=True"),
    ]
    well.objects[NODE_DEVICES] = [node("n1", gpu(0), gpu(1), conditions=said)]
    both = (
        "MaintenanceScheduled: Due: Google Cloud: label L=1; ProblemReported: NVSentinel: NVSentinel: GpuMemWatch=True"
    )
    assert kubectl("check", "-o", "json") == 0
    assert {where: each["detail"] for where, each in found(kubectl).items()} == {("n1", "node"): both}
    well.refusals[NODES] = [403]
    assert kubectl("check", "-o", "json") == 0
    assert found(kubectl)["n1", "node"]["detail"] == both
    well.objects[NODES] = [plain_node("n1", 2, "Unknown")]
    assert kubectl("check", "-o", "json") == 3
    assert found(kubectl)["n1", "node"]["detail"] == "NodeStatusUnknown"


def test_the_nodes_own_numbers_are_compared_with_what_is_offered(well: RecordedApi, kubectl: CommandLine) -> None:
    well.objects[NODES] = [plain_node("n1", 0)]
    assert kubectl("check", "n1", "-o", "json") == 3
    assert found(kubectl)["n1", "allocatable"]["detail"] == "nvidia.com/gpu: 0, but the agent offers 2"
    well.objects[NODES] = [plain_node("n1", 1)]
    assert kubectl("check", "n1") == 0


LATELY = "2026-11-23T11:59:20Z"
SPEC = {"manager": "nodedevices-operator-config", "operation": "Apply", "time": LATELY}
CHANGED: dict[str, JsonObject] = {
    "made": {"metadata": {"name": "n1", "creationTimestamp": LATELY}},
    "registered": node("n1", gpu(0), gpu(1), conditions=[condition("Ready", "True", "AgentRunning", since=LATELY)]),
    "configured": {"metadata": {"name": "n1", "managedFields": [SPEC]}},
    "well again": node("n1", gpu(0), gpu(1, health={"state": "Healthy", "since": LATELY})),
    "by a clock that is ahead": {"metadata": {"name": "n1", "creationTimestamp": "2026-11-23T12:00:40Z"}},
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_is_not_written_yet_is_pending_a_minute(
    well: RecordedApi, kubectl: CommandLine, change: JsonObject
) -> None:
    well.objects[NODES] = [plain_node("n1", 0)]
    well.objects[NODE_DEVICES] = [node("n1", gpu(0), gpu(1)) | change]
    assert kubectl("check", "-o", "json") == 4
    assert {where: each["status"] for where, each in found(kubectl).items()} == {("n1", "allocatable"): "pending"}
    assert found(kubectl)["n1", "allocatable"]["next"] == "the kubelet updates it within a minute"
    assert kubectl.err == "1 node: nothing is broken; pending: 1. Run it again in a minute.\n"


@pytest.mark.parametrize(
    "entry", [SPEC | {"time": "2026-11-23T11:58:30Z"}, SPEC | {"subresource": "status"}, SPEC | {"time": "soon"}]
)
def test_after_a_minute_or_a_heartbeat_it_is_broken(well: RecordedApi, kubectl: CommandLine, entry: JsonObject) -> None:
    well.objects[NODES] = [plain_node("n1", 0)]
    well.objects[NODE_DEVICES] = [node("n1", gpu(0), gpu(1)) | {"metadata": {"name": "n1", "managedFields": [entry]}}]
    assert kubectl("check") == 3


@pytest.mark.parametrize(("made", "code"), [(LATELY, 4), ("2026-11-23T11:50:00Z", 3)])
def test_an_agent_that_has_just_begun_is_pending(well: RecordedApi, kubectl: CommandLine, made: str, code: int) -> None:
    well.objects[NODE_DEVICES] = [{"metadata": {"name": "n1", "creationTimestamp": made}}]
    assert kubectl("check", "n1") == code
    assert "it has not reported yet" in kubectl.out


def test_what_is_broken_counts_before_what_is_pending(well: RecordedApi, kubectl: CommandLine) -> None:
    well.add(NODE_DEVICES, node("n2", gpu(0, **failed())))
    well.add(NODES, plain_node("n2", 0))
    well.objects[NODES][0] = plain_node("n1", 0)
    well.objects[NODE_DEVICES][0]["metadata"]["creationTimestamp"] = LATELY
    assert kubectl("check") == 3


def test_a_pod_that_holds_a_device_at_fault_or_was_hit_alone_is_named(well: RecordedApi, kubectl: CommandLine) -> None:
    well.objects[NODE_DEVICES] = [node("n1", gpu(0, "ml/train-0", **failed()), gpu(1), gpu(2))]
    assert kubectl("check", "n1", "-o", "json") == 3
    assert found(kubectl)["n1", "pods"]["detail"] == "ml/train-0 has gpu-0 (Xid79)"
    device = gpu(0, "ml/train-0", "ml/train-1")
    device["holders"][0]["health"] = {"state": "Unhealthy", "reason": "MpsDaemonRestarted"}
    well.objects[NODE_DEVICES] = [node("n1", device, gpu(1))]
    assert kubectl("check", "n1", "-o", "json") == 3
    assert found(kubectl)["n1", "pods"]["detail"] == "ml/train-0 has gpu-0 (MpsDaemonRestarted)"


# Said by another condition, or nothing to be looked at.
SILENT = {
    *(("Applied", "DryRun"), ("Applied", "NotAccepted"), ("RolledOut", "Progressing"), ("RolledOut", "Failed")),
    *((kind, "Starting") for kind in ("ExpectedDevices", "AllocatedOnce")),
    *(("ActionsSynced", reason) for reason in REASONS["ActionsSynced"]["False"]),  # by the actions themselves
}
WELL_WHEN_FALSE = {"Stale", "Conflicted", "ActionsStopped", "ProblemReported", "MaintenanceScheduled"}
OF_POLICIES = list(REASONS)[-5:]
UNWELL = [
    (kind, status, reason)
    for kind, statuses in REASONS.items()
    for status, reasons in statuses.items()
    for reason in reasons
    if status != ("False" if kind in WELL_WHEN_FALSE else "True") and (kind, reason) not in SILENT
]


def test_no_condition_that_is_not_well_is_left_out(well: RecordedApi, kubectl: CommandLine) -> None:
    policy, nodes = well.objects[POLICIES][0]["status"], well.objects[NODE_DEVICES]
    before = policy["conditions"]
    for kind, status, reason in UNWELL:
        said, of_policy = [condition(kind, status, reason, "so it is")], kind in OF_POLICIES
        policy["conditions"] = said if of_policy else before
        well.objects[NODE_DEVICES] = nodes if of_policy else [node("n1", gpu(0), gpu(1), conditions=said)]
        code = kubectl("check")
        assert "so it is" in kubectl.out, (kind, reason)
        assert code == (3 if "broken" in kubectl.out else 0), (kind, reason)


def test_no_action_that_is_not_in_sync_is_left_out(well: RecordedApi, kubectl: CommandLine) -> None:
    for name, reasons in ACTIONS.items():
        for reason in reasons:
            broken = reason in {"NotWritten", "Forbidden", "Conflict"}
            shown = [
                action("labels" if name != "labels" else "taint", "InSync", "not this"),
                action(name, reason, "so"),
            ]
            well.objects[NODE_DEVICES] = [node("n1", gpu(0), gpu(1), actions=shown)]
            assert kubectl("check", "-o", "json") == (3 if broken else 0), (name, reason)
            link = found(kubectl)["n1", "configuration"]
            assert (link["status"], link["detail"]) == ("broken" if broken else "warning", f"{name}: {reason}: so")


def test_what_failed_for_good_is_broken_whatever_its_reason(well: RecordedApi, kubectl: CommandLine) -> None:
    said = condition("Applied", "False", "Failed", "forbidden")
    before = well.objects[POLICIES][0]["status"]["conditions"]
    well.objects[POLICIES][0]["status"]["conditions"] = [said]
    assert kubectl("check") == 3
    well.objects[POLICIES][0]["status"]["conditions"] = before
    well.objects[NODE_DEVICES] = [node("n1", gpu(0), gpu(1), actions=[action("taint", "Failed", "forbidden")])]
    assert kubectl("check") == 3


def test_policies_and_the_operator_are_links_of_the_cluster(well: RecordedApi, kubectl: CommandLine) -> None:
    well.singles[LEASE] = {"spec": {"holderIdentity": "operator-1", "renewTime": "2026-11-23T11:00:00.000000Z"}}
    stopped = condition("ActionsStopped", "True", "MassFault", "30 of 40 nodes failed")
    refused = condition("Accepted", "False", "Invalid", "sharing: ...")
    well.objects[POLICIES] = [
        {"metadata": {"name": "evict"}, "status": {"conditions": [stopped]}},
        {"metadata": {"name": "share"}, "status": {"conditions": [refused]}},
    ]
    assert kubectl("check", "-o", "json") == 3
    shown = found(kubectl)
    assert shown["<cluster>", "operator"]["detail"] == "no replica leads since 60m"
    assert shown["<cluster>", "policy evict"]["next"] == (
        "find the common cause of the faults (docs/runbooks/NodeDevicesActionsStopped.md); then: "
        "kubectl nodedevices confirm actions resumed"
    )
    assert shown["<cluster>", "policy share"]["detail"] == "Accepted: Invalid: sharing: ..."


@pytest.mark.parametrize("minutes", [-16, 2, 16])
def test_what_is_overdue_is_so_by_the_api_servers_clock(well: RecordedApi, kubectl: CommandLine, minutes: int) -> None:
    """Lease and heartbeats are as fresh as always; the person's clock is wrong."""
    well.date = NOW - timedelta(minutes=minutes)
    at = rfc3339(well.date)
    well.singles[LEASE] = {"spec": {"holderIdentity": "operator-1", "renewTime": at}}
    well.objects[NODE_DEVICES][0]["status"]["agent"]["heartbeatTime"] = at
    assert kubectl("check") == 0
    well.date = NOW
    assert kubectl("check") == (3 if minutes > 0 else 0)


def test_a_roll_out_that_somebody_has_paused_is_no_fault(well: RecordedApi, kubectl: CommandLine) -> None:
    well.objects[POLICIES][0]["status"]["conditions"] = [
        condition("RolledOut", "False", "Paused", "spec.mode is Paused")
    ]
    assert kubectl("check", "-o", "json") == 0
    policy = found(kubectl)["<cluster>", "policy share"]
    assert (policy["status"], policy["next"]) == ("warning", "kubectl describe dp share")


def test_a_stopped_roll_out_is_to_be_corrected_first_and_then_resumed(well: RecordedApi, kubectl: CommandLine) -> None:
    well.objects[POLICIES][0]["status"]["conditions"] = [condition("RolledOut", "False", "Stopped", "n2: no mps")]
    assert kubectl("check") == 3
    assert kubectl.err.endswith(
        "correct the policy (kubectl describe dp share): the roll-out then continues. To continue without a change: "
        "kubectl nodedevices confirm policy/share resumed\n"
    )


def test_what_a_budget_refuses_is_said_of_node_and_pods_that_it_leaves(well: RecordedApi, kubectl: CommandLine) -> None:
    refused = action("evictions", "Refused", "the budget is used up: 6 of 6 in an hour")
    held = gpu(0, "ml/train-0", **failed())
    well.objects[NODE_DEVICES] = [node("n1", held, gpu(1), gpu(2), actions=[refused])]
    assert kubectl("check", "-o", "json") == 3
    links = found(kubectl)
    assert links["n1", "configuration"]["detail"] == f"evictions: Refused: {refused['message']}"
    why = f"delete these pods; the policy does not evict them: Refused: {refused['message']}"
    assert links["n1", "pods"]["next"] == why


def test_a_node_without_an_agent_is_a_warning_unless_none_is_wanted(well: RecordedApi, kubectl: CommandLine) -> None:
    well.add(NODES, plain_node("cpu", 0), plain_node("away", 0, **{"nodedevices.io/agent": "away"}))
    assert kubectl("check", "-o", "name") == 0
    assert kubectl.out == "cpu/agent\n"


def test_a_check_that_saw_nothing_does_not_pass(api: RecordedApi, kubectl: CommandLine) -> None:
    api.objects[AGENTS] = []
    assert kubectl("check") == 3
    assert "no node has reported" in kubectl.out
    assert kubectl("check", "-l", "pool=typo") == 3
    pod = {"name": "agent-x", "labels": AGENT}
    for begun, code in ((LATELY, 4), ("2026-11-23T11:50:00Z", 3)):
        api.objects[AGENTS] = [{"metadata": {**pod, "creationTimestamp": begun}}]
        assert kubectl("check") == code
    assert kubectl("check", "-l", "pool=typo") == 3
    del api.objects[NODE_DEVICES]
    assert kubectl("check") == 3
    assert "the cluster of context here has no kind NodeDevices" in kubectl.out


def test_who_may_not_read_nodes_sees_the_rest(well: RecordedApi, kubectl: CommandLine) -> None:
    well.refusals[NODES] = [403]
    well.refusals[LEASE] = [403]
    assert kubectl("check", "--all", "-o", "json") == 0
    shown = found(kubectl)
    unknown = {where for (_, where), each in shown.items() if each["status"] == "unknown"}
    assert unknown == {"operator", "node", "allocatable"}


# --- an installation --------------------------------------------------------------------------------------------------
def agent_pod(node_name: str, **state: JsonObject) -> JsonObject:
    statuses = [{"name": "agent", "state": state or {"running": {}}}]
    return {
        "metadata": {"name": f"agent-{node_name}", "labels": AGENT},
        "spec": {"nodeName": node_name},
        "status": {"containerStatuses": statuses},
    }


@pytest.fixture
def installed(well: RecordedApi) -> RecordedApi:
    well.add(PODS, agent_pod("n1"))
    return well


def installation(kubectl: CommandLine) -> tuple[int, dict[tuple[str, str], tuple[str, str]]]:
    code = kubectl("check", "--installation", "-o", "json")
    return code, {where: (each["status"], each["detail"]) for where, each in found(kubectl).items()}


def test_of_an_installation_a_device_at_fault_breaks_nothing(installed: RecordedApi, kubectl: CommandLine) -> None:
    lost = condition("ExpectedDevices", "False", "Expected2Found1")
    installed.objects[NODE_DEVICES] = [node("n1", gpu(0, "ml/train-0", **failed()), gpu(1), conditions=[lost])]
    stopped = condition("RolledOut", "False", "Stopped", "n1: 1 of 2 devices are offered")
    installed.objects[POLICIES][0]["status"]["conditions"] = [stopped]
    assert kubectl("check") == 3
    assert kubectl("check", "--installation") == 0
    assert (kubectl.out, kubectl.err) == ("", "1 node with 2 devices, 1 healthy: nothing is broken.\n")


def test_a_node_that_is_down_breaks_no_installation_and_is_named(installed: RecordedApi, kubectl: CommandLine) -> None:
    installed.add(NODES, plain_node("n2", 0, "Unknown"), plain_node("cpu", 0))
    installed.add(PODS, agent_pod("n2", waiting={"reason": "ContainerCreating"}))
    assert installation(kubectl) == (0, {("n2", "node"): ("unknown", "not checked, because the Node is not Ready")})
    assert kubectl.err == "1 node with 2 devices, 2 healthy: nothing is broken.\n"


@pytest.mark.parametrize(
    ("pods", "items", "detail"),
    [
        ([], [node("n1", gpu(0))], "no Ready Node has an agent pod"),
        (
            [agent_pod("n1", waiting={"reason": "ImagePullBackOff"})],
            [node("n1", gpu(0))],
            "its pod does not run (ImagePullBackOff)",
        ),
        ([agent_pod("n1", terminated={})], [node("n1", gpu(0))], "its pod does not run (Ended)"),
        ([agent_pod("n1") | {"status": {}}], [node("n1", gpu(0))], "its pod does not run (Pending)"),
        ([agent_pod("n1")], [], "it has not reported yet"),
        (
            [agent_pod("n1")],
            [node("n1", gpu(0), conditions=[condition("Ready", "Unknown", "Starting", "so it is")])],
            "Starting: so it is",
        ),
        (
            [agent_pod("n1")],
            [node("n1", gpu(0), conditions=[condition("Ready", "False", "ServedByAnother", "by k8s")])],
            "ServedByAnother: by k8s",
        ),
        ([agent_pod("n1")], [node("n1", gpu(0), conditions=[condition("Stale", "True", "AgentLost")])], "AgentLost"),
    ],
)
def test_what_breaks_an_installation_is_named(
    installed: RecordedApi, kubectl: CommandLine, pods: list[JsonObject], items: list[JsonObject], detail: str
) -> None:
    installed.objects[PODS], installed.objects[NODE_DEVICES] = pods, items
    code, shown = installation(kubectl)
    assert (code, list(shown.values())) == (3, [("broken", detail)])


def test_an_installation_that_no_operator_has_seen_is_broken(installed: RecordedApi, kubectl: CommandLine) -> None:
    conditions = installed.objects[NODE_DEVICES][0]["status"]["conditions"]
    conditions[:] = [each for each in conditions if each["type"] != "Stale"]
    assert installation(kubectl) == (3, {("n1", "agent"): ("broken", "it reports, but no operator has seen it")})


def test_an_installation_without_a_leader_is_broken(installed: RecordedApi, kubectl: CommandLine) -> None:
    installed.singles[LEASE]["spec"]["holderIdentity"] = ""
    code, shown = installation(kubectl)
    assert (code, list(shown)) == (3, [("<cluster>", "operator")])
    assert kubectl("check", "--installation", "--no-lease") == 0
    assert kubectl("check", "--no-lease") == 2


def test_it_is_looked_at_until_nothing_is_broken_or_time_is_up(installed: RecordedApi, kubectl: CommandLine) -> None:
    pod = installed.objects[PODS].pop()
    slept: list[float] = []

    def meanwhile(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            installed.add(PODS, pod)

    kubectl.meanwhile = meanwhile
    assert kubectl("check", "--installation", "--wait", "10") == 0
    assert slept == [3, 3]
    installed.objects[PODS].clear()
    assert kubectl("check", "--installation", "--wait", "10") == 3
    assert slept == [3] * 6


def test_an_installation_is_of_all_nodes_and_takes_their_rights(installed: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("check", "n1", "--installation") == 2
    assert kubectl("check", "-l", "a=b", "--installation") == 2
    installed.refusals[PODS] = [403]
    assert kubectl("check", "--installation") == 1


# --- policy explain --------------------------------------------------------------------------------------------------
def resolved(**configuration: object) -> JsonObject:
    item = node("n1", gpu(0), configuration={"sources": ["policy", "flags", "file"], **configuration})
    item["status"]["appliedConfigHash"] = "ab"
    item["spec"] = {
        "config": {"sharing": {"strategy": "timeSlicing"}, "labels": {"prefix": "x"}},
        "configHash": "ab",
        "policies": [
            {"name": "share", "generation": 3, "priority": 10, "sections": ["sharing"]},
            {"name": "base", "generation": 1, "priority": 0, "sections": ["labels"]},
        ],
    }
    return item


@pytest.fixture
def policies(api: RecordedApi) -> RecordedApi:
    api.add(POLICIES, {"metadata": {"name": "share", "generation": 4}, "spec": {"sharing": {}}})
    api.add(POLICIES, {"metadata": {"name": "base", "generation": 1}, "spec": {"sharing": {}, "labels": {}}})
    return api


EXPLAINED = """\
NODE   SECTION   POLICY   PRIORITY   GENERATION   STATE     OVERRIDES   VALUE
n1     labels    base     0          1            applied   <none>      {"prefix": "x"}
n1     sharing   share    10         3            applied   base        {"strategy": "timeSlicing"}
"""


def test_each_section_is_shown_with_its_policy_and_overrides(policies: RecordedApi, kubectl: CommandLine) -> None:
    policies.add(NODE_DEVICES, resolved())
    assert kubectl("policy", "explain", "n1") == 0
    assert kubectl.out == EXPLAINED
    assert kubectl.err == (
        "n1: settings that no policy sets come from: flags, file, defaults.\n"
        "n1: policy share is at generation 4, this node at 3: the roll-out runs or waits.\n"
    )


def test_what_is_not_in_effect_says_why(policies: RecordedApi, kubectl: CommandLine) -> None:
    item = resolved(
        refusals=[{"section": "sharing", "message": "replicas: 0"}],
        unmatched=[{"section": "sharing", "entry": "resources[0].name a.b/c", "message": "there is nvidia.com/gpu"}],
    )
    item["status"]["actions"] = [action("capacity", "InSync"), action("labels", "Forbidden")]
    policies.add(NODE_DEVICES, item)
    kubectl("policy", "explain", "n1", "-o", "json")
    assert {each["section"]: each["state"] for each in json.loads(kubectl.out)["items"]} == {
        "labels": "Forbidden",
        "sharing": "refused",
    }
    assert "n1: sharing.resources[0].name a.b/c has no effect on it: there is nvidia.com/gpu" in kubectl.err


def test_what_has_no_effect_while_another_serves_is_not_applied(policies: RecordedApi, kubectl: CommandLine) -> None:
    policies.add(NODE_DEVICES, resolved(serving="Observe"))
    kubectl("policy", "explain", "n1", "-o", "json")
    assert {each["section"]: each["state"] for each in json.loads(kubectl.out)["items"]} == {
        "labels": "applied",
        "sharing": "NoEffect",
    }
    assert "n1: sharing.* has no effect while serving.mode is Observe" in kubectl.err


def test_a_node_without_policies_says_so(api: RecordedApi, kubectl: CommandLine) -> None:
    item = node("n1")
    api.add(NODE_DEVICES, item)
    kubectl("policy", "explain", "n1")
    assert "n1: the operator has not resolved it yet." in kubectl.err
    item["spec"] = {"config": {}}
    kubectl("policy", "explain", "n1")
    assert "n1: no policy sets anything." in kubectl.err


def test_a_group_alone_shows_its_commands_and_is_wrong_use(api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("policy") == 2
    assert "explain  Where each part of a node's configuration comes from." in kubectl.err
    assert "error:" not in kubectl.err


# --- version, completion ---------------------------------------------------------------------------------------------
def test_versions_of_the_plugin_the_agents_and_kubernetes(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, node("n1"), node("n2"), node("n3", agent={"version": "0.0.9"}))
    api.singles["/version"] = {"gitVersion": "v1.37.2"}
    kubectl("version")
    assert kubectl.out == (
        f"Plugin:      {__version__}\nAgents:      0.1.0 (2 nodes), 0.0.9 (1 node)\nKubernetes:  v1.37.2\n"
    )
    api.refusals[NODE_DEVICES] = [403]
    kubectl("version")
    assert kubectl.out.splitlines()[1:] == ["Agents:      you may not read them", "Kubernetes:  v1.37.2"]
    del api.objects[NODE_DEVICES]
    kubectl("version")
    assert kubectl.out.splitlines()[1:] == ["Agents:      NodeDevices is not installed", "Kubernetes:  v1.37.2"]
    asked = len(api.requests)
    kubectl("version", "--client", "-o", "json")
    assert json.loads(kubectl.out)["client"] == __version__
    kubectl("--version")
    assert kubectl.out == f"Plugin:      {__version__}\n"
    assert len(api.requests) == asked


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        (["no"], ["nodes"]),
        (["nodes", ""], ["n1", "n2"]),
        (["describe", "n"], ["n1/", "n2/"]),
        (["cordon", "n1/"], ["n1/gpu-0", "n1/gpu-1"]),
        (["devices", "-o", "j"], ["json"]),
        (["devices", "--unh"], ["--unhealthy"]),
        (["--context", "here", "nodes", "n1"], ["n1"]),
        (["policy", "explain", "n2"], ["n2"]),
        (["policy", "dry-run", "--delete", "sh"], ["share"]),
        (["confirm", "n1/"], ["n1/gpu-0", "n1/gpu-1"]),
        (["confirm", "policy/"], ["policy/share"]),
        (["confirm", "a"], ["actions", "accepted"]),
        (["confirm", "n1/gpu-0", "re"], ["recovered", "removed", "resumed"]),
        (["confirm", "n"], ["n1/", "n2/"]),
        (["--context", "gone", "nodes", ""], []),
    ],
)
def test_a_shell_is_given_words(api: RecordedApi, kubectl: CommandLine, words: list[str], proposed: list[str]) -> None:
    api.add(NODE_DEVICES, node("n1", gpu(0), gpu(1)), node("n2"))
    api.add(POLICIES, {"metadata": {"name": "share"}})
    found = proposals(words, Machine(kubectl.environment))
    assert [each.partition("\t")[0] for each in found] == proposed
