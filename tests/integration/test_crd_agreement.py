"""Our own parsing and the API server's validation agree on documents that nobody thought of.

Seeded documents mix right and wrong values of every section; each is put to the models and, as a dry run, to the API
server. A document that only one of them accepts is a bug: a policy that the cluster takes and the operator refuses, or
a rule written differently in CEL and in Python.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_common.errors import InputError
from support.kubectl import Kubectl, KubectlError

SEED = 20261121
DOCUMENTS = 400
NAMES = ("nvidia.com/gpu", "example.com/a", "example.com/b", "kubernetes.io/a", "a.kubernetes.io/b", "xkubernetes.io/c")

Json = dict[str, Any]
Make = Callable[[random.Random], Any]


def some(**fields: Make) -> Make:
    """An object with any subset of these fields."""
    return lambda draw: {key: make(draw) for key, make in fields.items() if draw.random() < 0.5}


def one(*values: Any) -> Make:
    return lambda draw: draw.choice(values)


def many(make: Make, most: int = 3) -> Make:
    return lambda draw: [make(draw) for _ in range(draw.randint(0, most))]


def rarely(value: Any, otherwise: Make) -> Make:
    return lambda draw: value if draw.random() < 0.03 else otherwise(draw)


effect = one("None", "None", "NoSchedule", "NoExecute")
mode = one("Never", "Never", "AfterGrace", "Immediate")
evict = some(
    mode=mode,
    graceSeconds=rarely(86401, one(0, 86400)),
    excludeNamespaces=many(one("kube-*", "default")),
)
container = some(
    env=many(some(name=one("A", "B", "LD_PRELOAD"), value=one("$(MEMORY_UNITS)", "$$(DEVICE_ID)", "$5", "$(HOME)"))),
    mounts=many(some(hostPath=one("/opt/a", "/opt/../etc"), containerPath=one("/a", "/b", "/dev"))),
)
shared: Make = lambda draw: {  # noqa: E731
    "name": draw.choice(NAMES),
    **some(
        replicas=rarely(1, one(2, 16384)),
        memoryUnit=one("1Gi", 1024),
        enforcement=one("none", "mps"),
        container=container,
        rename=one(*NAMES, "aliyun.com/gpu-mem"),
        devices=many(one("0", "0:1", "GPU-*")),
        coreResource=one("tencent.com/vcuda-core"),
        match=some(productName=one("NVIDIA L4"), minMemory=one("20Gi", "much")),
    )(draw),
}
capacity: Make = lambda draw: {  # noqa: E731
    "name": draw.choice(NAMES),
    **some(perNode=rarely(-1, one(0, 3)), sumOf=one("memoryMiB"), scope=one("healthy", "all"))(draw),
    **some(perDevice=one(1))(draw),
}
rule: Make = lambda draw: {"match": {}, "name": draw.choice(NAMES)}  # noqa: E731
requirement: Make = lambda draw: {  # noqa: E731
    "key": draw.choice(("a", "example.com/b")),
    "operator": draw.choice(("In", "NotIn", "Exists", "DoesNotExist")),
    **some(values=many(one("x", "y", "")))(draw),
}
health_rule: Make = lambda draw: {  # noqa: E731
    "reasons": draw.choice((["Xid79"], ["Xid14*", "LinkDown"], ["Xid79", "Xid79"], [])),
    "state": draw.choice(("Ignored", "Degraded", "Unhealthy", "Fatal")),
    **some(holdDownSeconds=rarely(-1, one(0, 60)))(draw),
}
spec = some(
    priority=rarely(1001, one(-1000, 0, 1000)),
    mode=rarely("dryrun", one("Enforce", "DryRun")),
    serving=some(mode=one("Serve", "Observe")),
    partitions=some(strategy=rarely("Single", one("none", "single", "mixed"))),
    resources=some(devices=many(rule), exclude=many(one("GPU-1", "GPU-*"))),
    sharing=some(
        strategy=one("none", "timeSlicing", "mps", "memory"),
        resources=many(shared, 2),
        renameByDefault=one(True, False),
    ),
    injection=some(deviceListStrategies=rarely([], one(["envvar"], ["cdi-cri", "envvar"])), passDeviceSpecs=one(True)),
    health=some(
        rules=many(health_rule, 2),
        holdDownSeconds=rarely(-1, one(0, 300)),
        probe=some(intervalSeconds=rarely(11, one(1, 10))),
    ),
    faults=some(
        podCondition=one("Never", "OnFault", "Always"),
        event=rarely("true", one(True, False)),
        taintEffect=effect,
        evict=evict,
        rules=many(some(reasons=one(["Xid79"], ["Xid79", "Missing"]), taintEffect=effect, evictMode=mode), 2),
        budget=some(maxUnavailable=one(0, 3, "0%", "100%", "101%", "x"), perHour=one(0, 5)),
    ),
    capacity=many(capacity, 2),
    labels=some(
        featureDiscovery=one(True),
        extra=one({}, {"a": "b"}, {"example.com/a": ""}, {"k8s.io": ""}, {"xk8s.io/a": ""}, {"a.k8s.io/b": ""}),
    ),
)
selector = some(matchLabels=one({}, {"a": "b"}), matchExpressions=many(requirement, 2))


def document(draw: random.Random, number: int) -> Json:
    body = {"nodeSelector": selector(draw), **spec(draw)} if draw.random() > 0.02 else spec(draw)
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": f"p{number}"},
        "spec": body,
    }


def ours(candidate: Json) -> str:
    """Why we refuse it; empty when we accept it."""
    try:
        parse(DevicePolicy, candidate)
    except InputError as error:
        return str(error)
    return ""


def theirs(kubectl: Kubectl, candidates: list[Json]) -> tuple[set[str], str]:
    """The names that the API server accepts, and everything that it said about the others.

    kubectl itself does not validate: its first complaint would hide all the others.
    """
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": candidates})
    try:
        said = kubectl.run("create", "--dry-run=server", "--validate=ignore", "-o", "name", "-f", "-", stdin=body)
    except KubectlError as error:
        said = error.said
    prefix = "devicepolicy.nodedevices.io/"
    return {line.removeprefix(prefix) for line in said.splitlines() if line.startswith(prefix)}, said


def test_the_models_and_the_api_server_accept_the_same_policies(admin: Kubectl) -> None:
    draw = random.Random(SEED)
    candidates = [document(draw, number) for number in range(DOCUMENTS)]
    accepted, said = theirs(admin, candidates)

    refusals = {candidate["metadata"]["name"]: ours(candidate) for candidate in candidates}
    taken = {name for name, reason in refusals.items() if not reason}
    specs = {candidate["metadata"]["name"]: candidate["spec"] for candidate in candidates}
    only_theirs = {name: (refusals[name], specs[name]) for name in sorted(accepted - taken)}
    only_ours = {
        name: ([line for line in said.splitlines() if f'"{name}"' in line], specs[name]) for name in taken - accepted
    }
    assert not only_theirs
    assert not only_ours
    assert DOCUMENTS / 10 < len(taken) < DOCUMENTS * 9 / 10, "a mix of both, or the test says little"
