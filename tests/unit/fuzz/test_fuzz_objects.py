"""Whatever the schema of our objects takes, whoever wrote it: nothing fails, and the last good one stays."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_api import conditions
from nodedevices_api.base import to_dict
from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_plugin.inputs.cluster import older_conditions, seen_object
from nodedevices_plugin.model import Holder
from nodedevices_probe.protocol import Attribute
from structlog.testing import capture_logs
from support.facts import START, gpu, partition
from support.fakekube import FakeKube
from support.from_schema import schema, taken_by
from support.fuzzing import scaled
from support.marking import next_node
from support.opfacts import SINCE
from support.stepped_node import NOBODY, Node, report_of

SPEC = taken_by(schema("nodedevices")["properties"]["spec"])
STATUS = taken_by(schema("nodedevices")["properties"]["status"])
POLICY = taken_by(schema("devicepolicies")["properties"]["spec"])
TWICE = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def machine() -> Node:
    cut = gpu(1, mig_enabled=True, partitions=(partition(1, 0), partition(1, 1)))
    other = gpu(
        2, id="0000:2a:00.0", vendor="amd", pci_bus_id="0000:2a:00.0", extra={"partitionProfile": Attribute(string="x")}
    )
    return Node(gpu(0), cut, other)


@settings(max_examples=scaled(25), suppress_health_check=SLOW)
@given(st.lists(SPEC, min_size=1, max_size=3), st.booleans())
def test_whatever_a_nodes_spec_says_it_is_applied_or_the_last_good_one_stays(specs: list[Any], held: bool) -> None:
    node = machine().now(TWICE)
    if held:
        holder = Holder(
            namespace="ml", pod="p", container="c", resource="nvidia.com/gpu", ids=(f"{gpu(0).id}::1",), since=START
        )
        node.given(holdings=replace(NOBODY, holders=(holder,), taken=node.clock + 1))
    for spec in specs:
        before = {name: ids for name, (ids, _) in node.counts.items()}
        seen = seen_object({"metadata": {"generation": 2}, "spec": spec})
        node.given(seen=seen, holdings=replace(node.inputs.holdings, taken=node.clock + 61)).line(after=61).line()
        to_dict(report_of(node.world, node.time))
        if node.config == conditions.CONFIG_INVALID:
            assert {name: ids for name, (ids, _) in node.counts.items()} == before
    node.restarted().line()


@settings(max_examples=scaled(25), suppress_health_check=SLOW)
@given(STATUS)
def test_an_agent_starts_over_whatever_its_object_said(status: Any) -> None:
    """Another version may have written it."""
    earlier = older_conditions({"status": status}, ())
    assert len({each.type for each in earlier}) == len(earlier)


@settings(max_examples=scaled(25), suppress_health_check=SLOW)
@given(st.lists(POLICY, max_size=3), SPEC, STATUS, STATUS)
def test_whatever_policies_and_reports_there_are_no_concern_fails_and_the_operator_comes_to_rest(
    policies: list[Any], spec: Any, first: Any, second: Any
) -> None:
    kube = FakeKube()
    for number, each in enumerate(policies):
        head = {"name": f"p{number}", "uid": f"uid-{number}", "generation": 1, "creationTimestamp": SINCE}
        kube.put(f"{names.POLICIES}/p{number}", {"metadata": head, "spec": each})
    node = {"metadata": {"name": "n1", "uid": "uid-n1", "labels": {}}, "status": {"capacity": {}, "allocatable": {}}}
    kube.put(f"{names.NODES}/n1", node)
    own = {"metadata": {"name": "n1", "uid": "nd-n1", "generation": 1}, "spec": spec, "status": first}
    kube.put(f"{names.NODE_DEVICES}/n1", own)
    shares = SharesCache()
    shares.observe_node(own, 1.0)

    async def live() -> None:
        manager = Manager(kube, OperatorMetrics())
        for status in (first, second):
            kube.put(f"{names.NODE_DEVICES}/n1", {**kube.objects[f"{names.NODE_DEVICES}/n1"], "status": status})
            await manager.relister.once()
            for _ in range(30):
                if (due := await next_node(manager)) is None:
                    break
                manager.nodes.done(due, await manager.reconcile_node(due))
            else:
                raise AssertionError("it does not come to rest")
            for name in (f"p{number}" for number in range(len(policies))):
                await manager.reconcile_policy(name)

    with capture_logs() as said:
        asyncio.run(live())
    assert [each for each in said if each["log_level"] == "error"] == []
