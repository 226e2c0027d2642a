"""Dynamic Resource Allocation on this node: the driver, its claims and their files, and the ResourceSlices, as one part
of the agent.

Nothing runs until a configuration asks for `serving.api: DRA`, or a claim is left of one that did. The driver stays
registered while a claim is prepared, so that its pod can end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from nodedevices_common.errors import OperationError
from nodedevices_common.periodic import within
from nodedevices_kube.errors import ApiError

from nodedevices_plugin.claims.devices import ended
from nodedevices_plugin.claims.offer import ClaimOffer
from nodedevices_plugin.claims.records import DraFacts, Record
from nodedevices_plugin.claims.slices import pool_health, publish
from nodedevices_plugin.host.claim_files import ClaimFiles
from nodedevices_plugin.kubelet.dra.driver import DraDriver
from nodedevices_plugin.kubelet.dra.prepare import ClaimNotReadError, Claims
from nodedevices_plugin.model import (
    DRA_DRIVER,
    Api,
    CallObserver,
    DraCounters,
    HoldersState,
    Holdings,
    Inventory,
    Plan,
    Registration,
    RegistrationState,
    Verdict,
)
from nodedevices_plugin.runtime.threads import Worker, tell
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.status.client import KubeStore, Object
from nodedevices_plugin.status.slices import SlicePublisher

GET_SECONDS = 5.0
SWEEP_SECONDS = 60.0
SWEEPS = 10
BESIDE_SECONDS = 5.0  # between two looks for another plugin; the kubelet bounds such calls
AGAIN_SECONDS = 1.0  # while one is there, or it is not known
READ_AGAIN_SECONDS = 5.0
FIRST_LIST_SECONDS = 10.0  # for as long an agent that starts waits for the kubelet's List before it empties slices
DROPPED = (
    "left out: this API server drops its taint or how it is shared (feature gates DRADeviceTaints and "
    "DRAConsumableCapacity, on by default from Kubernetes 1.36)"
)

log = structlog.get_logger(__name__)


class Dra:
    """`offer`: what claims are answered from. `on_change` is called on the loop when `facts` may be others. `granting`:
    the lock under which ids are granted. `others`: says which device plugin of others serves devices that DRA is to
    serve; "" none, None: not known. While one does, or that is not known yet, nothing is published. `unwritable`: why
    no CDI file can be written; empty: no obstacle is known."""

    def __init__(
        self,
        local: Local,
        *,
        slices: KubeStore | None,
        claims: KubeStore | None,
        granting: AbstractContextManager[object],
        holdings: Callable[[], Holdings],
        others: Callable[[], Awaitable[str | None]],
        unwritable: Callable[[], str],
        observe: CallObserver,
        on_change: Callable[[], None],
    ) -> None:
        self._local = local
        self._reader = claims
        self._holdings = holdings
        self._others = others
        self._unwritable = unwritable
        self._beside: str | None = None  # as `others` said last
        self._began = time.monotonic()
        self._serves = asyncio.Event()
        self._begins = asyncio.Event()  # to serve
        self._on_change = on_change
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker = Worker("claims")
        self._wanted = asyncio.Event()
        self._asked = False
        self._unsaid: Mapping[str, tuple[str, ...]] = {}
        self._published: tuple[object, ...] = ()
        self.offer = ClaimOffer(granting)
        self._files = ClaimFiles(Path(local.claims_dir), Path(local.cdi_dir), driver=DRA_DRIVER)
        self._claims = Claims(
            self.offer,
            self._files,
            get=self._get,
            pool=local.node_name,
            on_change=lambda: tell(self._loop, on_change),
        )
        self._driver = DraDriver(
            DRA_DRIVER,
            self._claims,
            kubelet_dir=Path(local.kubelet_dir),
            kubelet_socket=Path(local.kubelet_socket),
            pool=local.node_name,
            on_change=on_change,
            observe=observe,
        )
        self.slices = SlicePublisher(
            slices, node=local.node_name, driver=DRA_DRIVER, on_change=on_change, may_add=self._may_add
        )

    async def first(self) -> None:
        """Read the records of an earlier run, before the first plan: until it is known what claims have, nothing may
        be offered."""
        self._loop = asyncio.get_running_loop()
        while True:
            try:
                self.offer.restore(await self._worker.run(self._files.read))
            except OperationError as error:
                log.exception("records of prepared claims not read; nothing is offered until they are")
                self._files.problem = str(error)
                await asyncio.sleep(READ_AGAIN_SECONDS)
            else:
                return

    @property
    def facts(self) -> DraFacts:
        if not self._asked:
            return DraFacts(records=self.offer.records, waits_for="the node has just been asked")
        return DraFacts(
            records=self.offer.records,
            released=self.offer.released(self._holdings().taken),
            in_slices=self.slices.devices,
            unsaid={**self._unsaid, **dict.fromkeys(sorted(self.slices.left_out), (DROPPED,))},
            unavailable=self._unavailable(),
            waits_for=self._waits_for(),
        )

    @property
    def records_problem(self) -> str:
        """Why a record of a prepared claim is not understood; empty: all are."""
        return "; ".join(
            filter(None, (self._files.problem, *(record.problem for record in self.offer.records.values())))
        )

    @property
    def problem(self) -> str:
        """Why claims or slices are not as they should be; empty: they are."""
        slices = self.slices.problem if self._wanted.is_set() else ""
        return "; ".join(filter(None, (self._driver.problem, slices)))

    @property
    def counters(self) -> DraCounters | None:
        """None: no configuration has asked for DRA, and no claim is left of one that did."""
        if not self._wanted.is_set():
            return None
        return DraCounters(driver=DRA_DRIVER, prepared=len(self.offer.records), slice_writes=self.slices.written)

    def _unavailable(self) -> str:
        registry = Path(self._local.kubelet_dir) / "plugins_registry"
        if self._reader is None:
            return "ResourceSlices need the API server, and this agent runs without one"
        if self.slices.refused:
            return f"{self.slices.problem}; DRA needs Kubernetes 1.34 or later, and the component dra"
        if not registry.is_dir():
            return f"the folder {registry} is not mounted; install the component dra"
        if why := self._unwritable():
            return f"cannot write {why}; install the component cdi"
        return ""

    def _waits_for(self) -> str:
        if not self._driver.registered:
            return self._driver.problem or f"the kubelet has not registered the driver {DRA_DRIVER} yet"
        if not self.slices.listed:
            return self.slices.problem or "the ResourceSlices are not listed yet"
        return ""

    def want(self, *, asked: bool) -> None:
        """`asked`: a configuration, in effect or wanted, has serving.api DRA. What claims have, or may be allocated,
        keeps the driver: without it their pods neither start nor end."""
        still = bool(self.offer.records) or bool(self.slices.devices)
        asked = asked or still
        wanted = still or (asked and not self._unavailable())
        if asked is not self._asked:
            self._asked = asked
            self._on_change()
        self._driver.want(wanted=wanted)
        if wanted:
            self._wanted.set()

    def publish(self, plan: Plan, inventory: Inventory, verdicts: Mapping[str, Verdict]) -> None:
        """Have the node's slices offer this plan's DRA resources; after the device plugin's list was sent."""
        if not self._wanted.is_set():
            return
        resources = plan.by(Api.DRA).resources
        if not resources:
            self._serves.clear()
        elif not self._serves.is_set():
            self._beside = None
            self._serves.set()
            self._begins.set()
        if not self._holdings().were_known and time.monotonic() < self._began + FIRST_LIST_SECONDS:
            return  # everything may be held, and is withheld: what the slices of an earlier run have stays
        given = (resources, inventory, verdicts, self.offer.records, self._may_add(), self._beside)
        if all(now is before for now, before in zip(given, self._published, strict=False)) and self._published:
            return
        self._published = given
        published = publish(resources, inventory, verdicts, driver=DRA_DRIVER)
        self._driver.health.show(pool_health(resources, self.offer.records.values(), inventory, verdicts))
        if published.unsaid != self._unsaid:
            self._unsaid = published.unsaid
            self._on_change()
        devices = published.devices if resources else None
        self.slices.want(() if self._beside else devices)

    def _may_add(self) -> bool:
        return self._driver.registered and self._beside == ""

    @property
    def let_through(self) -> bool:
        """True when no other plugin serves what DRA is to serve."""
        return self._beside == ""

    def registrations(self, plan: Plan | None) -> tuple[Registration, ...]:
        """Return the state of each resource that DRA serves, as those of the device plugin API have one."""
        if self._beside:
            state = RegistrationState.SERVED_BY_ANOTHER
        elif self._driver.registered and self._beside is not None and not self.slices.problem:
            state = RegistrationState.REGISTERED
        else:
            state = RegistrationState.REJECTED if self._driver.refused else RegistrationState.PENDING
        why = (
            self._beside
            or self.problem
            or ("" if state is RegistrationState.REGISTERED else self._unavailable() or self._waits_for())
        )
        return tuple(
            Registration(resource=resource.name, state=state, message=why)
            for resource in (plan.by(Api.DRA).resources if plan is not None else ())
        )

    @property
    def parts(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Background tasks for the agent to run, by name."""
        return {
            "dra-driver": self._driver.run,
            "resource-slices": self._publish,
            "dra-beside": self._look_beside,
            "dra-claims": self._sweep,
        }

    async def _publish(self) -> None:
        await self._wanted.wait()
        await self.slices.run()

    async def _look_beside(self) -> None:
        """Another device plugin may come with the same devices, or be there already. At first it is another one only if
        two looks say so: for a moment the kubelet lists what our own plugin has just stopped offering."""
        doubted = False
        while True:
            await self._serves.wait()
            if self._begins.is_set():
                self._begins.clear()
                doubted = False
            said = await self._others()
            doubted = bool(said) and self._beside is None and not doubted
            if said is not None and said != self._beside and not doubted:
                if said:
                    log.warning("another device plugin serves what DRA is to serve", what=said)
                self._beside = self.offer.refuses = said
                self._on_change()
            await within(AGAIN_SECONDS if self._beside != "" else BESIDE_SECONDS, self._begins.wait())

    async def _sweep(self) -> None:
        """Release claims that the kubelet never unprepares: its record was lost, or they were deleted by force. A pod
        that was deleted by force may still run, so a claim is released only after `SWEEPS` looks in a row."""
        over: dict[str, int] = {}
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            before, over = over, {}
            for record in tuple(self.offer.records.values()):
                if await self._has_ended(record):
                    over[record.uid] = before.get(record.uid, 0) + 1
                if over.get(record.uid, 0) >= SWEEPS:
                    log.warning("claim has ended without an unprepare", uid=record.uid, name=record.name)
                    with suppress(OperationError):
                        await self._worker.run(partial(self._claims.unprepare, record.uid, record=record))

    async def _has_ended(self, record: Record) -> bool:
        shown = _shown(self._holdings())
        if self._reader is None or shown is None or not record.name or (record.namespace, record.name) in shown:
            return False  # the API server need not be asked
        answer: Object | None = None
        with suppress(ApiError):
            answer = await self._reader.claim(record.namespace, record.name)
        return ended(record, shown, answer, driver=DRA_DRIVER, pool=self._local.node_name)

    def _get(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Called in a thread of the kubelet's call."""
        if self._reader is None or self._loop is None:
            raise ClaimNotReadError("this agent runs without an API server")
        answer = asyncio.run_coroutine_threadsafe(self._reader.claim(namespace, name), self._loop)
        try:
            return answer.result(GET_SECONDS)
        except TimeoutError as error:
            answer.cancel()
            what = f"read ResourceClaim {namespace}/{name}: no answer in {GET_SECONDS:g} s"
            raise ClaimNotReadError(what) from error
        except ApiError as error:
            raise ClaimNotReadError(str(error)) from error


def _shown(holdings: Holdings) -> frozenset[tuple[str, str]] | None:
    """Return namespace and name of the claims in a complete List; None: there is none."""
    if holdings.state is not HoldersState.SYNCED:
        return None
    split = (holder.claim.partition("/") for holder in holdings.holders if holder.claim)
    return frozenset((namespace, name) for namespace, _, name in split)


def merged(plugin: tuple[Registration, ...], dra: tuple[Registration, ...]) -> tuple[Registration, ...]:
    """Return one registration a name, where both APIs have it: DRA's, since the other one only waits for its pods."""
    names = {registration.resource for registration in dra}
    every = (*dra, *(registration for registration in plugin if registration.resource not in names))
    return tuple(sorted(every, key=lambda registration: registration.resource))
