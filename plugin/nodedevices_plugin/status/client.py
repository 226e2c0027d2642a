"""The agent's uses of the API server: its own NodeDevices applied, and watched, and, where computing power is shared,
the pods of its node watched. Nothing else.

The official client, synchronous, on daemon threads: `kubernetes.aio` loads all of it and more (docs/dependencies.md has
the measured sizes). It is imported on first use, on the thread, so that it delays neither the first Register nor an
answer to the kubelet. Bodies are plain dicts and answers are parsed from raw JSON: typed models drop what they do not
know. Every call has a time limit and no hidden retry; the caller decides when to try again.

Credentials: `--kubeconfig`, else the pod's service account. They change while the agent runs (tokens every hour, a CA
when the cluster's is rotated): the client is made again as soon as one of their files has changed, after a 401, and
after a certificate that it did not trust.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from nodedevices_api import GROUP, RESTORED_BY, VERSION
from nodedevices_common import __version__
from nodedevices_common.backoff import Backoff, Draw
from nodedevices_common.errors import RequestError, retry_after_seconds

from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.status.known_fields import status_schema

PLURAL = "nodedevices"
KIND = "NodeDevices"
FIELD_MANAGER = "nodedevices-agent"
USER_AGENT = f"nodedevices-agent/{__version__}"  # tells an audit log which program sent a request
APPLY = "application/apply-patch+yaml"  # JSON is YAML
NODE_UID = "authentication.kubernetes.io/node-uid"
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 15.0
# The server sends a bookmark about once a minute; a stream silent for longer is half open and is started again where
# it stood. The server ends it after WATCH_SECONDS (a little random, so that a fleet does not come back together).
SILENCE_SECONDS = 150.0
WATCH_SECONDS = (1500, 1800)
WATCH_BACKOFF = Backoff(initial_seconds=0.5, max_seconds=15.0)
UNREADABLE = 200  # StoreError.status of an answer that makes no sense
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_LINE_BYTES = 2 << 20  # an object is at most 1.5 MiB in etcd

Object = Mapping[str, Any]
T = TypeVar("T")


class ListedItems(Struct, Generic[T], frozen=True):
    """Everything that exists now."""

    items: tuple[T, ...]


class ChangedItem(Struct, Generic[T], frozen=True):
    """One item that was added or changed, or (`gone`) deleted."""

    item: T
    gone: bool = False


class StoreError(RequestError):
    """A request about the agent's NodeDevices or its Node that did not succeed."""


class ObjectStore(Protocol):
    """The store of the agent's NodeDevices. Every method but `credentials` may raise StoreError."""

    def credentials(self) -> object:
        """Equal while the agent's credentials are the same; another value after the kubelet refreshed the token."""
        ...

    async def node_uid(self) -> str | None:
        """The Node's uid by the agent's own credentials; None where they carry none (no pod-bound token)."""
        ...

    async def apply_object(self, name: str, owner_uid: str | None) -> Object:
        """Create the object, or set its owner; `spec` and `status` stay as they are. Returns the object."""
        ...

    async def create_object(self, name: str, owner_uid: str | None, spec: Mapping[str, Any]) -> Object:
        """Create the object with this spec. Status 409: there is one, and it stays as it is. Returns the object."""
        ...

    async def apply_status(self, name: str, status: Mapping[str, Any]) -> Object:
        """Server-side apply of the whole status that the agent owns. Status 404: there is no such object."""
        ...

    async def status_schema(self) -> Mapping[str, Any] | None:
        """The OpenAPI v3 schema of the status, as the server has it; None: it does not publish one."""
        ...

    def watch(self, name: str) -> AsyncIterator[Object | None]:
        """The object as it is now, then after every change (the latest only); None: there is none."""
        ...


class NodePodStore(Protocol):
    """The source of a node's pods."""

    def watch_pods(self, node: str, take: Callable[[Object], T]) -> AsyncIterator[ListedItems[T] | ChangedItem[T]]:
        """All pods bound to the node as they are now, then each change, as `take` reads them, which is called on
        another thread. Raises StoreError."""
        ...


