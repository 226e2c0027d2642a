"""Before a container is allocated and before it starts: what waits for what is not known, and what is written down."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_api.sections import Injection
from nodedevices_common.pod_requests import Demand
from nodedevices_plugin.cores.book import CoreBook
from nodedevices_plugin.cores.ids import key
from nodedevices_plugin.cores.ledger import Owner, Recorded
from nodedevices_plugin.granting.answers import Answers, node_containers
from nodedevices_plugin.host.cores import KEPT_SECONDS, AllocationFiles, AllocationFilesError, CoreGate, recorded
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import (
    AllocationError,
    Grant,
    Holder,
    HoldersState,
    Holdings,
    NodePod,
    NodePods,
    Plan,
    PodContainer,
)
from nodedevices_plugin.runtime.threads import Worker
from support.cases import cases
from support.cores import MEMORY, offered
from support.facts import GIB, START, gpu, gpu_id, inventory_of
from support.patience import PATIENCE_SECONDS

AWAY = Holdings(state=HoldersState.UNAVAILABLE, message="PodResources does not answer: refused")


class Gated:
    """An agent's parts around one book. `listing`: what PodResources says when it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: Collection[str] | None = set()
        self.clock = 100.0
        self.asked = 0
        self.listing = AWAY
        self.starts()

    def starts(self) -> None:
        self.book = CoreBook(clock=lambda: self.clock)
        self.answers = Answers(self.book, recent=RecentAllocations(), allocations=str(self.folder))
        gpus = inventory_of(gpu(0, memory_bytes=8 * GIB), gpu(1, memory_bytes=8 * GIB))
        self.answers.use(Plan(resources=(offered(8, 8),)), gpus, node_containers(gpus, Injection()))
        self.files = AllocationFiles(
            self.folder, worker=Worker("test"), held=lambda: self.held, clock=lambda: self.clock
        )
        self.gate = self.gated()

    def gated(self, *, known_seconds: float = PATIENCE_SECONDS) -> CoreGate:
        return CoreGate(
            self.book, holdings=self.lists, write=self.files.write, seen_seconds=0.05, known_seconds=known_seconds
        )

    async def lists(self) -> Holdings:
        self.asked += 1
        return self.listing

    def pods(self, **cores: str | None) -> None:
        """Pods with one container that requests 2 shares."""
        self.clock += 1
        self.book.observe_pods(
            NodePods(
                pods=tuple(
                    NodePod(
                        uid=f"uid-{name}",
                        namespace="ml",
                        name=name,
                        containers=(PodContainer(name="main", requests={MEMORY: 2}, cores=text),),
                        seen=self.clock,
                    )
                    for name, text in cores.items()
                )
            )
        )
        self.gate.pods_changed()

    def granted(self) -> Grant:
        """The kubelet allocates two shares of the first GPU; all are free."""
        self.answers.prefer(MEMORY, [each.id for each in offered(8, 8).ids], (), 2)
        return self.answers.grant(MEMORY, IDS)

    def shows(self, pod: str, ids: tuple[str, ...]) -> None:
        """PodResources has it from now on."""
        self.clock += 1
        holder = Holder(namespace="ml", pod=pod, container="main", resource=MEMORY, ids=ids, since=START)
        self.listing = Holdings(state=HoldersState.SYNCED, holders=(holder,), taken=self.clock)

    async def runs(self) -> None:
        """Pod a was allocated two shares and 30 percent, and starts."""
        self.pods(a="30")
        self.granted()
        self.shows("a", IDS)
        await self.gate.before_start(MEMORY, IDS)

    def allocation(self, ids: tuple[str, ...]) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / key(ids) / "allocation.json").read_text())
        return content


@pytest.fixture
def agent(tmp_path: Path) -> Gated:
    return Gated(tmp_path / "allocations")


IDS = (f"{gpu_id(0)}::1Gi.0", f"{gpu_id(0)}::1Gi.1")


