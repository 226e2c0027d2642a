"""A DeviceClass for each extended resource that DRA serves on some node, so that pods which request `nvidia.com/gpu: 1`
run on nodes of either API.

`nvidia.com/gpu` is the class `gpu.nvidia.com`. It selects the devices that agents publish for that name, and its
extendedResourceName has the scheduler make a claim on nodes where the device plugin API has none (KEP-5004: on by
default from Kubernetes 1.36; 1.34 and 1.35 drop the field, which is said). Another's class is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodedevices_api.dra import DRA_DRIVER, RESOURCE_API, RESOURCE_ATTRIBUTE, class_name

from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.reconcile.whole_objects import OUR_LABEL, WholeObjects
from nodedevices_operator.records.names import DEVICE_CLASS_MANAGER, DEVICE_CLASSES, OURS
from nodedevices_operator.records.objects import NodeDevicesRecord


def device_classes(records: Iterable[NodeDevicesRecord]) -> Mapping[str, str]:
    """Return the extended resources that DRA serves on some node, by the name of their class."""
    served = {resource.name for record in records for resource in record.resources if resource.managed_by == "dra"}
    return {class_name(resource): resource for resource in sorted(served)}


class DeviceClasses(WholeObjects):
    """No request is made before DRA serves something."""

    what = "device classes"
    every_seconds = 5.0
    _any = False

    async def keep(self) -> str:
        wanted = device_classes(self._cache.node_devices.values())
        self._any = self._any or bool(wanted)
        if wanted == self._kept or not self._any:
            return ""
        try:
            kube = self._writer.kube
            found = [item async for page in kube.pages(DEVICE_CLASSES, labelSelector=OURS) for item in page]
        except KubeError as error:
            if error.status not in (403, 404):
                raise
            return f"{error}; DRA needs Kubernetes 1.34 or later, and the component dra for the operator as well"
        bodies = {name: _body(name, resource) for name, resource in wanted.items()}
        problems = await self.put_right(DEVICE_CLASS_MANAGER, DEVICE_CLASSES, found, bodies)
        self._kept = wanted  # what another has, or the server drops, is tried again at the next reading
        return "; ".join(problems)

    def dropped(self, name: str, sent: JsonObject, answer: JsonObject) -> list[str]:
        if answer.get("spec", {}).get("extendedResourceName"):
            return []
        resource = sent["spec"]["extendedResourceName"]
        why = f"{name}: this API server drops extendedResourceName (feature gate DRAExtendedResource)"
        return [f"{why}: pods that request {resource} are not placed on nodes with serving.api DRA"]


def _body(name: str, resource: str) -> dict[str, Any]:
    attribute = f'device.attributes["{DRA_DRIVER}"].{RESOURCE_ATTRIBUTE}'
    selects = f'device.driver == "{DRA_DRIVER}" && {attribute} == "{resource}"'
    return {
        "apiVersion": RESOURCE_API,
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": OUR_LABEL},
        "spec": {"selectors": [{"cel": {"expression": selects}}], "extendedResourceName": resource},
    }