class KubeStore:
    """ObjectStore and NodePodStore over the official client."""

    def __init__(self, kubeconfig: str | None) -> None:
        self._kubeconfig = kubeconfig
        self._worker = Worker("kube-write")
        self._lock = threading.Lock()
        self._made: Any = None
        self._made_from: tuple[object, ...] = ()  # the state of the credentials' files at that time

    def credentials(self) -> tuple[object, ...]:
        """Identify the credentials' files; a projected volume and an editor both replace the file."""
        files = (
            self._kubeconfig.split(":") if self._kubeconfig else [SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"]
        )
        return tuple(map(_identity, files))

    async def node_uid(self) -> str | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

        def create_review() -> Object:
            self._forget_client()  # the newest token counts
            return self._call(
                "SelfSubjectReview",
                lambda api: api.create_cluster_custom_object(
                    "authentication.k8s.io", "v1", "selfsubjectreviews", body, **_LIMITS
                ),
            )

        review = await self._worker.run(create_review)
        extra = review.get("status", {}).get("userInfo", {}).get("extra", {})
        values = extra.get(NODE_UID) or []
        return str(values[0]) if values else None

    async def apply_object(self, name: str, owner_uid: str | None) -> Object:
        body = _new_object(name, owner_uid)
        return await self._worker.run(
            lambda: self._call(
                "apply NodeDevices",
                lambda api: api.patch_cluster_custom_object(GROUP, VERSION, PLURAL, name, body, **_APPLY, **_LIMITS),
            )
        )

    async def create_object(self, name: str, owner_uid: str | None, spec: Mapping[str, Any]) -> Object:
        body = _new_object(name, owner_uid) | {"spec": dict(spec)}
        return await self._worker.run(
            lambda: self._call(
                "create NodeDevices",
                lambda api: api.create_cluster_custom_object(
                    GROUP, VERSION, PLURAL, body, field_manager=RESTORED_BY, **_LIMITS
                ),
            )
        )

    async def apply_status(self, name: str, status: Mapping[str, Any]) -> Object:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name},
            "status": dict(status),
        }
        return await self._worker.run(
            lambda: self._call(
                "apply NodeDevices status",
                lambda api: api.patch_cluster_custom_object_status(
                    GROUP, VERSION, PLURAL, name, body, **_APPLY, **_LIMITS
                ),
            )
        )

    async def status_schema(self) -> Mapping[str, Any] | None:
        what = "read the OpenAPI schema of NodeDevices"
        document = await self._worker.run(lambda: self._call(what, _get_openapi))
        return status_schema(document, KIND)

    async def watch(self, name: str) -> AsyncIterator[Object | None]:
        def work(deliver: Callable[[Object | None], None], stop: threading.Event) -> None:
            selector = {"field_selector": f"metadata.name={name}"}
            for event in self._follow("NodeDevices", _nodedevices, selector, stop):
                match event:
                    case ListedItems(items=items):
                        deliver(items[0] if items else None)
                    case ChangedItem(item=item, gone=gone):
                        deliver(None if gone else item)

        async for item in _on_thread("watch NodeDevices", work, latest_only=True):
            yield item

    async def watch_pods(
        self, node: str, take: Callable[[Object], T]
    ) -> AsyncIterator[ListedItems[T] | ChangedItem[T]]:
        def work(deliver: Callable[[ListedItems[T] | ChangedItem[T]], None], stop: threading.Event) -> None:
            for event in self._follow("pods", _pods, {"field_selector": f"spec.nodeName={node}"}, stop):
                match event:
                    case ListedItems(items=items):
                        deliver(ListedItems(tuple(map(take, items))))
                    case ChangedItem(item=item, gone=gone):
                        deliver(ChangedItem(take(item), gone=gone))

        async for event in _on_thread("watch pods", work):
            yield event

    # --- on the threads ----------------------------------------------------------------------------------------------
    def _follow(
        self, what: str, call: Callable[..., Any], selector: Mapping[str, str], stop: threading.Event
    ) -> Iterator[ListedItems[Object] | ChangedItem[Object]]:
        """LIST, then watch from there, again and again from the last version seen; ends only when stopped."""
        listed = self._call(f"list {what}", lambda api: call(api, **selector, **_LIMITS))
        version = str(listed.get("metadata", {}).get("resourceVersion", ""))
        yield ListedItems(tuple(listed.get("items") or ()))
        while not stop.is_set():
            response = self._open(
                f"watch {what}",
                partial(_start_watch, call=call, selector=selector, version=version),
            )
            try:
                for line in _lines(response, what):
                    if stop.is_set():
                        return
                    event = _parse(line, f"watch {what}")
                    kind, item = event.get("type"), event.get("object", {})
                    if kind == "ERROR":
                        raise StoreError(f"watch {what}: {item.get('message', item)}", status=item.get("code", 0))
                    version = str(item.get("metadata", {}).get("resourceVersion", version))
                    if kind in ("ADDED", "MODIFIED", "DELETED"):
                        yield ChangedItem(item, gone=kind == "DELETED")
            finally:
                response.close()
            stop.wait(
                random.uniform(0.5, 1.5)
            )  # a server that ends every stream at once must not make this a busy loop

    def _forget_client(self) -> None:
        """The next call reads the credentials again."""
        with self._lock:
            self._made = None

    def _client(self) -> Any:
        with self._lock:
            now = self.credentials()
            if self._made is None or now != self._made_from:
                from kubernetes import client, config  # noqa: PLC0415  see the module's docstring

                load: Any = config  # the client's functions carry no types

                configuration = client.Configuration()
                try:
                    if self._kubeconfig:
                        load.load_kube_config(config_file=self._kubeconfig, client_configuration=configuration)
                    else:
                        load.load_incluster_config(client_configuration=configuration)
                except (config.ConfigException, OSError, ValueError) as error:
                    where, hint = f"kubeconfig {self._kubeconfig}", ""
                    if not self._kubeconfig:
                        where = "the pod's service account"
                        hint = "; outside a pod give --kubeconfig, or --standalone to do without an API server"
                    raise StoreError(f"load credentials from {where}: {str(error).rstrip('.')}{hint}") from error
                configuration.retries = False
                configuration.connection_pool_maxsize = 2
                api = client.ApiClient(configuration)
                api.user_agent = USER_AGENT
                self._made, self._made_from = client.CustomObjectsApi(api), now
            return self._made

    def _open(self, what: str, call: Callable[[Any], Any]) -> Any:
        """The call's response, its status checked, its body not read."""
        try:
            return call(self._client())
        except StoreError:
            raise
        except Exception as error:
            raise self._explain(what, error) from error

    def _call(self, what: str, call: Callable[[Any], Any]) -> Object:
        response = self._open(what, call)
        try:
            return _parse(response.data, what)
        except StoreError:
            raise
        except Exception as error:
            raise self._explain(what, error) from error

    def _explain(self, what: str, error: Exception) -> StoreError:
        status = getattr(error, "status", None)
        if status == 401 or _is_certificate_error(error):
            self._forget_client()
        if not isinstance(status, int) or status == 0:
            return StoreError(f"{what}: no answer: {type(error).__name__}: {str(error)[:300]}")
        headers = getattr(error, "headers", None) or {}
        retry_after = retry_after_seconds(headers.get("Retry-After"))
        return StoreError(f"{what}: {status} {_message(error)}", status=status, retry_after=retry_after)


