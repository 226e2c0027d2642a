"""The least that a client of an API server can do, as floors: nothing is kept and nothing is decided.

    python -m benchmarks.bare KUBECONFIG watch    list the operator's three kinds by pages, watch them, decode it all
    python -m benchmarks.bare KUBECONFIG kopf     the same by kopf, with handlers that drop
    python -m benchmarks.bare KUBECONFIG calls    make the calls that standard input has, a JSON line each; answer with
                                                  the seconds and the CPU that they took, and wait for more lines

HTTP is `kubernetes.aio`'s and JSON is orjson's, as in the operator. The first two say `listed` once they have it all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from kubernetes.aio import client, config

AT_ONCE = 16  # as many as the operator has workers for nodes
PAGE = 500
OURS = "/apis/nodedevices.io/v1alpha1"
NODES, NODE_DEVICES, POLICIES = "/api/v1/nodes", f"{OURS}/nodedevices", f"{OURS}/devicepolicies"
COLLECTIONS = (POLICIES, NODES, NODE_DEVICES)
APPLY = "application/apply-patch+yaml"
_config: Any = config  # untyped functions


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class Took:
    seconds: float
    cpu_seconds: float  # of this process


def apply(path: str, body: Mapping[str, Any], manager: str) -> Call:
    """Server-side apply."""
    return Call("PATCH", path, {"fieldManager": manager, "force": "true"}, body, APPLY)


class Refused(Exception):  # noqa: N818 - reads as what happened
    """The API server did not do what was requested."""


class Client:
    """Raw answers. Make it inside a running loop, and close it."""

    def __init__(self, configuration: Any) -> None:
        self._api: Any = client.ApiClient(configuration)

    @classmethod
    async def connect(cls, kubeconfig: str) -> Client:
        return cls(await configured(kubeconfig))

    async def close(self) -> None:
        await self._api.close()

    async def call(self, call: Call) -> bytes:
        response = await self._begin(call)
        data: bytes = await response.read()
        if not 200 <= response.status <= 299:
            raise Refused(f"{call.method} {call.path}: {response.status} {data[:500]!r}")
        return data

    async def pages(self, path: str) -> AsyncIterator[dict[str, Any]]:
        token = ""
        while True:
            query = {"limit": str(PAGE)} | ({"continue": token} if token else {})
            page: dict[str, Any] = orjson.loads(await self.call(Call("GET", path, query)))
            yield page
            token = page["metadata"].get("continue") or ""
            if not token:
                return

    async def watch(self, path: str, version: str) -> AsyncIterator[dict[str, Any]]:
        """Events after that resourceVersion, until the connection ends."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        response = await self._begin(Call("GET", path, query))
        while line := await response.response.content.readline():
            yield orjson.loads(line)

    async def many(self, calls: Sequence[Call], at_once: int = AT_ONCE) -> None:
        """All of them, so many at once; every answer is decoded."""
        left = iter(calls)

        async def work() -> None:
            for call in left:
                orjson.loads(await self.call(call))

        await asyncio.gather(*(work() for _ in range(at_once)))

    async def _begin(self, call: Call) -> Any:
        headers = {"Accept": "application/json", "Content-Type": call.content_type}
        arguments = await self._api.param_serialize(
            call.method, call.path, {}, list(call.query.items()), headers, call.body, auth_settings=["BearerToken"]
        )
        return await self._api.call_api(*arguments, _preload_content=False, _request_timeout=600)


async def configured(kubeconfig: str) -> Any:
    """What `kubernetes.aio` makes of the file."""
    configuration = client.Configuration(retries=False, connection_pool_maxsize=64)
    await _config.load_kube_config(config_file=kubeconfig, client_configuration=configuration, persist_config=False)
    return configuration


# --- what the processes do ------------------------------------------------------------------------------------------
async def watch(kubeconfig: str) -> None:
    api = await Client.connect(kubeconfig)
    versions = {}
    for path in COLLECTIONS:
        async for page in api.pages(path):
            versions[path] = page["metadata"]["resourceVersion"]

    async def drop(path: str) -> None:
        async for event in api.watch(path, versions[path]):
            del event

    print("listed", flush=True)
    await asyncio.gather(*(drop(path) for path in COLLECTIONS))


async def kopf(kubeconfig: str) -> None:
    """With the settings that cost least. The operator itself takes events before kopf has them (decisions/001)."""
    import logging

    import kopf

    class NoDiffs(kopf.DiffBaseStorage):
        def build(self, *, body: Any, extra_fields: Any = None) -> Any:
            return {}

        def fetch(self, *, body: Any) -> Any:
            return {}

        def store(self, *, body: Any, patch: Any, essence: Any) -> None:
            return None

    logging.getLogger("kopf").setLevel(logging.WARNING)
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = 0.05
    settings.persistence.diffbase_storage = NoDiffs()
    settings.peering.standalone = True
    registry = kopf.OperatorRegistry()

    async def drop(**_: Any) -> None:
        return None

    for path in COLLECTIONS:
        *_group, version, plural = path.split("/")
        group = "" if path == NODES else _group[-1]
        kopf.on.event(group, version, plural, registry=registry, id=plural)(drop)

    @kopf.on.login(registry=registry)  # type: ignore[arg-type,unused-ignore]
    async def login(**_: Any) -> kopf.ConnectionInfo:
        known = await configured(kubeconfig)
        return kopf.ConnectionInfo(
            server=known.host,
            ca_path=known.ssl_ca_cert,
            scheme="Bearer",
            token=known.api_key.get("BearerToken", "").removeprefix("Bearer ") or None,
            expiration=datetime.now(UTC) + timedelta(hours=1),
        )

    print("listed", flush=True)  # kopf does not report it: who measures waits until it is idle
    await kopf.operator(registry=registry, settings=settings, clusterwide=True, standalone=True)


async def calls(kubeconfig: str) -> None:
    api = await Client.connect(kubeconfig)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = [Call(**each) for each in json.loads(line)]
        began, used = time.perf_counter(), time.process_time()
        await api.many(wanted)
        print(json.dumps(asdict(Took(time.perf_counter() - began, time.process_time() - used))), flush=True)
    await api.close()


if __name__ == "__main__":
    asyncio.run({"watch": watch, "kopf": kopf, "calls": calls}[sys.argv[2]](sys.argv[1]))
