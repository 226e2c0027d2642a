"""No view raises for an object that has something odd at any one place: what is not as it should be reads as absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from nodedevices_common.confirming import CONFIRM
from nodedevices_common.errors import NodeDevicesError
from nodedevices_common.table import Kind, Row, TableText
from nodedevices_kubectl.listing import document
from nodedevices_kubectl.views import (
    bundle,
    check,
    claims,
    describe,
    edits,
    facts,
    findings,
    lists,
    policies,
    top,
)
from support.cases import cases
from support.command_line import NOW, JsonObject, action, condition, failed, gpu, node
from support.odd_json import places, with_value


def whole() -> JsonObject:
    """A NodeDevices that has a bit of everything."""
    device = gpu(0, "ml/train-0", **failed())
    health = {"state": "Unhealthy", "reason": "MpsDaemonRestarted", "since": "2026-11-23T11:55:30Z"}
    device["holders"][0] |= {"idle": "Idle", "idleSince": "2026-11-23T09:00:00Z", "ids": ["a::0"], "health": health}
    device["attributes"]["extra"] = {"a.b/c": {"bool": True}}
    device |= {"unschedulable": "RMA", "notices": [{"code": "Xid31", "count": 1}], "history": [{"reason": "Xid79"}]}
    part = gpu(0, "ml/train-0", parent=device["name"]) | {"id": "MIG-0", "name": "gpu-0.0", "profile": "1g.10gb"}
    said = [condition("Ready", "False", "KubeletUnreachable"), condition("ActionsSynced", "False", "TaintPending")]
    item = node(
        "n1",
        device,
        part,
        gpu(1),
        conditions=said,
        actions=[action("taint", "Pending")],
        probes=[{"name": "nvml", "state": "Starting", "message": "no"}],
    )
    item["metadata"] |= {"annotations": {CONFIRM: "a=recovered"}, "managedFields": [{"time": "2026-11-23"}]}
    item["spec"] = {
        "config": {"sharing": {"strategy": "none"}},
        "policies": [{"name": "share", "generation": 3, "priority": 10, "sections": ["sharing"]}],
        "unschedulable": [{"id": device["id"], "reason": "RMA", "by": "jane", "until": "2026-12-01T08:00:00Z"}],
        "change": {"time": "2026-11-23T11:59:00Z", "policies": ["share"]},
    }
    unmatched = [{"section": "sharing", "entry": "resources[0]", "message": "no"}]
    item["status"]["configuration"] = {"sources": ["policy"], "refusals": unmatched, "unmatched": unmatched}
    item["status"]["resources"] = [
        {"name": "a.b/c", "managedBy": "plugin", "healthy": 1, "withheld": [{"reason": "Held", "count": 1}]}
    ]
    return item


POLICY = {
    "metadata": {"name": "share", "generation": 3, "annotations": {CONFIRM: "rollout=resumed@2"}},
    "spec": {"sharing": {}},
    "status": {
        "resumeRecord": "a/b",
        "conditions": [condition("ActionsStopped", "True", "MassFault"), condition("RolledOut", "False", "Stopped")],
    },
}
LEASE = {"spec": {"holderIdentity": "o", "renewTime": "2026-11-23T11:59:55Z"}}
EVENT = {"type": "Warning", "message": "gpu-0", "series": {"lastObservedTime": "2026-11-23T11:59:55Z"}}
PLAIN = {"metadata": {"name": "n1"}, "status": {"allocatable": {"a.b/c": "1"}, "conditions": []}}


def show(kind: Kind, rows: Iterator[Row]) -> None:
    found = list(rows)
    list(TableText(kind.columns, colours=False, headers=True).lines(found, NOW))
    document("json", kind.name, items=[dict(row.fields) for row in found])


def views(item: JsonObject, policy: JsonObject, lease: JsonObject, event: JsonObject, plain: JsonObject) -> None:
    """Everything that is made of these."""
    show(lists.NODES, iter([lists.node_row(item)]))
    show(lists.DEVICES, lists.device_rows(item))
    show(lists.PODS, lists.pod_rows(item))
    show(lists.IDLE, lists.idle_rows(item))
    show(top.KIND, top.rows(item, {"x": {"utilization": 0.5}}, ""))
    status = item["status"] if isinstance(item.get("status"), dict) else {}
    ready = {**item, "status": {**status, "conditions": [condition("Ready", "True", "AgentRunning")]}}
    seen = check.Seen([item, ready], {"n1": plain, "n2": plain}, whole=True, policies=[policy], lease=lease)
    show(findings.KIND, iter(check.judge(seen, NOW)))
    show(policies.EXPLAIN_KIND, policies.explained(item, {"share": policy}))
    list(policies.explained_in_words(item, {"share": policy}))
    for section in describe.node(item, NOW, [event]):
        list(TableText(section.columns, colours=False, headers=True).lines(section.rows, NOW))
    for unit in facts.units(item):
        for section in describe.device(item, unit, NOW):
            list(TableText(section.columns, colours=False, headers=True).lines(section.rows, NOW))
    edits.stopped([policy])
    edits.why_stopped([policy])
    edits.resume_record([policy])
    edits.rollout_stopped(policy)
    edits.resume_rollout(policy)
    edits.resume_actions(plain, NOW)
    edits.accept(item)
    edits.still_watched(item, plain)
    made: tuple[Callable[[], edits.Edit], ...] = (
        lambda: edits.cordon(item, ["gpu-0"], reason="", until="", by="jane", now=NOW),
        lambda: edits.uncordon(item, ["gpu-0"]),
        lambda: edits.confirm(item, ["gpu-0"], "recovered", NOW),
        lambda: edits.confirm(item, ["*"], "removed", NOW),
    )
    for edit in made:
        with suppress(NodeDevicesError):  # there is no such device, in words
            edit()


def bundled(item: JsonObject, policy: JsonObject, lease: JsonObject, event: JsonObject, plain: JsonObject) -> None:
    parts: dict[str, Any] = {"nodedevices": [item], "devicepolicies": [policy], "lease": [lease], "events": [event]}
    bundle.files({**parts, "nodes": [plain], "pods": [plain]}, "now")


OBJECTS: dict[str, JsonObject] = {"node": whole(), "policy": POLICY, "lease": LEASE, "event": EVENT, "Node": PLAIN}


@cases("which", *OBJECTS)
def test_no_view_raises_for_something_odd_at_any_one_place(which: str) -> None:
    for number, path in enumerate(filter(None, places(OBJECTS[which]))):
        for odd in (None, [["x"]], {"x": ["x"]}, (7, "x")[number % 2]):
            made = {**OBJECTS, which: with_value(OBJECTS[which], path, odd)}
            try:
                views(*made.values())
                if odd is None or isinstance(odd, list):
                    bundled(*made.values())
            except Exception as error:
                raise AssertionError(f"{which}: {'.'.join(map(str, path))} = {odd!r}: {error!r}") from error


# --- of DRA -----------------------------------------------------------------------------------------------------------
POOL = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
TAINTED = {"name": "gpu-0", "attributes": {"resource": {"string": "a.b/c"}}, "taints": [{"key": "x", "effect": "y"}]}
SELECTS = [{"cel": {"expression": 'device.driver == "nodedevices.io"'}}]
EXACTLY = {"name": "gpu", "exactly": {"deviceClassName": "c.a.b"}}
EITHER = {"name": "any", "firstAvailable": [{"deviceClassName": "c.a.b"}]}
RESULT = {"driver": "nodedevices.io", "pool": "n1", "device": "gpu-0"}
OF_DRA: dict[str, JsonObject] = {
    "slice": {"spec": {"nodeName": "n1", "pool": POOL, "devices": [TAINTED]}},
    "class": {"metadata": {"name": "c.a.b"}, "spec": {"selectors": SELECTS, "extendedResourceName": "a.b/c"}},
    "claim": {
        "metadata": {"namespace": "ml", "name": "big"},
        "spec": {"devices": {"requests": [EXACTLY, EITHER]}},
        "status": {"allocation": {"devices": {"results": [RESULT]}}},
    },
    "pod": {
        "metadata": {"namespace": "ml", "name": "trainer", "uid": "u"},
        "spec": {"nodeName": "n1", "resourceClaims": [{"resourceClaimName": "big"}]},
        "status": {
            "resourceClaimStatuses": [{"resourceClaimName": "big"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "big"},
            "conditions": [condition("PodScheduled", "True", "", "so")],
        },
    },
    "event": {
        "involvedObject": {"namespace": "ml", "name": "trainer", "uid": "u"},
        "message": "so",
        "lastTimestamp": "2026-11-23T11:59:55Z",
    },
}


@cases("which", *OF_DRA)
def test_no_link_of_claims_raises_for_something_odd_at_any_one_place(which: str) -> None:
    item = whole()
    item["status"]["resources"] = [{"name": "a.b/c", "managedBy": "dra", "healthy": 1}]
    item["status"]["conditions"] = [condition("Ready", "True", "AgentRunning")]
    for path in filter(None, places(OF_DRA[which])):
        for odd in (None, [["x"]], {"x": ["x"]}, 7, "x"):
            made = {**OF_DRA, which: with_value(OF_DRA[which], path, odd)}
            unbound = {**made["pod"], "spec": {"resourceClaims": [{"resourceClaimName": "big"}]}}
            seen = claims.SeenClaims(
                slices=[made["slice"]],
                classes=[made["class"]],
                pods=[pod for pod in (made["pod"], unbound) if claims.named(pod)],
                claims={facts.namespaced(made["claim"]): made["claim"]},
                events=[made["event"]],
            )
            found = check.judge(check.Seen([item], {}, whole=True, policies=[], lease={}, claims=seen), NOW)
            assert {"slices", "claims"} <= {row.fields["link"] for row in found}, (path, odd)
