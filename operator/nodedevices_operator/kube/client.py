"""The operator's one client: a few verbs on paths, raw JSON in and out, every call bounded in time and in number.

`kubernetes.aio` brings credentials, TLS and the connection pool; bodies are plain dicts and answers are parsed with
orjson, because typed models drop what they do not know and cost ten times as much (docs/dependencies.md). There are no
hidden retries: a KubeError says what happened, and the key queue tries again. The one exception is a call that was
refused for a token or a certificate of before: it is made once more with what the disk has by now. After a 429 with
Retry-After nothing is sent until that time is over.

A bound token is renewed by the kubelet before its hour is over, and the cluster's CA can be replaced while we run: both
are files that change under a running process. They are checked every few seconds, and read again at once when the API
server refuses us or cannot be trusted. Nothing of that depends on the wall clock. A file that cannot be used, such as
one half written, leaves what was in use.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
import structlog
from aiohttp import ClientError, ClientSSLError, ClientTimeout
from kubernetes.aio import client, config
from kubernetes.aio.config import incluster_config
from msgspec import Struct
from nodedevices_common import __version__
from nodedevices_common.errors import OperationError, retry_after_seconds
from nodedevices_common.files import identity
from nodedevices_common.raw import mapping, mappings

from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.records.names import MANAGER, resource_of

MAX_CALLS = 32  # at once; two cores of API server answer about 600 small writes a second (measured with 32 at once)
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
SILENT_SECONDS = 150.0  # a watch has a bookmark every minute
WATCH_LIMIT = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
MAX_LINE_BYTES = 8 << 20  # of a watch; etcd takes objects of 1.5 MiB
CHECK_SECONDS = 10.0  # between two checks of the credentials' files
LOAD_AGAIN_SECONDS = 1.0  # between two readings of them, however many calls are refused
PAGE_SIZE = 100  # a page is decoded as a whole; with 500 objects in it 5,000 nodes left 38 MiB more behind
MAX_PAGES = 2000  # 200,000 objects
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
WATCH = "watch"
VERBS = {  # verb -> method, content type
    WATCH: ("GET", JSON),
    "get": ("GET", JSON),
    "list": ("GET", JSON),
    "create": ("POST", JSON),
    "apply": ("PATCH", "application/apply-patch+yaml"),  # JSON is YAML
    "patch": ("PATCH", "application/json-patch+json"),
    "delete": ("DELETE", JSON),
}
USER_AGENT = f"{MANAGER}/{__version__}"  # by which an audit log knows whose request it was
BUDGET_CAUSE = "DisruptionBudget"  # policy/v1: the cause of a refused eviction
SEVERAL_BUDGETS = "more than one PodDisruptionBudget"

T = TypeVar("T")
log = structlog.get_logger()


# --- credentials -----------------------------------------------------------------------------------------------------
_config: Any = config  # untyped functions


class CredentialsError(OperationError):
    """Credentials that cannot be read or used; the text says where they come from."""


class Credentials(Struct, frozen=True):
    """A Configuration of kubernetes.aio, and what it was made of. The same trust and token need no new connection."""

    configuration: Any
    trust: tuple[object, ...]  # the CA and the client certificate, by content
    token: str
    files: list[Path]  # that they come from, and that may change


async def load_credentials(kubeconfig: str | None) -> Credentials:
    """From the file, else from the pod's service account. CredentialsError when they cannot be read."""
    configuration = client.Configuration(retries=False, connection_pool_maxsize=MAX_CALLS)
    try:
        if kubeconfig:
            await _config.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        else:
            _config.load_incluster_config(client_configuration=configuration, try_refresh_token=False)
        trust = (configuration.host, configuration.verify_ssl, *map(_content, _certificates(configuration)))
    except (config.ConfigException, OSError, ValueError) as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account (or give --kubeconfig)"
        raise CredentialsError(f"load credentials from {where}: {error}") from error
    paths = (kubeconfig or incluster_config.SERVICE_TOKEN_FILENAME, *_certificates(configuration))
    return Credentials(configuration, trust, authorization(configuration), [Path(path) for path in paths if path])


def authorization(configuration: Any) -> str:
    """Return the Authorization header; empty: none."""
    return configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization") or ""


def _certificates(configuration: Any) -> tuple[str | None, ...]:
    return configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file


