"""A DeviceClass for each extended resource that DRA serves on some node, so that pods which request `nvidia.com/gpu: 1`
run on nodes of either API.

`nvidia.com/gpu` is the class `gpu.nvidia.com`. It selects the devices that agents publish for that name, and its
extendedResourceName has the scheduler make a claim on nodes where the device plugin API has none (KEP-5004: on by
default from Kubernetes 1.36; 1.34 and 1.35 drop the field, which is said). Shares of memory have none: for an amount of
them the scheduler would allocate as many single shares, of several devices even. Ours goes when no node serves the name
any more, also where that was while no operator ran. Another's class is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodedevices_api.dra import DRA_DRIVER, RESOURCE_API, RESOURCE_ATTRIBUTE, class_name

from nodedevices_operator.kube.port import JsonObject, Kube, KubeError
from nodedevices_operator.reconcile.whole_objects import WholeObjects
from nodedevices_operator.records.names import DEVICE_CLASS_MANAGER, DEVICE_CLASSES, OURS
from nodedevices_operator.records.objects import NodeDevicesRecord

REVIEW_VERSION, REVIEW = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
REVIEWS = f"/apis/{REVIEW_VERSION}/selfsubjectaccessreviews"

_NO_RIGHT = (
    f"no right to list deviceclasses of {RESOURCE_API}, or no such API: DRA needs Kubernetes 1.34 or later, and the "
    "component dra for the operator as well"
)


def device_classes(records: Iterable[NodeDevicesRecord]) -> Mapping[str, JsonObject]:
    """Return the specs of the classes, by name: one for each extended resource that DRA serves on some node."""
    every = [resource for record in records for resource in record.resources if resource.managed_by == "dra"]
    by_memory = {resource.name for resource in every if resource.sharing == "memory"}
    attribute = f'device.attributes["{DRA_DRIVER}"].{RESOURCE_ATTRIBUTE}'
    found = {}
    for name in sorted({resource.name for resource in every}):
        selects = f'device.driver == "{DRA_DRIVER}" && {attribute} == "{name}"'
        extended = {} if name in by_memory else {"extendedResourceName": name}
        found[class_name(name)] = {"selectors": [{"cel": {"expression": selects}}], **extended}
    return found


async def our_classes(kube: Kube) -> list[JsonObject] | None:
    """Return our classes; None: this cluster has none, or there is no right to them. It is asked for: without the
    component dra there is none, and a request that is refused would be in the audit log of every cluster."""
    attributes = {"group": "resource.k8s.io", "resource": "deviceclasses", "verb": "list"}
    review = {"apiVersion": REVIEW_VERSION, "kind": REVIEW, "spec": {"resourceAttributes": attributes}}
    try:
        if (await kube.create(REVIEWS, review)).get("status", {}).get("allowed") is not True:
            return None
        return [item async for page in kube.pages(DEVICE_CLASSES, {"labelSelector": OURS}) for item in page["items"]]
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return None


class DeviceClasses(WholeObjects):
    """The objects of `device_classes`."""

    what = "device classes"
    every_seconds = 5.0

    async def keep(self) -> str:
        wanted = device_classes(self._cache.node_devices.values())
        if wanted == self._kept:
            return ""
        found = await our_classes(self._writer.kube)
        if found is None:
            self._kept = None if wanted else wanted
            return _NO_RIGHT if wanted else ""
        head = {"apiVersion": RESOURCE_API, "kind": "DeviceClass"}
        problems = await self.put_right(DEVICE_CLASS_MANAGER, DEVICE_CLASSES, head, found, wanted)
        self._kept = wanted  # what another has, or the server drops, is tried again at the next reading
        return "; ".join(problems)

    def dropped(self, name: str, spec: JsonObject, answer: JsonObject) -> list[str]:
        resource = spec.get("extendedResourceName")
        if resource is None or answer.get("spec", {}).get("extendedResourceName"):
            return []
        why = f"{name}: this API server drops extendedResourceName (feature gate DRAExtendedResource)"
        return [f"{why}: pods that request {resource} are not placed on nodes with serving.api DRA"]
