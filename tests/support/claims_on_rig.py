"""ResourceClaims on the rig's node b, while it serves by DRA: the policy, the slices, and pods with claims."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from support.cluster import NAMESPACE, OURS
from support.rig_cluster import RigCluster

Json = dict[str, Any]
POLICY = "dra"
CLASS = "gpu.nvidia.com"
DOMAIN = "nodedevices.io"
NODES = 'import json, os; print(json.dumps(sorted(n for n in os.listdir("/dev") if n.startswith("nvidia"))))'


@contextmanager
def served_by_dra(rig: RigCluster, **sections: Any) -> Iterator[None]:
    """Node b serves by DRA, with these sections; afterwards no claim of a test is left, and the plugin serves."""
    serve_by_dra(rig, **sections)
    try:
        yield
    finally:
        rig.kubectl.clear("pods", "resourceclaims", namespace=NAMESPACE, labels=OURS)
        rig.drop_policy(POLICY)
        rig.until("the slices are empty", lambda: not published(rig))
        rig.until("the classes are gone", lambda: not rig.kubectl.items("deviceclasses"))


def serve_by_dra(rig: RigCluster, **sections: Any) -> None:
    every = {"serving": {"api": "DRA"}, "injection": {"deviceListStrategies": ["cdi-cri"]}, **sections}
    rig.policy(POLICY, every, selector={"kubernetes.io/hostname": rig.b})


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


def claimant(rig: RigCluster, name: str, *expressions: str, of: str = CLASS, **amounts: str) -> None:
    """A claim of one device for which these are true, or of these amounts of one, and a pod with it."""
    more = {"capacity": {"requests": amounts}} if amounts else {}
    claim(rig, name, {"name": "gpu", "exactly": wanted(*expressions, class_name=of, **more)})
    pod(rig, name, name, run=False)


def results(rig: RigCluster, name: str, *, namespace: str = NAMESPACE) -> dict[str, str]:
    """Request -> device, as the claim was allocated."""
    found: Mapping[str, Any] = rig.kubectl.object("resourceclaim", name, namespace)
    given = found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return {result["request"]: result["device"] for result in given}


def device_of(rig: RigCluster, name: str) -> str:
    """The device of a claim with one request."""
    [device] = results(rig, name).values()
    return device


def holders(rig: RigCluster, device: str) -> set[tuple[str, str]]:
    """Pods and claims that NodeDevices shows for a device."""
    [found] = [each for each in rig.devices(rig.b).values() if each["name"] == device]
    return {(holder["pod"], holder.get("claim", "")) for holder in found.get("holders") or ()}


def nodes_seen(rig: RigCluster, name: str) -> list[str]:
    """NVIDIA's device nodes in the container of a pod."""
    found: list[str] = json.loads(rig.kubectl.exec(name, "python3", "-c", NODES, namespace=NAMESPACE))
    return found


def refusals(rig: RigCluster, name: str) -> list[str]:
    """What the kubelet's Events say why the claims of a pod were not prepared."""
    return [event["message"] for event in rig.events(name, "FailedPrepareDynamicResources")]
