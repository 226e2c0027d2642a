"""kopf's part: a handler for each watched kind, its settings, and a login.

kopf lists the three kinds, watches them, connects again, and calls a handler for each object that it lists and for each
event. A handler reads the object into its record and hands it over. It never fails: kopf calls nobody again for an
event whose handler has failed. An object that cannot be read is named in the log and stays as it was known; the other
objects do not notice.

What kopf does beyond that is turned off: it keeps no state on objects (its `DiffBaseStorage` copies each object four
times, for handlers of changes, of which there are none), writes no Events, and watches neither CRDs nor namespaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
from nodedevices_api import GROUP, VERSION

from nodedevices_operator.kube import credentials
from nodedevices_operator.records.kinds import Kind

Deliver = Callable[[Kind, str | None, Mapping[str, Any]], None]
"""Gets the kind, the event's type (None: kopf has listed the object) and the raw object."""

# A bound token is good for an hour and its file is renewed earlier; kopf calls the login again after this.
LOGIN_AGAIN = timedelta(minutes=10)
LOGIN_PAUSE_SECONDS = 1.0
PAGE_SIZE = 100  # of kopf's LIST
IDLE_SECONDS = 0.01  # after which kopf's task for an object ends, and lets go of the object; 5 s by default
WATCHED: Mapping[Kind, tuple[str, str, str]] = {
    Kind.NODE_DEVICES: (GROUP, VERSION, "nodedevices"),
    Kind.POLICY: (GROUP, VERSION, "devicepolicies"),
    Kind.NODE: ("", "v1", "nodes"),
}
# kopf's own grow to 21 s, and a pod would wait so long for its mark after the API server's return. An hour of these,
# then the watches end and restart (source.py).
RECONNECT_SECONDS = (1, 1, 2, 3, *(5,) * 720)


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last state of an object."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return {}

    def store(self, **_: Any) -> None:
        return None


def make_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # neither CRDs nor namespaces are watched
    settings.posting.enabled = False  # no Events of kopf's own
    settings.peering.standalone = True
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = RECONNECT_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.persistence.diffbase_storage = NoDiffBase()
    return settings


def make_registry(deliver: Deliver, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """Return an explicit registry: what is watched, and how kopf logs in."""
    registry = kopf.OperatorRegistry()
    for kind, resource in WATCHED.items():
        kopf.on.event(*resource, registry=registry, id=kind.name.lower())(_handler(kind, deliver))

    logins: list[float] = []  # the last one, by the loop's clock

    @kopf.on.login(registry=registry)  # type: ignore[arg-type,unused-ignore]
    async def login(**_: Any) -> kopf.ConnectionInfo:
        # After a 401 kopf calls the login and tries again at once, for as long as it is refused.
        loop = asyncio.get_running_loop()
        if logins:
            await asyncio.sleep(logins.pop() + LOGIN_PAUSE_SECONDS - loop.time())
        logins.append(loop.time())
        return connection_info((await credentials.load(kubeconfig)).configuration)

    return registry


def _handler(kind: Kind, deliver: Deliver) -> Callable[..., Awaitable[None]]:
    async def handler(*, event: Mapping[str, Any], **_: Any) -> None:
        deliver(kind, event["type"], event["object"])

    return handler


def connection_info(configuration: Any) -> kopf.ConnectionInfo:
    """Return the official client's credentials as kopf takes them: one way of logging in for both."""
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
