"""ResourceClaims on the rig's node b, while it serves by DRA: the policy, the slices, and pods with claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from support.cluster import NAMESPACE, OURS
from support.rig_cluster import RigCluster

Json = dict[str, Any]
POLICY = "dra"
CLASS = "gpu.nvidia.com"
DOMAIN = "nodedevices.io"


@contextmanager
def served_by_dra(rig: RigCluster, **sections: Any) -> Iterator[None]:
    """Node b serves by DRA, with these sections; afterwards no claim of a test is left, and the plugin serves."""
    every = {"serving": {"api": "DRA"}, "injection": {"deviceListStrategies": ["cdi-cri"]}, **sections}
    rig.policy(POLICY, every, selector={"kubernetes.io/hostname": rig.b})
    try:
        yield
    finally:
        rig.kubectl.clear("pods", "resourceclaims", namespace=NAMESPACE, labels=OURS)
        rig.drop_policy(POLICY)
        rig.until("the slices are empty", lambda: not published(rig))
        rig.until("the classes are gone", lambda: not rig.kubectl.items("deviceclasses"))


def published(rig: RigCluster) -> dict[str, Json]:
    """The devices of the node's slices, by name."""
    return {
        device["name"]: device
        for piece in rig.kubectl.items("resourceslices")
        if piece["spec"]["nodeName"] == rig.b and piece["spec"]["driver"] == DOMAIN
        for device in piece["spec"].get("devices") or ()
    }


def attribute(name: str) -> str:
    """The CEL expression of an attribute of ours."""
    return f'device.attributes["{DOMAIN}"].{name}'


def wanted(*expressions: str, class_name: str = CLASS, **more: Any) -> Json:
    """What a request asks for exactly."""
    return {
        "deviceClassName": class_name,
        "selectors": [{"cel": {"expression": expression}} for expression in expressions],
        **more,
    }


def claim(rig: RigCluster, name: str, *requests: Json, namespace: str = NAMESPACE, **devices: Any) -> None:
    """A ResourceClaim with these requests."""
    rig.kubectl.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": {"requests": list(requests), **devices}},
        }
    )


def pod(
    rig: RigCluster, name: str, *claims: str, run: bool = True, namespace: str = NAMESPACE, init: Sequence[str] = ()
) -> Json:
    """A pod whose container uses these claims. `init`: the command of an init container that uses them, too."""
    spec = rig.pod_spec(rig.b, {})
    [main] = spec["containers"]
    spec["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    main["resources"] = {"claims": [{"name": claim} for claim in claims]}
    if init:
        spec["initContainers"] = [{**main, "name": "init", "command": list(init)}]
    metadata = {"name": name, "namespace": namespace}
    rig.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return rig.running(name) if run else {}


def results(rig: RigCluster, name: str, *, namespace: str = NAMESPACE) -> dict[str, str]:
    """Request -> device, as the claim was allocated."""
    found: Mapping[str, Any] = rig.kubectl.object("resourceclaim", name, namespace)
    given = found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return {result["request"]: result["device"] for result in given}


def device_of(rig: RigCluster, name: str) -> str:
    """The device of a claim with one request."""
    [device] = results(rig, name).values()
    return device


def refusals(rig: RigCluster, name: str) -> list[str]:
    """What the kubelet's Events say why the claims of a pod were not prepared."""
    return [event["message"] for event in rig.events(name, "FailedPrepareDynamicResources")]
