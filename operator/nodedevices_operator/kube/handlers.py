"""kopf's part: which kinds it watches, its settings, a login, and the HTTP session by which it does so.

kopf connects, and connects again: with other credentials, after an error, and from the last resourceVersion or, where
that is too old (410), from a new one. The session is ours, and a middleware of it takes the rest off kopf:

- Before it watches, kopf lists. Our own LIST is the authority on what exists (cache/relist.py), and a second one costs
  1 ms for each object, and memory. So kopf's LIST of a watched kind requests an object that there cannot be. It gets an
  empty list with the cluster's resourceVersion, and watches from there; `positioned` is called then, and our LIST that
  comes after it misses nothing.
- Of an event kopf makes a cause, a context and a task for each handler, which costs five times what reading it does. So
  events are delivered as they are read, and kopf is shown a bookmark in their place, which it takes the
  resourceVersion from. Its handlers are there because kopf watches what has one. They are called only by a kopf that
  reads a stream in another way than today's, and then they deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import aiohttp
import kopf
import orjson
from aiohttp.client_middlewares import ClientHandlerType
from nodedevices_api import GROUP, VERSION

from nodedevices_operator.kube import credentials
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import NO_OBJECT

Deliver = Callable[[Kind, str, Mapping[str, Any]], None]  # kind, type of the event, raw object
Positioned = Callable[[Kind], None]  # the watch of that kind reports what changes from now on

# A bound token is good for an hour and its file is renewed earlier; kopf calls the login again after this.
LOGIN_AGAIN = timedelta(minutes=10)
LOGIN_PAUSE_SECONDS = 1.0
_WATCHED: Mapping[Kind, tuple[str, str, str]] = {
    Kind.NODE_DEVICES: (GROUP, VERSION, "nodedevices"),
    Kind.POLICY: (GROUP, VERSION, "devicepolicies"),
    Kind.NODE: ("", "v1", "nodes"),
}
WATCHED_NAMES = frozenset(plural for _, _, plural in _WATCHED.values())


EVENTS = frozenset({"ADDED", "MODIFIED", "DELETED"})
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n'


class EventStream:
    """The content of a watch's answer: its events are delivered, and whoever reads it gets a bookmark for them, and the
    other lines. A line that is cut off by the end is dropped: the next watch begins before it."""

    def __init__(self, content: aiohttp.StreamReader, deliver: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._content = content
        self._deliver = deliver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if left := self._take(lines):
                yield left

    def _take(self, lines: Iterable[bytes]) -> bytes:
        left, version = b"", ""
        for line in filter(None, lines):
            event = orjson.loads(line)
            if event["type"] in EVENTS:
                self._deliver(event["type"], event["object"])
                version = event["object"]["metadata"]["resourceVersion"]
            else:
                left += (BOOKMARK % version.encode() if version else b"") + line + b"\n"
                version = ""
        return left + (BOOKMARK % version.encode() if version else b"")


# kopf's own grow to 21 s, and a pod would wait so long for its mark after the API server's return. An hour of these,
# then the watches end and restart (source.py).
RECONNECT_SECONDS = (1, 1, 2, 3, *(5,) * 720)


def make_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # neither CRDs nor namespaces are watched
    settings.posting.enabled = False  # no Events of kopf's own
    settings.peering.standalone = True
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = RECONNECT_SECONDS
    return settings


def make_registry(deliver: Deliver, positioned: Positioned, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """An explicit registry: what is watched, and how kopf logs in."""
    registry = kopf.OperatorRegistry()
    for kind, resource in _WATCHED.items():
        kopf.on.event(*resource, registry=registry, id=kind.name.lower())(_handler(kind, deliver))

    logins: list[float] = []  # the last one, by the loop's clock

    @kopf.on.login(registry=registry)  # type: ignore[arg-type,unused-ignore]
    async def login(**_: Any) -> kopf.AiohttpSession:
        # After a 401 kopf calls the login and tries again at once, for as long as it is refused.
        loop = asyncio.get_running_loop()
        if logins:
            await asyncio.sleep(logins.pop() + LOGIN_PAUSE_SECONDS - loop.time())
        logins.append(loop.time())
        known = connection_info((await credentials.load(kubeconfig)).configuration)
        return kopf.AiohttpSession(
            server=known.server, aiohttp_session=_session(known, deliver, positioned), expiration=known.expiration
        )

    return registry


def _handler(kind: Kind, deliver: Deliver) -> Callable[..., Awaitable[None]]:
    async def handler(*, event: Mapping[str, Any], **_: Any) -> None:
        if event.get("type") in EVENTS:
            deliver(kind, event["type"], event["object"])

    return handler


def _session(known: kopf.ConnectionInfo, deliver: Deliver, positioned: Positioned) -> aiohttp.ClientSession:
    """As kopf makes it, but for its LISTs and watches of what is watched."""

    async def take(request: aiohttp.ClientRequest, send: ClientHandlerType) -> aiohttp.ClientResponse:
        kind = next((it for it in _WATCHED if request.url.path.endswith(it.value)), None)
        if kind is None or request.method != "GET":
            return await send(request)
        if "watch" in request.url.query:
            response = await send(request)
            response.content = cast("aiohttp.StreamReader", EventStream(response.content, partial(deliver, kind)))
            return response
        url = request.url.with_query(fieldSelector=NO_OBJECT)
        response = await request.session.get(url, headers=request.headers, middlewares=())
        if response.status == HTTPStatus.OK:
            positioned(kind)
        return response

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=known.as_ssl_context()),
        headers=known.as_http_headers(),
        proxy=known.proxy_url,
        middlewares=(take,),
    )


def connection_info(configuration: Any) -> kopf.ConnectionInfo:
    """The official client's credentials, as kopf takes them: one way of logging in for both."""
    scheme, _, token = credentials.header(configuration).rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        expiration=datetime.now(UTC) + LOGIN_AGAIN,
    )
