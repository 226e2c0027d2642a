"""The watches of NodeDevices, Nodes and DevicePolicies, by kopf.

kopf lists the three kinds, watches them, connects again, and calls a handler for each object that it lists and for each
event. A handler reads the object into its record and hands it over. It never fails: kopf calls nobody again for an
event whose handler has failed. An object that cannot be read is named in the log and stays as it was known; the other
objects do not notice.

What kopf does beyond that is turned off: it keeps no state on objects (its `DiffBaseStorage` copies each object four
times, for handlers of changes, of which there are none), writes no Events, and watches neither CRDs nor namespaces.

It runs in its own thread and event loop, and is started again whenever it has ended. At its end kopf cancels every task
of its loop that it does not know, and it ends on errors that are ordinary to us (a CRD deleted, a bad answer to a
watch). In its own loop neither can reach the rest of the operator. What crosses over are frozen records, in order.

kopf finds out once, at its start, what there is to watch, and goes on without a kind that it does not find. So it is
started only when the API server says that it has every kind (`start`, after every end as well).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import kopf
import structlog
from nodedevices_api import GROUP, VERSION
from nodedevices_common.backoff import Backoff

from nodedevices_operator.kube.client import authorization, load_credentials
from nodedevices_operator.records.kinds import Kind, Record, read
from nodedevices_operator.records.names import MANAGER

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
# then the watches end and restart (`Watch`).
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
        kopf.on.event(*resource, registry=registry, id=kind.name.lower())(partial(_handle, kind, deliver))

    logins: list[float] = []  # the last one, by the loop's clock

    @kopf.on.login(registry=registry)  # type: ignore[arg-type,unused-ignore]
    async def login(**_: Any) -> kopf.ConnectionInfo:
        # After a 401 kopf calls the login and tries again at once, for as long as it is refused.
        loop = asyncio.get_running_loop()
        if logins:
            await asyncio.sleep(logins.pop() + LOGIN_PAUSE_SECONDS - loop.time())
        logins.append(loop.time())
        configuration = (await load_credentials(kubeconfig)).configuration  # one way of logging in for both
        scheme, token = authorization(configuration).rpartition(" ")[::2]
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

    return registry


async def _handle(kind: Kind, deliver: Deliver, *, event: Mapping[str, Any], **_: Any) -> None:
    deliver(kind, event["type"], event["object"])


# --- the watches -----------------------------------------------------------------------------------------------------
Known = Callable[[Kind, str], Record | None]  # what is known of an object, also in another thread

RESTART_BACKOFF = Backoff(initial_seconds=1.0, max_seconds=30.0, jitter=0.2)  # while kopf keeps ending
STEADY_SECONDS = 60.0  # having run so long, it starts at the first delay again
JOIN_SECONDS = 5.0
SPARSE_SECONDS = 60.0
END_SECONDS = 3.0  # for kopf's tasks to end, once cancelled
CLOSE_SECONDS = 0.25  # TLS connections are closed by the loop, a moment after their session
GATHER_SECONDS = 0.02  # between two looks at what has come: waking the other loop costs more than taking an event in
AT_ONCE = 100  # events that are taken in before others go on: some 10 ms

log = structlog.get_logger()


class Sparse(logging.Filter):
    """One line a minute of what would be said at every try, while the API server is away or refuses a watch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if record.levelno < logging.WARNING or now < self._next:
            return False
        self._next = now + SPARSE_SECONDS
        return True


