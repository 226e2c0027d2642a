"""A claim, from the kubelet's call to its answer: NodePrepareResources over a unix socket, with the record on the disk
and the CDI file, and NodeUnprepareResources. The API server's answer comes from memory: what it takes is the cluster's.

The floor is a call of the same driver that has nothing to do (an unprepare of an unknown claim), and for prepare one
durable write of a small file beside it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from nodedevices_api.sections import Injection
from nodedevices_common import logs
from nodedevices_common.files import replace
from nodedevices_plugin.claims.offer import ClaimOffer
from nodedevices_plugin.granting.answers import node_containers
from nodedevices_plugin.host.claim_files import ClaimFiles
from nodedevices_plugin.kubelet.dra.driver import DraDriver
from nodedevices_plugin.kubelet.dra.prepare import Claims
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import (
    DRA_DRIVER,
    Api,
    Inventory,
    InventoryDevice,
    OfferedResource,
    Plan,
    SchedulableId,
)
from nodedevices_probe.protocol import DeviceFact
from support.dra import DraKubelet, allocated
from support.offers import ignored
from support.running_agent import NODE

from benchmarks.table import Row, percentile

ROUNDS = 300
DEVICES = (8, 128)
PREPARE_TARGET_MS, UNPREPARE_TARGET_MS = 50.0, 100.0


def measure() -> list[Row]:
    """Milliseconds."""
    logs.configure("warning", "text")
    return [row for devices in DEVICES for row in asyncio.run(_of(devices))]


async def _of(devices: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="nd-claims-") as name:
        folder = Path(name)
        stored: dict[tuple[str, str], Mapping[str, Any]] = {}
        kubelet = DraKubelet(folder)
        claims = Claims(
            _offer(devices),
            ClaimFiles(folder / "claims", folder / "cdi", driver=DRA_DRIVER),
            get=lambda namespace, name: stored.get((namespace, name), {}),
            pool=NODE,
        )
        driver = DraDriver(
            DRA_DRIVER,
            claims,
            kubelet_dir=folder,
            kubelet_socket=folder / "kubelet.sock",
            pool=NODE,
            on_change=ignored,
            observe=ignored,
        )
        driver.want(wanted=True)
        running = asyncio.create_task(driver.run())
        await kubelet.register()
        took: dict[str, list[float]] = {"prepare": [], "unprepare": [], "nothing": [], "write": []}
        for round_ in range(ROUNDS):
            claim = allocated(f"claim-{round_}", f"board-{round_ % devices}")
            stored["ml", f"claim-{round_}"] = claim
            for what, call in (("prepare", kubelet.prepare), ("unprepare", kubelet.unprepare)):
                began = perf_counter()
                [answer] = (await call(claim)).values()
                took[what].append((perf_counter() - began) * 1000)
                if answer.error:
                    raise RuntimeError(answer.error)
            began = perf_counter()
            await kubelet.unprepare(claim)
            took["nothing"].append((perf_counter() - began) * 1000)
            began = perf_counter()
            replace(folder / "floor", b"x" * 300, durable=True)
            took["write"].append((perf_counter() - began) * 1000)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return _rows(devices, took)


def _rows(devices: int, took: Mapping[str, Sequence[float]]) -> list[Row]:
    rows = []
    for at in (50, 99):
        nothing, write = percentile(took["nothing"], at), percentile(took["write"], at)
        rows += [
            Row(
                what=f"{devices} devices, NodePrepareResources, p{at}",
                measured=percentile(took["prepare"], at),
                unit="ms",
                target=PREPARE_TARGET_MS if at == 99 else None,
                floor=nothing + write,
                floor_is="an empty call and one durable write",
            ),
            Row(
                what=f"{devices} devices, NodeUnprepareResources, p{at}",
                measured=percentile(took["unprepare"], at),
                unit="ms",
                target=UNPREPARE_TARGET_MS if at == 99 else None,
                floor=nothing,
                floor_is="an empty call",
            ),
        ]
    return rows


def _offer(devices: int) -> ClaimOffer:
    facts = [
        DeviceFact(index=index, id=f"ACME-{index}", type="board", vendor="acme", device_nodes=(f"/dev/acme{index}",))
        for index in range(devices)
    ]
    seen = datetime.now(UTC)
    inventory = Inventory(devices=tuple(InventoryDevice(fact=fact, present=True, last_seen=seen) for fact in facts))
    ids = tuple(SchedulableId(id=fact.id, device_id=fact.id) for fact in facts)
    plan = Plan(resources=(OfferedResource(name="acme.com/board", api=Api.DRA, ids=ids),))
    offer = ClaimOffer(RecentAllocations().granting)
    offer.use(plan, inventory, node_containers(inventory, Injection()))
    return offer