def _content(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""


# --- calls -----------------------------------------------------------------------------------------------------------


class _Request(Struct, frozen=True):
    verb: str
    path: str
    query: Mapping[str, str]
    body: JsonObject | list[dict[str, Any]] | None = None
    accept: str = JSON

    @property
    def what(self) -> str:
        """For messages."""
        return f"{'watch' if self.verb == WATCH else VERBS[self.verb][0]} {self.path}"


class KubeClient:
    """Kube over the official client. Make it inside a running loop; close it at the end."""

    def __init__(self, kubeconfig: str | None, known: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        # Called with each request that has ended: verb, resource, HTTP status (0: no answer) and seconds.
        self.requested: Callable[[str, str, int, float], None] = lambda _verb, _resource, _status, _seconds: None
        self.trust_changed: Callable[[], None] = lambda: None  # called when CA or client certificate is another one
        self.may_write: Callable[[], bool] = lambda: True  # checked just before anything but a read is sent
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._watches: dict[Any, set[Any]] = {}  # the open streams of each client
        self._not_before = 0.0  # clock; until then the API server wants no calls
        self._loading = asyncio.Lock()
        self._loaded_at = clock()
        self._retiring: set[asyncio.Task[None]] = set()  # of clients of before, which calls may still use
        self._use(known)

    @classmethod
    async def connect(cls, kubeconfig: str | None) -> KubeClient:
        """Credentials from the file, else from the pod's service account. CredentialsError when they cannot be read."""
        return cls(kubeconfig, await load_credentials(kubeconfig))

    def _use(self, known: Credentials) -> None:
        try:
            self._api: Any = client.ApiClient(known.configuration)  # typed only in parts
            self._api.user_agent = USER_AGENT
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise CredentialsError(f"use the credentials: {type(error).__name__}: {error}") from error
        self._known = known
        self._stamp = list(map(identity, known.files))

    async def close(self) -> None:
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(self._api.close(), *self._retiring, return_exceptions=True)

    async def watch_credentials(self, period: float = CHECK_SECONDS) -> None:
        """Check the credentials' files for ever, and use what they have become."""
        while True:
            await asyncio.sleep(period)
            if list(map(identity, self._known.files)) != self._stamp:
                await self._renew(self._api)

    async def _renew(self, used: Any) -> bool:
        """Read the credentials again. Returns whether there are others than those of the client `used`."""
        async with self._loading:
            if self._api is not used:
                return True  # another call has done it
            if self._clock() - self._loaded_at < LOAD_AGAIN_SECONDS:
                return False
            self._loaded_at = self._clock()
            before = self._known
            try:
                known = await load_credentials(self._kubeconfig)
                if (known.trust, known.token) == (before.trust, before.token):
                    self._stamp = list(map(identity, known.files))
                    return False
                self._use(known)
            except CredentialsError as error:
                log.warning("failed to reload credentials, keeping the previous ones", error=str(error))
                return False
        log.info("credentials reloaded", token=known.token != before.token, trust=known.trust != before.trust)
        task = asyncio.create_task(self._retire(used))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        if known.trust != before.trust:
            self.trust_changed()
        return True

    async def _retire(self, api: Any) -> None:
        try:
            await asyncio.sleep(CONNECT_SECONDS + ANSWER_SECONDS)  # no call lasts longer
        finally:
            for stream in self._watches.pop(api, ()):  # aiohttp 3.14 wakes no reader when its session is closed
                stream.content.feed_eof()
            await api.close()

    async def get(self, path: str) -> JsonObject:
        return await self._call("get", path)

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> AsyncIterator[JsonObject]:
        asked, accept = dict(query or {}), METADATA if metadata_only else JSON
        # With a limit many API servers read every pod of the cluster from etcd, to find those of one node; without one
        # they answer from memory, by an index (1.32 and 1.33; later ones always do).
        if "fieldSelector" not in asked:
            asked.setdefault("limit", str(PAGE_SIZE))
        for _ in range(MAX_PAGES):
            page = await self._call("list", path, asked, accept=accept)
            if page.get("items", "") is None:  # as Go writes an empty list of metadata
                page["items"] = []
            metadata, is_list = page.get("metadata"), str(page.get("kind", "")).endswith("List")
            if not (is_list and isinstance(page.get("items"), list) and isinstance(metadata, dict)):
                raise KubeError(f"GET {path}: the answer is not a list")
            yield page
            asked["continue"] = metadata.get("continue") or ""
            if not asked["continue"]:
                return
        raise KubeError(f"GET {path}: more than {MAX_PAGES} pages")

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        # None of the slots: they are for calls that end.
        request = _Request(WATCH, path, {**query, "watch": "true"})
        response, _ = await self._again_with_credentials(lambda: self._exchange(request))
        stream = response.response
        rest = b""
        try:
            async for chunk in stream.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise KubeError(f"{request.what}: a line of more than {MAX_LINE_BYTES} bytes")
                for line in whole:
                    yield line
        except (OSError, TimeoutError, ClientError) as error:
            raise KubeError(f"{request.what}: it ended: {type(error).__name__}: {str(error)[:300]}") from error
        finally:
            for open_streams in self._watches.values():
                open_streams.discard(stream)
            stream.close()

    async def apply(self, path: str, body: JsonObject, manager: str, *, force: bool = True) -> JsonObject:
        query = {"fieldManager": manager} | ({"force": "true"} if force else {})
        return await self._call("apply", path, query, body)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        return await self._call("create", path, {"fieldManager": MANAGER}, body)

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> JsonObject:
        return await self._call("patch", path, {"fieldManager": MANAGER}, operations)

    async def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        only = {"uid": uid, "resourceVersion": resource_version}
        await self._call("delete", path, body={"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only})

    async def _call(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | list[dict[str, Any]] | None = None,
        accept: str = JSON,
    ) -> dict[str, Any]:
        request = _Request(verb, path, query or {}, body, accept)
        left = self._not_before - self._clock()
        if left > 0:
            raise KubeError(
                f"{request.what}: not sent yet, the API server requested a delay", status=429, retry_after=left
            )
        return await self._again_with_credentials(lambda: self._send(request))

    async def _again_with_credentials(self, send: Callable[[], Awaitable[T]]) -> T:
        """Once more with other credentials, where these are refused and there are others by now."""
        used = self._api
        try:
            return await send()
        except KubeError as error:
            # The API server does not know us, or we do not trust it (or it us).
            about_them = error.status == 401 or isinstance(error.__cause__, (ClientSSLError, ssl.SSLError))
            if not about_them or not await self._renew(used):
                raise
        return await send()

    async def _send(self, request: _Request) -> dict[str, Any]:
        async with self._slots:
            if VERBS[request.verb][0] != "GET" and not self.may_write():  # a call may have waited long for its slot
                raise KubeError(f"{request.what}: not sent, this replica is not the leader")
            _, data = await self._exchange(request)
        try:
            return cast("dict[str, Any]", orjson.loads(data))
        except orjson.JSONDecodeError as error:
            raise KubeError(f"{request.what}: the answer is not JSON: {data[:100]!r}") from error

    def _refusal(self, request: _Request, response: Any, data: bytes) -> KubeError:
        """Return the API server's refusal as an error. Where it requests a delay, nothing is sent until that time is
        over; where it refuses an Event, for which there are limits of their own, Events alone wait (apply.py)."""
        retry = retry_after_seconds(response.getheader("Retry-After"))
        said, absent, blocked = _error_message(data, str(response.reason))
        if response.status == 429 and retry is not None and not blocked and resource_of(request.path) != "events":
            self._not_before = max(self._not_before, self._clock() + retry)
        return KubeError(
            f"{request.what}: {response.status} {said}",
            status=response.status,
            retry_after=None if blocked else retry,
            absent=absent,
            blocked=blocked,
        )

    async def _exchange(self, request: _Request) -> tuple[Any, bytes]:
        """The response and its body, which of a watch is still to come. KubeError for a refusal."""
        watches, api = request.verb == WATCH, self._api
        method, content_type = VERBS[request.verb]
        headers = {"Accept": request.accept, "Content-Type": content_type}
        query = list(request.query.items())
        began, status = time.perf_counter(), 0
        try:
            async with asyncio.timeout(None if watches else CONNECT_SECONDS + ANSWER_SECONDS):
                arguments = await api.param_serialize(
                    method, request.path, {}, query, headers, request.body, auth_settings=["BearerToken"]
                )
                limit = WATCH_LIMIT if watches else ANSWER_SECONDS
                response = await api.call_api(*arguments, _preload_content=False, _request_timeout=limit)
                data = b"" if watches and response.status == 200 else await response.read()
                status = response.status
        except (OSError, TimeoutError, ClientError, client.ApiException) as error:
            raise KubeError(f"{request.what}: no answer: {type(error).__name__}: {str(error)[:300]}") from error
        finally:
            self.requested(request.verb, resource_of(request.path), status, time.perf_counter() - began)
        if not 200 <= status <= 299:
            raise self._refusal(request, response, data)
        if watches:
            self._watches.setdefault(api, set()).add(response.response)
        return response, data


def _error_message(data: bytes, reason: str) -> tuple[str, str | None, str]:
    """Return what the server said, bounded; the name of the object that it says does not exist; and why a
    PodDisruptionBudget does not allow the eviction that it refused.

    A missing object has a Status with reason NotFound and its name; a missing collection (no CRD) has none. A refused
    eviction has a cause DisruptionBudget, with 429; or, where several budgets are about the pod, a 500 that says so.
    """
    try:
        status = orjson.loads(data)
        said = str(status["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return (data.decode(errors="replace").strip() or reason)[:500], None, ""
    details = mapping(status.get("details"))
    name = details.get("name") if status.get("reason") == "NotFound" else None
    causes = [it for it in mappings(details.get("causes")) if it.get("reason") == BUDGET_CAUSE]
    blocked = str(causes[0].get("message") or said) if causes else said if SEVERAL_BUDGETS in said else ""
    return said[:500], name if isinstance(name, str) else None, blocked[:500]