# --- before an allocation ---------------------------------------------------------------------------------------------
def test_an_allocation_waits_for_the_pod_that_it_could_be_for(agent: Gated) -> None:
    agent.gate = CoreGate(agent.book, holdings=agent.lists, write=agent.files.write, seen_seconds=PATIENCE_SECONDS)
    waiting = threading.Thread(target=agent.gate.ready, args=(MEMORY, 2))
    waiting.start()
    agent.pods(a="30")
    waiting.join(PATIENCE_SECONDS / 2)
    assert not waiting.is_alive()


async def test_no_allocation_waits_for_ever_or_for_other_resources(agent: Gated) -> None:
    agent.gate.ready(MEMORY, 2)
    assert not agent.book.knows(MEMORY, 2)
    agent.gate.ready("nvidia.com/gpu", 1)
    await agent.gate.before_start("nvidia.com/gpu", ("GPU-0",))
    assert agent.asked == 0
    assert not agent.folder.exists()


# --- what a container gets --------------------------------------------------------------------------------------------
def test_a_container_gets_its_percentage_where_it_is_certain_and_always_the_folder(agent: Gated) -> None:
    agent.pods(a="30", b="30")
    edits = agent.answers.edits(agent.granted())
    assert edits.envs["NODEDEVICES_CORES"] == "30"
    [mount] = edits.mounts
    assert (mount.container_path, mount.read_only) == ("/etc/nodedevices", True)
    assert mount.host_path == str(agent.folder / key(IDS))


# --- before a start ---------------------------------------------------------------------------------------------------
async def test_before_a_container_starts_its_own_share_is_written_into_its_folder(agent: Gated) -> None:
    agent.pods(a="30", b="60")
    agent.granted()
    agent.shows("b", IDS)
    await agent.gate.before_start(MEMORY, IDS)
    found = agent.allocation(IDS)
    assert found | {"ids": [], "booked": {}} == {
        "version": 1,
        "resource": MEMORY,
        "device": gpu_id(0),
        "units": 2,
        "memoryMiB": 2048,
        "memoryTotalMiB": 8192,
        "cores": 60,
        "namespace": "ml",
        "pod": "b",
        "podUid": "uid-b",
        "container": "main",
        "booked": {},
        "ids": [],
    }
    path = agent.folder / key(IDS)
    assert (path.stat().st_mode & 0o777, (path / "allocation.json").stat().st_mode & 0o777) == (0o755, 0o644)


async def test_one_that_could_need_more_than_is_booked_does_not_start_before_its_pod_is_known(agent: Gated) -> None:
    agent.pods(a="30", b="60")
    agent.granted()
    with pytest.raises(AllocationError, match="not known which pod these shares are for"):
        await agent.gated(known_seconds=0.3).before_start(MEMORY, IDS)
    assert agent.asked > 0
    agent.shows("a", IDS)
    await agent.gate.before_start(MEMORY, IDS)
    assert agent.allocation(IDS)["cores"] == 30


async def test_one_that_all_of_a_gpu_is_booked_for_starts_and_is_told_its_share_later(agent: Gated) -> None:
    agent.granted()  # of a pod that has not been seen
    agent.shows("late", IDS)
    await agent.gated(known_seconds=0.3).before_start(MEMORY, IDS)
    assert (agent.allocation(IDS)["cores"], agent.allocation(IDS)["memoryMiB"]) == (None, 2048)
    agent.pods(late="20")
    agent.files.keep(agent.book.allocated())
    await agent.files.update()
    assert agent.allocation(IDS)["cores"] == 20


async def test_a_start_again_asks_nobody(agent: Gated) -> None:
    await agent.runs()
    agent.listing, agent.asked = AWAY, 0
    await agent.gate.before_start(MEMORY, IDS)
    assert agent.asked == 0


async def test_nor_after_a_start_of_the_agent_while_podresources_does_not_answer(agent: Gated) -> None:
    await agent.runs()
    agent.listing = AWAY
    agent.starts()
    agent.book.remember(await agent.files.read())
    agent.pods(a="90")  # edited meanwhile
    await agent.gate.before_start(MEMORY, IDS)
    assert agent.allocation(IDS)["cores"] == 30


