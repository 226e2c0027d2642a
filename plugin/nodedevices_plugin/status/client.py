"""The agent's uses of the API server: its own NodeDevices applied, and watched, and, where computing power is shared,
the pods of its node watched. Nothing else.

The client is nodedevices_kube's, on daemon threads: nothing on the event loop waits for a network. It is imported on
first use, on the thread, so that it delays neither the first Register nor an answer to the kubelet. Every call has a
time limit and no hidden retry; the caller decides when to try again.

Credentials: `--kubeconfig`, else the pod's service account. They change while the agent runs (tokens every hour, a CA
when the cluster's is rotated): they are read again for each watch, and for a write as soon as one of their files has
changed, after a 401, and after no answer, as from a server whose certificate is not trusted.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from nodedevices_api import API_VERSION, RESTORED_BY
from nodedevices_common import __version__
from nodedevices_common.backoff import Backoff, Draw
from nodedevices_common.files import identity
from nodedevices_common.text import clip
from nodedevices_kube import SERVICE_ACCOUNT, at
from nodedevices_kube.errors import ApiError, KubeconfigError

from nodedevices_plugin.claims.slices import Stored, stored
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.status.fitting import status_schema

if TYPE_CHECKING:
    from nodedevices_kube.client import Client

KIND = "NodeDevices"
COLLECTION = f"/apis/{API_VERSION}/nodedevices"
PODS = "/api/v1/pods"
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NAMESPACES = "/apis/resource.k8s.io/v1/namespaces"
OPENAPI = f"/openapi/v3/apis/{API_VERSION}"
FIELD_MANAGER = "nodedevices-agent"
USER_AGENT = f"nodedevices-agent/{__version__}"  # tells an audit log which program sent a request
NODE_UID = "authentication.kubernetes.io/node-uid"
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 15.0
# The server ends a watch after so long, a little random, so that a fleet does not come back together.
WATCH_SECONDS = (1500, 1800)
WRITE_BACKOFF = Backoff(initial_seconds=0.5, max_seconds=30.0)
WATCH_BACKOFF = Backoff(initial_seconds=0.5, max_seconds=15.0)
UNREADABLE = 200  # ApiError.status of an answer that makes no sense
MAX_ERROR_CHARACTERS = 500

Object = Mapping[str, Any]
T = TypeVar("T")


class ListedItems(Struct, Generic[T], frozen=True):
    """Everything that exists now."""

    items: tuple[T, ...]


class ChangedItem(Struct, Generic[T], frozen=True):
    """One item that was added or changed, or (`gone`) deleted."""

    item: T
    gone: bool = False


class KubeStore:
    """The agent's objects at the API server. Calls are made one after another, and each may raise ApiError."""

    def __init__(self, kubeconfig: str | None, *, thread: str = "kube-write") -> None:
        self._kubeconfig = kubeconfig
        self._worker = Worker(thread)
        self._client: Client | None = None  # the worker's
        self._made_from: object = None  # the credentials at that time

    def credentials(self) -> object:
        """Return what is equal while the agent's credentials are the same: the identities of their files, which a
        projected volume and an editor replace."""
        files = (
            self._kubeconfig.split(os.pathsep)
            if self._kubeconfig
            else [SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"]
        )
        return tuple(map(identity, files))

    async def node_uid(self) -> str | None:
        """Return the Node's uid by the agent's own credentials; None where they carry none (no pod-bound token)."""

        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review = await self._call(
            "SelfSubjectReview",
            lambda client: client.write("POST", REVIEWS, body),
            anew=True,  # the newest token counts
        )
        extra = review.get("status", {}).get("userInfo", {}).get("extra", {})
        values = extra.get(NODE_UID) or []
        return str(values[0]) if values else None

    async def apply_object(self, name: str, owner_uid: str | None) -> Object:
        """Create the NodeDevices, or set its owner; `spec` and `status` stay as they are. Returns the object."""
        return await self._apply("apply NodeDevices", "", _new_object(name, owner_uid))

    async def create_object(self, name: str, owner_uid: str | None, spec: Mapping[str, Any]) -> Object:
        """Create the NodeDevices with this spec, and return it. Status 409: there is one, and it stays as it is."""
        body = _new_object(name, owner_uid) | {"spec": dict(spec)}
        return await self._call(
            "create NodeDevices", lambda client: client.write("POST", COLLECTION, body, manager=RESTORED_BY)
        )

    async def apply_status(self, name: str, status: Mapping[str, Any]) -> Object:
        """Server-side apply of the whole status that the agent owns. Status 404: there is no such object."""
        return await self._apply("apply NodeDevices status", "/status", _new_object(name, None) | {"status": status})

    async def status_schema(self) -> Mapping[str, Any] | None:
        """Return the OpenAPI v3 schema of the status, as the server has it; None: it does not publish one."""
        document = await self._call("read the OpenAPI schema of NodeDevices", lambda client: client.get(OPENAPI))
        return status_schema(document, KIND)

    async def watch(self, name: str) -> AsyncIterator[Object | None]:
        """The NodeDevices as it is now, then after every change; None: there is none."""
        follow = partial(self._follow, "NodeDevices", COLLECTION, f"metadata.name={name}", lambda item: item)
        async for event in _on_thread("watch NodeDevices", follow):
            if isinstance(event, ListedItems):
                yield event.items[0] if event.items else None
            else:
                yield None if event.gone else event.item

    def watch_pods(self, node: str, take: Callable[[Object], T]) -> AsyncIterator[ListedItems[T] | ChangedItem[T]]:
        """All pods bound to the node as they are now, then each change, as `take` reads them, which is called on
        another thread."""
        return _on_thread("watch pods", partial(self._follow, "pods", PODS, f"spec.nodeName={node}", take))

    # --- DRA ---------------------------------------------------------------------------------------------------------
    def watch_slices(self, node: str, driver: str) -> AsyncIterator[ListedItems[Stored] | ChangedItem[Stored]]:
        fields = f"spec.nodeName={node},spec.driver={driver}"
        return _on_thread("watch ResourceSlices", partial(self._follow, "ResourceSlices", SLICES, fields, stored))

    async def create_slice(self, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        path = f"{SLICES}?dryRun=All" if dry_run else SLICES
        return await self._call("create ResourceSlice", lambda client: client.write("POST", path, body))

    async def update_slice(self, body: Mapping[str, Any]) -> Object:
        path = at(SLICES, body["metadata"]["name"])
        return await self._call("update ResourceSlice", lambda client: client.write("PUT", path, body))

    async def delete_slice(self, name: str) -> None:
        await self._call("delete ResourceSlice", lambda client: client.write("DELETE", at(SLICES, name), {}))

    async def claim(self, namespace: str, name: str) -> Object:
        """The ResourceClaim as it is now; {}: there is none."""
        path = at(f"{at(NAMESPACES, namespace)}/resourceclaims", name)
        try:
            return await self._call("read ResourceClaim", lambda client: client.get(path))
        except ApiError as error:
            if error.status == 404:
                return {}
            raise

    async def _apply(self, what: str, subresource: str, body: Mapping[str, Any]) -> Object:
        path = at(COLLECTION, body["metadata"]["name"]) + subresource
        return await self._call(what, lambda client: client.apply(path, body, manager=FIELD_MANAGER))

    async def _call(self, what: str, call: Callable[[Client], Object], *, anew: bool = False) -> Object:
        """`anew`: with the credentials read again."""
        return await self._worker.run(partial(self._call_here, what, call, anew=anew))

    # --- on the threads ----------------------------------------------------------------------------------------------
    def _call_here(self, what: str, call: Callable[[Client], Object], *, anew: bool) -> Object:
        now = self.credentials()
        if anew or now != self._made_from:
            self.close()
        if self._client is None:
            self._client, self._made_from = self._connect(), now
        try:
            with _explained(what):
                return call(self._client)
        except ApiError as error:
            if error.status in (0, 401):
                self.close()
            raise

    def close(self) -> None:
        """End the connection; the next call reads the credentials again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _follow(
        self, what: str, collection: str, fields: str, take: Callable[[Object], T], stop: threading.Event
    ) -> Iterator[ListedItems[T] | ChangedItem[T]]:
        """LIST, then watch from there, again and again from the last version seen; ends only when stopped."""
        version = ""
        while not stop.is_set():
            with closing(self._connect()) as client:
                if not version:
                    with _explained(f"list {what}"):
                        items, version = client.read_all(collection, take, fields=fields)
                    yield ListedItems(tuple(items))
                seconds = random.randint(*WATCH_SECONDS)
                with _explained(f"watch {what}"):
                    for kind, item in client.watch(collection, version, fields=fields, seconds=seconds):
                        version = str(item["metadata"].get("resourceVersion", version))
                        if kind in ("ADDED", "MODIFIED", "DELETED"):
                            yield ChangedItem(take(item), gone=kind == "DELETED")
            stop.wait(
                random.uniform(0.5, 1.5)
            )  # a server that ends every stream at once must not make this a busy loop

    def _connect(self) -> Client:
        from nodedevices_kube import kubeconfig  # noqa: PLC0415  see the module's docstring
        from nodedevices_kube.client import Client  # noqa: PLC0415
        from nodedevices_kube.connection import Connection  # noqa: PLC0415

        limits = {"connect_seconds": CONNECT_SECONDS, "answer_seconds": ANSWER_SECONDS}
        hint = (
            "" if self._kubeconfig else "; outside a pod give --kubeconfig, or --standalone to do without an API server"
        )
        try:
            context = (
                kubeconfig.read(self._kubeconfig).context("")
                if self._kubeconfig
                else kubeconfig.of_service_account(os.environ)
            )
            known = kubeconfig.credentials(context)
            return Client(Connection(context.cluster, known, os.environ, user_agent=USER_AGENT, **limits))
        except KubeconfigError as error:
            raise ApiError(f"load credentials: {error}{hint}") from error


def _new_object(name: str, owner_uid: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if owner_uid is not None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner_uid}
        metadata["ownerReferences"] = [owner | {"controller": False, "blockOwnerDeletion": False}]
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise what fails in this block with what was attempted."""
    try:
        yield
    except ApiError as error:
        why = clip(str(error), MAX_ERROR_CHARACTERS) if error.status else f"no answer: {error}"
        raise ApiError(f"{what}: {why}", status=error.status, retry_after=error.retry_after) from error


async def keep_watching(
    watch: Callable[[], AsyncIterator[T]],
    seen: Callable[[T], None],
    failed: Callable[[ApiError], None],
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
        except ApiError as error:
            failed(error)
            at_least = error.retry_after
        failures += 1
        await sleep(WATCH_BACKOFF.after(failures, draw, at_least=at_least))


async def _on_thread(what: str, follow: Callable[[threading.Event], Iterator[T]]) -> AsyncIterator[T]:
    """Yield what `follow` yields on a thread of its own, until it fails with ApiError; it is given what tells it to
    stop."""
    loop, stop = asyncio.get_running_loop(), threading.Event()
    news: asyncio.Queue[T | ApiError] = asyncio.Queue()

    def post(item: T | ApiError) -> None:
        try:
            loop.call_soon_threadsafe(news.put_nowait, item)
        except RuntimeError:  # the loop is closed: the agent is ending
            stop.set()

    def run() -> None:
        try:
            for item in follow(stop):
                if stop.is_set():
                    return
                post(item)
        except ApiError as error:
            post(error)
        except Exception as error:  # the thread may not end unseen: who reads would wait for ever
            text = f"{what}: invalid response: {type(error).__name__}: {str(error)[:300]}"
            post(ApiError(text, status=UNREADABLE))

    threading.Thread(target=run, name=what.replace(" ", "-"), daemon=True).start()
    try:
        while True:
            item = await news.get()
            if isinstance(item, ApiError):
                raise item
            yield item
    finally:
        stop.set()
