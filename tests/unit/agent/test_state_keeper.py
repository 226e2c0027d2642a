"""What is known of the state file after a write."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from nodedevices_plugin.health.events import EventCursor
from nodedevices_plugin.host.state_keeper import StateKeeper
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.status.metrics import AgentMetrics
from support.patience import PATIENCE_SECONDS


async def test_a_configuration_of_another_version_is_written_back_and_not_taken_for_saved(tmp_path: Path) -> None:
    """An agent starts after a downgrade: it has not decided yet what to offer, and saves a new verdict."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    written = asyncio.Event()
    local = parse(["--node-name=n1"], {})
    keeper = StateKeeper(
        tmp_path / "state.json",
        metrics=AgentMetrics(facts=lambda: None, probes=dict),
        on_written=written.set,
        local=local,
    )
    applied = {"sections": {"sharing": {"strategy": "of-a-newer-version"}}, "resourcePrefix": "nvidia.com"}
    await keeper.keep(State(applied=applied, boot_id="boot-1"), 100.0)
    await written.wait()
    await asyncio.sleep(0)
    assert not failures
    assert (keeper.saved, keeper.problem) == (None, None)
    assert keeper.load().applied == applied
    assert keeper.lost is not None
    assert keeper.lost.startswith("at start: applied: ")
    assert keeper.lost.endswith("; kept as state.json.unreadable")


async def test_at_the_end_what_waits_for_its_time_is_saved(tmp_path: Path) -> None:
    written = asyncio.Event()
    keeper = StateKeeper(
        tmp_path / "state.json",
        metrics=AgentMetrics(facts=lambda: None, probes=dict),
        on_written=written.set,
        local=parse(["--node-name=n1"], {}),
    )
    await keeper.keep(State(boot_id="boot-1"), 100.0)
    later = State(boot_id="boot-1", cursors={"nvml": EventCursor("process", 7)})
    assert await keeper.keep(later, 101.0) is not None, "it is not urgent"
    assert keeper.load().cursors == {}
    await keeper.end(later)
    assert keeper.load() == later


async def test_a_fault_waits_for_the_write_before_its_own_and_then_for_its_own(tmp_path: Path) -> None:
    keeper = StateKeeper(
        tmp_path / "state.json",
        metrics=AgentMetrics(facts=lambda: None, probes=dict),
        on_written=lambda: None,
        local=parse(["--node-name=n1"], {}),
        first_seconds=PATIENCE_SECONDS,
    )
    slow = threading.Event()
    keeper.worker.submit(slow.wait)
    async with asyncio.TaskGroup() as kept:
        kept.create_task(keeper.keep(State(boot_id="boot-1"), 100.0))
        await asyncio.sleep(0)
        fault = kept.create_task(keeper.keep(State(boot_id="boot-2"), 100.1))
        await asyncio.sleep(0)
        assert not fault.done()
        slow.set()
    assert keeper.load().boot_id == "boot-2"


async def test_a_disk_that_hangs_does_not_keep_the_agent_from_its_end(tmp_path: Path) -> None:
    keeper = StateKeeper(
        tmp_path / "state.json",
        metrics=AgentMetrics(facts=lambda: None, probes=dict),
        on_written=lambda: None,
        local=parse(["--node-name=n1"], {}),
    )
    released = threading.Event()
    keeper.worker.submit(released.wait)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await keeper.end(State(boot_id="boot-1"))
    released.set()
