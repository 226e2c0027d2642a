"""Where a NodeDevices lives, in memory: the port that the publisher writes through, and the API server's side of it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nodedevices_kube.errors import ApiError
from nodedevices_plugin.status.client import KubeStore, Object
from nodedevices_plugin.status.fitting import without_unknown

OPERATORS = ("actions", "affectedPods")  # fields of the status


class FakeStore(KubeStore):
    """One object. `problem`, while set, is raised by every call; `calls` are the writes that were tried.

    `uid` is the Node that the token names; `node`, where it is set, the one that exists: an object with another owner
    is garbage, and admission refuses an owner that the token does not name.
    """

    def __init__(self, *, node_uid: str | None = "node-uid", item: dict[str, Any] | None = None) -> None:
        self.uid = node_uid
        self.token = 0  # another one after the kubelet refreshed it
        self.node: str | None = None
        self.reads = 0  # which Node the token names
        self.item = item
        self.problem: ApiError | None = None
        self.blind: ApiError | None = None  # while set, raised by a new watch
        self.hangs = False  # while set, no write is answered
        self.held: asyncio.Event | None = None  # while set, a status is written, and the answer waits for this
        self.schema: Mapping[str, Any] | None = None  # of the status; what it does not have is refused
        self.calls: list[str] = []
        self.statuses: list[dict[str, Any]] = []
        self._version = 100
        self._changed = asyncio.Event()

    # --- the port -----------------------------------------------------------------------------------------------------
    def credentials(self) -> object:
        return self.token

    async def node_uid(self) -> str | None:
        self.reads += 1
        self._raise()
        return self.uid

    async def apply_object(self, name: str, owner_uid: str | None) -> Object:
        self.calls.append("object")
        self._raise()
        if owner_uid != self.uid:
            raise ApiError("the only owner allowed is the writer's own Node (name and uid)", status=403)
        asyncio.get_running_loop().call_soon(self.collect_garbage)
        item = self.item or {"metadata": {"name": name, "uid": f"uid-{self._version}"}}
        owners = [{"uid": owner_uid}] if owner_uid else []
        return self._put(item | {"metadata": item["metadata"] | {"ownerReferences": owners}})

    async def create_object(self, name: str, owner_uid: str | None, spec: Mapping[str, Any]) -> Object:
        self._raise()
        if self.item is not None:
            raise ApiError(f'nodedevices "{name}" already exists', status=409)
        made = await self.apply_object(name, owner_uid)
        return self._put({**made, "spec": copy.deepcopy(dict(spec))})

    async def apply_status(self, name: str, status: Mapping[str, Any]) -> Object:
        self.calls.append("status")
        self._raise()
        if self.hangs:
            await asyncio.Event().wait()
        if self.item is None:
            raise ApiError(f'nodedevices "{name}" not found', status=404)
        if self.uid and self.item["metadata"]["ownerReferences"] != [{"uid": self.uid}]:
            raise ApiError("the only owner allowed is the writer's own Node (name and uid)", status=403)
        if self.schema is not None and (unknown := without_unknown(status, self.schema)[1]):
            raise ApiError(f".{unknown[0]}: field not declared in schema", status=500)
        self.statuses.append(copy.deepcopy(dict(status)))
        theirs = {key: value for key, value in (self.item.get("status") or {}).items() if key in OPERATORS}
        written = self._put(self.item | {"status": theirs | copy.deepcopy(dict(status))})
        if self.held is not None:
            await self.held.wait()
        return written

    async def status_schema(self) -> Mapping[str, Any] | None:
        self._raise()
        return self.schema

    async def watch(self, name: str) -> AsyncIterator[Object | None]:
        self._raise()
        if self.blind is not None:
            raise self.blind
        yield copy.deepcopy(self.item)
        while True:
            changed = self._changed
            await changed.wait()
            self._raise()
            yield copy.deepcopy(self.item)

    # --- the other side -----------------------------------------------------------------------------------------------
    def replace(self, item: dict[str, Any]) -> None:
        self._put(item)

    def delete(self) -> None:
        self.item = None
        self._tell()

    def collect_garbage(self) -> None:
        owners = [each["uid"] for each in (self.item or {"metadata": {}})["metadata"].get("ownerReferences", ())]
        if self.node is not None and owners and self.node not in owners:
            self.delete()

    def patch_status(self, **fields: Any) -> None:
        """Somebody else writes these."""
        assert self.item is not None
        self._put(self.item | {"status": (self.item.get("status") or {}) | fields})

    def drop_watches(self, problem: ApiError) -> None:
        self.problem = problem
        self._tell()

    def _put(self, item: dict[str, Any]) -> Object:
        self._version += 1
        self.item = item | {"metadata": item["metadata"] | {"resourceVersion": str(self._version)}}
        self._tell()
        return copy.deepcopy(self.item)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _raise(self) -> None:
        if self.problem is not None:
            raise self.problem
