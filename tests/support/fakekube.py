"""A `Kube` in memory: GET, LIST, create, and server-side apply as far as the operator uses it.

Objects stand by path, resourceVersions rise with every change, and each field manager's keys are known, so that what an
apply leaves out goes. Calls are remembered in order.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from nodedevices_operator import kube as names
from nodedevices_operator.core import Core
from nodedevices_operator.kube import KubeError, Object

Raw = dict[str, Any]


class FakeKube:
    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.version = 100
        self.calls: list[tuple[str, str]] = []  # verb and path
        self.fails: Callable[[str, str], KubeError | None] = lambda _verb, _path: None
        self._types: dict[tuple[str, str], set[str]] = {}  # (path, manager) -> conditions or keys of that manager

    def put(self, path: str, raw: Mapping[str, Any]) -> Raw:
        """An object as somebody else has written it."""
        made: Raw = copy.deepcopy(dict(raw))
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = made
        return copy.deepcopy(made)

    async def get(self, path: str) -> Object:
        self._called("get", path)
        if path not in self.objects:
            raise KubeError(f"GET {path}: 404", status=404, absent=path.rpartition("/")[2])
        return copy.deepcopy(self.objects[path])

    async def pages(self, path: str, **query: str) -> AsyncIterator[list[Raw]]:
        self._called("list", path)
        if path == names.PODS:
            node = query["fieldSelector"].removeprefix("spec.nodeName=")
            found = [it for at, it in self.objects.items() if "/pods/" in at and it["spec"]["nodeName"] == node]
        else:
            found = [it for at, it in self.objects.items() if at.rpartition("/")[0] == path]
        yield copy.deepcopy(found)

    async def apply(self, path: str, body: Object, manager: str, *, force: bool = True) -> Object:
        self._called("apply", path)
        at = path.removesuffix("/status")
        if at not in self.objects:
            raise KubeError(f"PATCH {path}: 404", status=404, absent=at.rpartition("/")[2])
        item = self.objects[at]
        if body["metadata"]["uid"] != item["metadata"]["uid"]:
            raise KubeError(f"PATCH {path}: 409 another uid", status=409)
        before = copy.deepcopy(item)
        if manager == names.CONFIG:
            item["spec"] = copy.deepcopy(body["spec"])
            item["metadata"]["generation"] = item["metadata"].get("generation", 1) + (
                item["spec"] != before.get("spec")
            )
        elif manager == names.POLICY_STATUS:
            item["status"] = copy.deepcopy(body["status"])
        else:
            self._merge(at, item.setdefault("status", {}), body.get("status") or {}, manager)
        if item != before:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(item)

    async def create(self, path: str, body: Object) -> Object:
        self._called("create", path)
        return body

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> Object:
        self._called("patch", path)
        return copy.deepcopy(self.objects[path.removesuffix("/status")])

    def _merge(self, at: str, status: Raw, wanted: Mapping[str, Any], manager: str) -> None:
        mine = self._types.setdefault((at, manager), set())
        conditions = copy.deepcopy(wanted.get("conditions", []))
        given = {it["type"] for it in conditions}
        if manager != names.CAPACITY:
            others = [it for it in status.get("conditions", []) if it["type"] not in mine | given]
            status["conditions"] = others + conditions
        if manager == names.STATUS:
            status["affectedPods"] = copy.deepcopy(wanted["affectedPods"])
        if manager == names.CAPACITY:
            given = set(wanted.get("capacity", {}))
            kept = {key: value for key, value in status.get("capacity", {}).items() if key not in mine}
            status["capacity"] = kept | dict(wanted.get("capacity", {}))
        self._types[at, manager] = given

    def _called(self, verb: str, path: str) -> None:
        self.calls.append((verb, path))
        error = self.fails(verb, path)
        if error is not None:
            raise error


async def settle(core: Core) -> int:
    """Look at every node that needs a look now. Returns how many looks that were."""
    looks = 0
    while (name := core.nodes.take()) is not None:
        core.nodes.done(name, await core.look_at_node(name))
        looks += 1
    return looks