_LIMITS: dict[str, Any] = {"_preload_content": False, "_request_timeout": (CONNECT_SECONDS, ANSWER_SECONDS)}
_APPLY: dict[str, Any] = {"field_manager": FIELD_MANAGER, "force": True, "_content_type": APPLY}


def _new_object(name: str, owner_uid: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if owner_uid is not None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner_uid}
        metadata["ownerReferences"] = [owner | {"controller": False, "blockOwnerDeletion": False}]
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata}


def _nodedevices(api: Any, **options: Any) -> Any:
    return api.list_cluster_custom_object(GROUP, VERSION, PLURAL, **options)


def _get_openapi(api: Any) -> Any:
    """No method of the client has this path."""
    from kubernetes import client  # noqa: PLC0415  see the module's docstring

    path = f"/openapi/v3/apis/{GROUP}/{VERSION}"
    accept = {"Accept": "application/json"}
    request = api.api_client.param_serialize("GET", path, header_params=accept, auth_settings=["BearerToken"])
    response = api.api_client.call_api(*request, _request_timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
    response.read()
    if response.status != 200:
        raise client.ApiException(http_resp=response)
    return response


def _pods(api: Any, **options: Any) -> Any:
    from kubernetes import client  # noqa: PLC0415  see the module's docstring

    return client.CoreV1Api(api.api_client).list_pod_for_all_namespaces(**options)


def _start_watch(api: Any, *, call: Callable[..., Any], selector: Mapping[str, str], version: str) -> Any:
    return call(
        api,
        watch=True,
        allow_watch_bookmarks=True,
        resource_version=version,
        timeout_seconds=random.randint(*WATCH_SECONDS),
        _preload_content=False,
        _request_timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
        **selector,
    )


async def keep_watching(
    watch: Callable[[], AsyncIterator[T]],
    seen: Callable[[T], None],
    failed: Callable[[StoreError], None],
    *,
    draw: Draw = random.uniform,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Watch again and again, until cancelled: `seen` gets all that comes, `failed` why a watch ended."""
    failures = 0
    while True:
        at_least = None
        try:
            async for item in watch():
                failures = 0
                seen(item)
        except StoreError as error:
            failed(error)
            at_least = error.retry_after
        failures += 1
        await sleep(WATCH_BACKOFF.after(failures, draw, at_least=at_least))


async def _on_thread(
    what: str, work: Callable[[Callable[[T], None], threading.Event], None], *, latest_only: bool = False
) -> AsyncIterator[T]:
    """Yield what `work` delivers on a thread of its own, until it fails with StoreError. `latest_only`: of items that
    were not taken yet, only the newest is kept."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    delivered: deque[T] = deque(maxlen=1 if latest_only else None)
    failure: list[StoreError] = []
    stop = threading.Event()

    def deliver(item: T) -> None:
        delivered.append(item)
        changed.set()

    def fail(error: StoreError) -> None:
        failure.append(error)
        changed.set()

    def post(callback: Callable[..., None], *arguments: Any) -> None:
        try:
            loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: the agent is ending
            stop.set()

    def run() -> None:
        try:
            work(lambda item: post(deliver, item), stop)
        except StoreError as error:
            post(fail, error)
        except Exception as error:  # the thread may not end unseen: who reads would wait for ever
            text = f"{what}: invalid response: {type(error).__name__}: {str(error)[:300]}"
            post(fail, StoreError(text, status=UNREADABLE))

    threading.Thread(target=run, name=what.replace(" ", "-"), daemon=True).start()
    try:
        while True:
            await changed.wait()
            changed.clear()
            while delivered:
                yield delivered.popleft()
            if failure:
                raise failure[0]
    finally:
        stop.set()


def _lines(response: Any, what: str) -> Iterator[bytes]:
    """Complete lines of a watch stream; ends quietly when the server or a silence ends it."""
    from urllib3.exceptions import HTTPError  # noqa: PLC0415  loaded together with the client

    pending = bytearray()
    try:
        for chunk in response.stream(amt=65536, decode_content=True):
            pending += chunk
            if len(pending) > MAX_LINE_BYTES:
                raise StoreError(f"watch {what}: a line longer than {MAX_LINE_BYTES} bytes")
            while (end := pending.find(b"\n")) >= 0:
                line = bytes(pending[:end])
                del pending[: end + 1]
                if line.strip():
                    yield line
    except (HTTPError, OSError):
        return


def _parse(raw: bytes, what: str) -> Object:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise StoreError(f"{what}: the answer is not JSON: {raw[:100]!r}", status=UNREADABLE) from error
    if not isinstance(value, dict):
        raise StoreError(f"{what}: the answer is not an object: {raw[:100]!r}", status=UNREADABLE)
    return value


def _identity(path: str | Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  a kubeconfig's name may be any text
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_certificate_error(error: Exception) -> bool:
    """True when the server's certificate was not trusted, or ours not taken."""
    from urllib3.exceptions import SSLError  # noqa: PLC0415  loaded together with the client

    return isinstance(getattr(error, "reason", error), SSLError)


def _message(error: Exception) -> str:
    """Return the server's error: `message` of its Status object, else the HTTP reason. Bounded."""
    body = getattr(error, "body", None)
    try:
        said = json.loads(body)["message"] if body else ""
    except (ValueError, TypeError, KeyError):
        said = str(body)
    return str(said or getattr(error, "reason", ""))[:500]
