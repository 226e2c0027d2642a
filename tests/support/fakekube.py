"""The API server as the operator sees it, in memory: the port `Kube` with objects by path.

Server-side apply is done as far as the operator uses it: conditions by type; capacity, labels and annotations by key;
all of them owned by the field manager that applied them last, and given back when it leaves them out. No schema, no
admission.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.records import names
from support.marking import events_sent, next_node

Raw = dict[str, Any]


class FakeKube:
    """`objects` by path; `writes` are (verb, path, body) of what was requested, `events` the Events made.

    `fails` says which calls fail, by verb and path. `version` is the cluster's resourceVersion.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.writes: list[tuple[str, str, Any]] = []
        self.events: list[Raw] = []
        self._named: set[str] = set()  # the Events' names, until a test takes some away
        self.fails: Callable[[str, str], KubeError | None] = lambda _verb, _path: None
        self.rights: set[str] = set()  # resources that may be listed, where that is asked
        self.version = 100
        self._owned: dict[tuple[str, str], set[str]] = {}

    def put(self, path: str, raw: Mapping[str, Any]) -> Raw:
        """As somebody else writes it; returns the object as it stands then."""
        self.version += 1
        made = copy.deepcopy(dict(raw))
        made.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        self.objects[path] = made
        return copy.deepcopy(made)

    def written(self, part: str) -> list[tuple[str, str, Any]]:
        """Writes to paths that contain this."""
        return [write for write in self.writes if part in write[1]]

    # --- the port -----------------------------------------------------------------------------------------------------
    async def get(self, path: str) -> JsonObject:
        self._called("get", path)
        if path not in self.objects:
            raise KubeError(f"GET {path}: 404", status=404, absent=path.rpartition("/")[2])
        return copy.deepcopy(self.objects[path])

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> AsyncIterator[JsonObject]:
        self._called("list", path)
        if path == names.PODS:
            node = (query or {}).get("fieldSelector", "").partition("=")[2]
            found = [it for where, it in self.objects.items() if "/pods/" in where]
            yield {"items": [copy.deepcopy(it) for it in found if not node or it["spec"].get("nodeName") == node]}
            return
        found = [it for where, it in sorted(self.objects.items()) if where.startswith(f"{path}/")]
        yield {"items": copy.deepcopy(found)}

    async def apply(self, path: str, body: JsonObject, manager: str, *, force: bool = True) -> JsonObject:
        self._called("apply", path)
        self.writes.append(("apply", path, copy.deepcopy(body)))
        where = path.removesuffix("/status")
        item = self.objects.get(where)
        if item is None:
            raise KubeError(f"PATCH {path}: 404", status=404)
        version = body["metadata"].get("resourceVersion", item["metadata"]["resourceVersion"])
        if (body["metadata"]["uid"], version) != (item["metadata"]["uid"], item["metadata"]["resourceVersion"]):
            raise KubeError(f"PATCH {path}: 409", status=409)
        before = copy.deepcopy(item)
        self._merge(where, item, body, manager)
        if item != before:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(item)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        self._called("create", path)
        if body["kind"] == "SelfSubjectAccessReview":
            return {**body, "status": {"allowed": body["spec"]["resourceAttributes"]["resource"] in self.rights}}
        self.writes.append(("create", path, copy.deepcopy(body)))
        if body["kind"] == "Eviction":
            return self._evict(path.removesuffix("/eviction"), body)
        if body["kind"] != "Event":
            where = f"{path}/{body['metadata']['name']}"
            if where in self.objects:
                raise KubeError(f"POST {path}: 409", status=409)
            return self.put(where, {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.version}"}})
        if len(self._named) != len(self.events):
            self._named = {it["metadata"]["name"] for it in self.events}
        if body["metadata"]["name"] in self._named:
            raise KubeError(f"POST {path}: 409", status=409)
        self._named.add(body["metadata"]["name"])
        self.events.append(copy.deepcopy(dict(body)))
        return body

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> JsonObject:
        self._called("patch", path)
        self.writes.append(("patch", path, copy.deepcopy(operations)))
        where = path.removesuffix("/status")
        patched = copy.deepcopy(self.objects[where])
        for operation in operations:
            _patch(patched, operation)
        return self.put(where, patched) if patched != self.objects[where] else patched

    async def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        self._called("delete", path)
        self.writes.append(("delete", path, {"uid": uid, "resourceVersion": resource_version}))
        if path not in self.objects:
            raise KubeError(f"DELETE {path}: 404", status=404)
        metadata = self.objects[path]["metadata"]
        if (uid, resource_version) != (metadata["uid"], metadata["resourceVersion"]):
            raise KubeError(f"DELETE {path}: 409", status=409)
        del self.objects[path]

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The Failed pods that there are, and then the end."""
        self._called("watch", path)
        assert (path, query["fieldSelector"]) == (names.PODS, "status.phase=Failed")
        for where, raw in sorted(self.objects.items()):
            if "/pods/" in where and raw["status"]["phase"] == "Failed":
                yield orjson.dumps({"type": "ADDED", "object": raw})

    def _evict(self, where: str, body: JsonObject) -> JsonObject:
        """The pod begins to end, as with a kubelet that takes its time."""
        if where not in self.objects:
            raise KubeError(f"POST {where}/eviction: 404", status=404)
        pod = self.objects[where]
        if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
            raise KubeError(f"POST {where}/eviction: 409", status=409)
        self.put(where, pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-11-21T12:00:00Z"}})
        return {"kind": "Status", "status": "Success"}

    def _called(self, verb: str, path: str) -> None:
        error = self.fails(verb, path)
        if error is not None:
            raise error

    # --- server-side apply --------------------------------------------------------------------------------------------
    def _merge(self, where: str, item: Raw, body: JsonObject, manager: str) -> None:
        status: Raw = item.setdefault("status", {}) if "data" not in body else {}
        applied = body.get("status") or {}
        if manager == names.CONFIG:
            others = {key: value for key, value in item.get("spec", {}).items() if key == "unschedulable"}
            item["spec"] = {**others, **body["spec"]}
            item["metadata"]["generation"] = item["metadata"].get("generation", 0) + 1
        elif manager == names.POLICY_STATUS:
            item["status"] = copy.deepcopy(dict(applied))
        elif manager == names.CAPACITY:
            self._keys(where, manager, status.setdefault("capacity", {}), applied.get("capacity", {}))
            self._manage(item, manager, {"f:status": {"f:capacity": self._fields(where, manager)}})
        elif manager in {names.LABELS, names.OBJECT_LABELS}:
            labels = item["metadata"].setdefault("labels", {})
            self._keys(where, manager, labels, body["metadata"].get("labels", {}))
            self._manage(item, manager, {"f:metadata": {"f:labels": self._fields(where, manager)}})
        elif manager == names.FLEET:
            item["data"] = {**item.get("data", {}), **body["data"]}
        elif manager in {names.STATUS, names.NODE_CONDITION, names.XID_CONDITION, names.POD_CONDITION, names.POD_IDLE}:
            shown = {it["type"]: it for it in status.get("conditions", [])}
            self._keys(where, manager, shown, {it["type"]: it for it in applied.get("conditions", [])})
            status["conditions"] = list(shown.values())
            types: Raw = {f'k:{{"type":"{key}"}}': {} for key in self._owned[where, manager]}
            self._manage(item, manager, {"f:status": {"f:conditions": types}})
        else:  # what a test registers
            annotations = item["metadata"].setdefault("annotations", {})
            self._keys(where, manager, annotations, body["metadata"].get("annotations", {}))
            self._manage(item, manager, {"f:metadata": {"f:annotations": self._fields(where, manager)}})
        if manager == names.STATUS:
            status["affectedPods"] = copy.deepcopy(applied.get("affectedPods", []))
            status["actions"] = copy.deepcopy(applied.get("actions", []))

    def _keys(self, where: str, manager: str, shown: dict[str, Any], applied: Mapping[str, Any]) -> None:
        for key in self._owned.get((where, manager), set()) - set(applied):
            shown.pop(key, None)
        shown.update(copy.deepcopy(dict(applied)))
        self._owned[where, manager] = set(applied)

    def _fields(self, where: str, manager: str) -> Raw:
        return {f"f:{key}": {} for key in self._owned[where, manager]}

    @staticmethod
    def _manage(item: Raw, manager: str, fields: Raw) -> None:
        others = [it for it in item["metadata"].get("managedFields", []) if it["manager"] != manager]
        if any(inner for part in fields.values() for inner in part.values()):
            entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
            others.append(entry | ({"subresource": "status"} if "f:status" in fields else {}))
        item["metadata"]["managedFields"] = others


def _patch(item: Any, operation: Mapping[str, Any]) -> None:
    """One operation of a JSON patch; 422 where it does not fit."""
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    try:
        for part in way:
            item = item[int(part)] if isinstance(item, list) else item[part]
        if isinstance(item, list):
            place: Any = len(item) if last == "-" else int(last)
        else:
            place = last
        match operation["op"]:
            case "test" if item[place] != operation["value"]:
                raise KubeError(f"PATCH: {operation['path']} is another", status=422)
            case "remove":
                del item[place]
            case "add" if isinstance(item, list):
                item.insert(place, copy.deepcopy(operation["value"]))
            case "add":
                item[place] = copy.deepcopy(operation["value"])
    except (KeyError, IndexError) as error:
        raise KubeError(f"PATCH: there is no {operation['path']}", status=422) from error


async def settle(manager: Manager) -> int:
    """Reconcile every node that is ready now, and the fleet. Returns how many reconciliations of nodes that were."""
    count = 0
    while True:
        if (name := await next_node(manager)) is not None:
            manager.nodes.done(name, await manager.reconcile_node(name))
            count += 1
        elif (name := manager.fleet.take()) is not None:
            manager.fleet.done(name, await manager.reconcile_fleet(name))
        else:
            await events_sent()
            return count