async def test_a_list_that_hangs_holds_up_no_start_for_longer_than_the_limit(agent: Gated) -> None:
    async def hangs() -> Holdings:
        await asyncio.Event().wait()
        raise AssertionError

    agent.pods(a="30", b="60")
    agent.granted()
    gate = CoreGate(agent.book, holdings=hangs, write=agent.files.write, known_seconds=0.05)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(AllocationError, match="not known which pod these shares are for"):
            await gate.before_start(MEMORY, IDS)


async def test_a_folder_that_cannot_be_written_keeps_a_container_from_a_start_with_anothers_share(agent: Gated) -> None:
    agent.folder.write_text("in the way")
    agent.pods(a="30")
    agent.granted()
    agent.shows("a", IDS)
    with pytest.raises(AllocationError, match=r"write .*allocations.*; the kubelet tries again"):
        await agent.gate.before_start(MEMORY, IDS)


# --- the files --------------------------------------------------------------------------------------------------------
async def test_a_folder_goes_ten_minutes_after_its_ids_were_last_held(agent: Gated) -> None:
    await agent.runs()
    agent.held = {key(IDS)}
    await agent.files.sweep()
    agent.held = set()
    agent.clock += KEPT_SECONDS
    await agent.files.sweep()
    assert (agent.folder / key(IDS)).exists()
    agent.held = None  # nobody knows
    agent.clock += KEPT_SECONDS
    await agent.files.sweep()
    assert (agent.folder / key(IDS)).exists()
    agent.held = set()
    await agent.files.sweep()
    assert not (agent.folder / key(IDS)).exists()


@cases(
    "content",
    "",
    "{",
    "[]",
    '"x"',
    "{}",
    '{"ids": ["a"], "podUid": "u", "container": "c", "booked": null}',
    '{"ids": ["a"], "podUid": "u", "container": "c", "booked": {"percent": -1, "units": 0}}',
    '{"ids": ["a"], "podUid": "u", "container": "c", "booked": {"percent": true, "units": 0}}',
    '{"ids": "a", "podUid": 7, "container": "c", "booked": {"percent": 1, "units": 0}}',
    "[" * 100_000,
)
def test_what_is_no_record_is_nobodys(content: str) -> None:
    assert recorded(content) is None


async def test_what_is_read_at_a_start_is_what_was_written(agent: Gated) -> None:
    (agent.folder / "odd" / "allocation.json").mkdir(parents=True)
    (agent.folder / "more").write_text("")
    await agent.runs()
    agent.starts()
    of = Recorded(owner=Owner("uid-a", "ml", "a", "main"), demand=Demand(percent=30))
    assert await agent.files.read() == {frozenset(IDS): of}


@pytest.mark.parametrize("before", ["listed", "removed"])
async def test_what_is_written_for_a_container_stays_while_its_ids_are_swept(agent: Gated, before: str) -> None:
    """An earlier container had the same ids. `before`: what the sweep does next when the new one comes."""
    await agent.runs()
    [allocated] = agent.book.allocated()
    agent.held = frozenset()
    await agent.files.sweep()
    agent.clock += KEPT_SECONDS + 1
    going, go = threading.Event(), threading.Event()

    def waits() -> None:
        going.set()
        go.wait()

    agent.files._worker.submit(waits)
    sweeping = asyncio.create_task(agent.files.sweep())
    await asyncio.to_thread(going.wait)
    if before == "listed":
        await asyncio.sleep(0)
        agent.held = frozenset({key(IDS)})
        go.set()
        await agent.files.write(allocated)
    else:
        go.set()
        await sweeping
        agent.held = frozenset({key(IDS)})
        await agent.files.write(allocated)
    await sweeping
    assert (agent.folder / key(IDS) / "allocation.json").exists()


async def test_a_write_that_fails_leaves_no_file_of_another_container(agent: Gated) -> None:
    await agent.runs()
    [allocated] = agent.book.allocated()
    (agent.folder / key(IDS) / ".allocation.json.new").mkdir()  # in the way of the new content
    with pytest.raises(AllocationFilesError):
        await agent.files.write(replace(allocated, cores=99))
    assert not (agent.folder / key(IDS) / "allocation.json").exists()
