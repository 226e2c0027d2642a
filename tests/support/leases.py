"""The API server's part of an election: one Lease, in memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from nodedevices_operator.kube.port import KubeError
from support.fakekube import FakeKube


class LeaseServer(FakeKube):
    """The API server's part: one Lease, with optimistic locking. `refuses`: what the next requests end with; a write
    that `loses_answers` lands, and its sender does not learn of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: dict[str, Any] | None = None
        self.refuses: KubeError | None = None
        self.loses_answers = False
        self.version = 0
        self.paths: set[str] = set()  # of all requests

    def spec(self) -> Mapping[str, Any]:
        assert self.lease is not None
        spec: Mapping[str, Any] = self.lease["spec"]
        return spec

    def stands(self, **spec: Any) -> None:
        self.version += 1
        self.lease = {"metadata": {"uid": "u", "resourceVersion": str(self.version)}, "spec": spec}

    async def get(self, path: str) -> Mapping[str, Any]:
        self._fail(path)
        if self.lease is None:
            raise KubeError("GET: 404", status=404)
        return copy.deepcopy(self.lease)

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._fail(path)
        if self.lease is not None:
            raise KubeError("POST: 409", status=409)
        return self._stored(body)

    async def apply(self, path: str, body: Mapping[str, Any], manager: str, *, force: bool = True) -> Mapping[str, Any]:
        self._fail(path)
        if self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeError("PATCH: 409", status=409)
        return self._stored(body)

    def _fail(self, path: str) -> None:
        self.paths.add(path)
        if self.refuses is not None:
            raise self.refuses

    def _stored(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.stands(**body["spec"])
        if self.loses_answers:
            raise KubeError("PATCH: no answer")
        assert self.lease is not None
        return copy.deepcopy(self.lease)
