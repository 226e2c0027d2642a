"""Another device plugin of the devices that DRA is to serve, as the kubelet lists its ids."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from nodedevices_plugin.dra import Dra
from nodedevices_plugin.model import (
    Api,
    HoldersState,
    Holdings,
    Inventory,
    OfferedResource,
    Plan,
    RegistrationState,
    SchedulableId,
)
from nodedevices_plugin.settings.flags import parse
from support.dra import FakeDraStore
from support.offers import ignored
from support.patience import PATIENCE_SECONDS
from support.running_agent import NODE

THEIRS = "another device plugin serves nvidia.com/gpu to this kubelet"
BY_PLUGIN = Plan()
BY_DRA = Plan(
    resources=(OfferedResource(name="nvidia.com/gpu", api=Api.DRA, ids=(SchedulableId(id="g", device_id="g"),)),)
)


class Switching:
    """A node that goes to DRA. `says`: which other plugin the kubelet's list shows, look after look; the last stays."""

    def __init__(self, folder: Path, *says: str | None) -> None:
        (folder / "plugins_registry").mkdir()
        self._says = list(says)
        self._news = asyncio.Event()
        self.looks = 0
        self.states: list[RegistrationState] = []
        self.dra = Dra(
            parse([f"--node-name={NODE}", f"--kubelet-dir={folder}"], {}),
            slices=FakeDraStore(),
            claims=FakeDraStore(),
            granting=threading.RLock(),
            holdings=lambda: Holdings(state=HoldersState.SYNCED),
            others=self._look,
            unwritable=lambda: "",
            observe=ignored,
            on_change=self._changed,
        )
        self.serve(BY_DRA)

    def serve(self, plan: Plan) -> None:
        self.dra.want(asked=True)
        self.dra.publish(plan, Inventory(), {})

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            running = [asyncio.ensure_future(run()) for run in self.dra.parts.values()]
            while not what():
                await self._news.wait()
                self._news.clear()
            for task in running:
                task.cancel()

    async def _look(self) -> str | None:
        self.looks += 1
        return self._says.pop(0) if len(self._says) > 1 else self._says[0]

    def _changed(self) -> None:
        self._news.set()
        self.states += [registration.state for registration in self.dra.registrations(BY_DRA)]


async def test_what_our_own_plugin_has_just_stopped_offering_is_no_other_plugins(tmp_path: Path) -> None:
    node = Switching(tmp_path, THEIRS, "")
    await node.until(lambda: node.dra.let_through)
    assert node.looks == 2
    assert RegistrationState.SERVED_BY_ANOTHER not in node.states
    assert node.dra.offer.refuses == ""


async def test_another_plugin_is_named_after_two_looks(tmp_path: Path) -> None:
    node = Switching(tmp_path, None, THEIRS)
    await node.until(lambda: node.dra.offer.refuses == THEIRS)
    assert node.looks == 3
    assert not node.dra.let_through


async def test_a_node_that_goes_to_dra_again_looks_again_before_anything_is_published(tmp_path: Path) -> None:
    node = Switching(tmp_path, "", THEIRS)
    await node.until(lambda: node.dra.let_through)
    node.serve(BY_PLUGIN)
    node.serve(BY_DRA)
    assert not node.dra.let_through