class Watch:
    """The watches of NodeDevices, DevicePolicies and Nodes. Made and used in the operator's loop.

    `ended` is called each time that they have ended, with why; they restart after another `start`. `listed` is called
    when kopf has listed a kind, at its start and after a 410: it does not say what was deleted before that.
    """

    def __init__(
        self,
        kubeconfig: str | None,
        arrived: Callable[[Kind, bool, Record], None],
        ended: Callable[[str], None],
        known: Known = lambda _kind, _name: None,
        listed: Callable[[], None] = lambda: None,
    ) -> None:
        self.running = False
        self._kubeconfig = kubeconfig
        self._arrived = arrived
        self._known = known
        self._ended = ended
        self._listed = listed
        self._home = asyncio.get_running_loop()
        self._news: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()  # for the operator's loop
        self._called = False  # the operator's loop has been called to take them
        self._why = ""  # they were ended by us
        self._wanted = threading.Event()
        self._ending = threading.Event()
        self._kopf: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        for name in ("kopf", "kopf.objects", "kopf.activities"):
            logging.getLogger(name).setLevel(logging.WARNING)  # it logs every event at INFO
        # What ended it, with tracebacks, for each of its tasks that knew; `ended` gets the same in a line.
        for name in ("kopf._core.reactor.running", "kopf._core.reactor.orchestration"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        for name in ("kopf._cogs.clients.watching", "kopf._cogs.clients.fetching"):
            logging.getLogger(name).addFilter(Sparse())

    def start(self) -> None:
        """Begin, if they are not running; every kind is there."""
        self._wanted.set()
        if self._thread.ident is None:
            self._thread.start()

    def restart(self, why: str) -> None:
        """End the present watches, if there are any."""
        running = self._kopf
        if running is not None:
            self._why = why
            loop, stop = running
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                loop.call_soon_threadsafe(stop.set)

    async def stop(self) -> None:
        """End for good; waits a little for the connections to be closed."""
        self._ending.set()
        self._wanted.set()
        self.restart("the operator is stopping")
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    @property
    def dead(self) -> bool:
        """True when the thread has ended, which it never does by itself."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def _begun(self) -> None:
        self.running = True
        log.info("watches running")

    def _over(self, why: str) -> None:
        self.running = False
        why, self._why = why or self._why, ""
        if not self._ending.is_set():
            self._ended(why)

    # --- in the thread -----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        failures = 0
        while not self._ending.is_set():
            self._wanted.wait()
            why, began = "", time.monotonic()
            try:
                asyncio.run(self._operate())
            except (Exception, asyncio.CancelledError) as error:  # whatever ended it, the watches must go on
                why = f"{type(error).__name__}: {error}"[:500]
            self._kopf = None
            self._wanted.clear()
            self._post(self._over, why)
            failures = 0 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            self._ending.wait(RESTART_BACKOFF.after(failures))

    async def _operate(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        # Of tasks that ended with the one that said why.
        loop.set_exception_handler(
            lambda _, context: log.debug(
                "error in the watch loop", said=context.get("message"), error=repr(context.get("exception"))[:500]
            )
        )
        self._kopf = (loop, stop)
        if self._ending.is_set():
            return
        try:
            roots = await kopf.spawn_tasks(
                registry=make_registry(self._deliver, self._kubeconfig),
                settings=make_settings(),
                clusterwide=True,
                standalone=True,
                identity=cast("Any", MANAGER),  # else kopf looks up the user's name, and our uid has none in the image
                stop_flag=stop,
            )
            self._post(self._begun)
            # Not kopf.run_tasks: it waits 5 s for watches that were not stopped before it says that one has ended.
            done, _ = await asyncio.wait(roots, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=END_SECONDS)
            await asyncio.sleep(CLOSE_SECONDS)

    def _deliver(self, kind: Kind, event: str | None, raw: Mapping[str, Any]) -> None:
        name = raw["metadata"]["name"]
        try:
            record = read(kind, raw, self._known(kind, name))
        except Exception:  # of this object alone
            log.exception("object cannot be read, and stays as it was known", kind=kind.name.lower(), name=name)
            return
        self._post(self._arrived, kind, event == "DELETED", record)
        if event is None:
            self._post(self._listed)

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Have the operator's loop call it, in order. It is woken once for all that has come until it looks."""
        self._news.append((callback, arguments))
        if self._called:
            return
        self._called = True
        try:
            self._home.call_soon_threadsafe(self._take_news)
        except RuntimeError:  # the operator's loop is closed: the process is ending
            self._ending.set()

    # --- in the operator's loop again --------------------------------------------------------------------------------
    def _take_news(self) -> None:
        taken = 0
        while self._news and taken < AT_ONCE:
            callback, arguments = self._news.popleft()
            callback(*arguments)
            taken += 1
        if taken:  # more is likely to come: look again, instead of being woken for each
            self._home.call_later(0.0 if self._news else GATHER_SECONDS, self._take_news)
            return
        self._called = False
        if self._news:  # it came in between, and has not called
            self._called = True
            self._home.call_soon(self._take_news)
