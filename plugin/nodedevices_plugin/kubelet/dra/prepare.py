"""Prepares and unprepares claims for the kubelet. Called in threads; the prepares of one claim wait for each other.

The order of a prepare: the claim is read from the API server, its devices are entered under the lock under which
Allocate grants, then the record is written, then the CDI file, then the kubelet has its answer. A failure on the way
undoes the entry. A kubelet tries a failed prepare again after 60 to 90 seconds only (kubernetes/kubernetes#139836), so
what may come by itself (an API server's answer, the first plan after a restart, a device that comes back, a disk that
is full) is waited for, within the 45 seconds that the kubelet waits.

An unprepare waits for no such prepare, whose pod has gone: a pod that comes while a claim is unprepared waits as long.
The prepare ends then, and enters nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

import structlog
from nodedevices_common.errors import OperationError

from nodedevices_plugin.claims import cdi_file
from nodedevices_plugin.claims.devices import Prepare
from nodedevices_plugin.claims.records import (
    SHOWN,
    Claim,
    ClaimError,
    NotNowError,
    Prepared,
    Record,
    RecordError,
    file_name,
    read_claim,
)
from nodedevices_plugin.model import ContainerEdits

WAIT_SECONDS = 35.0  # the kubelet gives up after 45
AGAIN_SECONDS = 0.25
READ_AGAIN_SECONDS = 5.0  # a claim that waits may be deallocated meanwhile

log = structlog.get_logger(__name__)


class ClaimNotReadError(OperationError):
    """The API server has not answered what a claim is; the text says why."""


class Offer(Protocol):
    """What claims are answered from (claims.offer)."""

    driver: str

    @property
    def records(self) -> Mapping[str, Record]: ...

    def prepare(self, claim: Claim) -> Prepare:
        """Give the claim its devices. Raises ClaimError."""
        ...

    def undo(self, decided: Prepare) -> None: ...
    def release(self, uid: str) -> None: ...

    def edits(self, record: Record) -> Mapping[str, ContainerEdits]:
        """Return what a container needs for each request. Raises ClaimError."""
        ...


class Files(Protocol):
    """The files of prepared claims (host.claim_files). Both may raise OperationError."""

    def write(self, record: Record, document: Mapping[str, Any] | None) -> None: ...
    def remove(self, uid: str) -> None: ...


Granted = tuple[Prepared, tuple[str, ...]]
"""A device of a claim, and, on a request's first device, the CDI names of what the request needs."""


class Claims:
    """The claims of this node. `get`: reads a claim by namespace and name; {} where there is none, and raises
    ClaimNotReadError. `pool`: of this node. `on_change`: called in the thread, after what claims have has changed."""

    def __init__(
        self,
        offer: Offer,
        files: Files,
        *,
        get: Callable[[str, str], Mapping[str, Any]],
        pool: str,
        on_change: Callable[[], None] = lambda: None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._offer = offer
        self._files = files
        self._get = get
        self._pool = pool
        self._on_change = on_change
        self._wait_seconds = wait_seconds
        self._of_claims: WeakValueDictionary[str, _Locks] = WeakValueDictionary()
        self._locks = threading.Lock()

    def prepare(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        until: float | None = None,
        called: Callable[[], bool] = lambda: True,
    ) -> tuple[Granted, ...]:
        """Raises ClaimError, whose text reaches the pod's Events, and OperationError. `until`: when what may come is no
        longer waited for (time.monotonic()): one time for all claims of a call. `called`: False: the kubelet does not
        wait for the answer any more."""
        file_name(uid)  # refused before it becomes a path
        of_claim = self._locks_of(uid)  # alive as long as somebody has it
        unprepared = of_claim.unprepared
        with of_claim.prepares:
            until = self.deadline() if until is None else until
            claim: Claim | None = None
            read_at, waits = 0.0, False
            while True:
                try:
                    if claim is None or time.monotonic() - read_at > READ_AGAIN_SECONDS:
                        claim, read_at = self._read(namespace, name, uid), time.monotonic()
                    with of_claim.changes:
                        if of_claim.unprepared != unprepared:
                            raise ClaimError("the claim was unprepared meanwhile")
                        return self._prepare(claim)
                except (NotNowError, OperationError) as error:
                    if not called() or time.monotonic() + AGAIN_SECONDS > until:
                        raise
                    if not waits:
                        log.info("claim waits", claim=f"{namespace}/{name}"[:SHOWN], uid=uid, why=str(error))
                    waits = True
                time.sleep(AGAIN_SECONDS)

    def deadline(self) -> float:
        """Return until when a call that begins now may wait (time.monotonic())."""
        return time.monotonic() + self._wait_seconds

    def unprepare(self, uid: str, *, record: Record | None = None) -> None:
        """Release what the claim has; nothing where it has nothing. `record`: only while it has just this. Raises
        OperationError."""
        try:
            file_name(uid)
        except RecordError:
            return  # such a claim was never prepared
        of_claim = self._locks_of(uid)
        with of_claim.changes:
            if record is not None and self._offer.records.get(uid) is not record:
                return
            of_claim.unprepared += 1
            self._files.remove(uid)
            if uid in self._offer.records:
                self._offer.release(uid)
                log.info("claim unprepared", uid=uid)
                self._on_change()

    def _read(self, namespace: str, name: str, uid: str) -> Claim:
        found = self._get(namespace, name)
        if not found:
            raise ClaimError(f"there is no ResourceClaim {namespace}/{name} (any more): delete the pod")
        return read_claim(found, uid=uid, driver=self._offer.driver, pool=self._pool)

    def _prepare(self, claim: Claim) -> tuple[Granted, ...]:
        decided = self._offer.prepare(claim)
        try:
            edits = self._offer.edits(decided.record)
            spec = cdi_file.specification(claim.uid, self._offer.driver, edits)
            self._files.write(decided.record, spec.document)
        except BaseException:
            self._undo(decided)
            raise
        if decided.is_new:
            devices = [entry.part_id for entry in decided.record.prepared]
            log.info("claim prepared", claim=str(claim), uid=claim.uid, devices=devices)
            self._on_change()
        cdi_ids = dict(spec.names)  # of a request, until its first device has them
        return tuple((entry, cdi_ids.pop(entry.result.request, ())) for entry in decided.record.prepared)

    def _undo(self, decided: Prepare) -> None:
        if not decided.is_new:
            return  # a pod may have it already
        try:
            self._files.remove(decided.record.uid)
        except OperationError as error:
            log.warning("files of a claim that was not prepared stay", error=str(error))
            return  # and so does the entry: what a record says, a restart would believe
        self._offer.undo(decided)

    def _locks_of(self, uid: str) -> _Locks:
        with self._locks:
            return self._of_claims.setdefault(uid, _Locks())


class _Locks:
    """The locks of one claim. `prepares` is held while a prepare waits, `changes` only while record and files change,
    after it. `unprepared`: how often that was."""

    def __init__(self) -> None:
        self.prepares = threading.Lock()
        self.changes = threading.Lock()
        self.unprepared = 0
