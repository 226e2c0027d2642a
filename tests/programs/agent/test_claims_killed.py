"""kill -9 around everything that a prepare and an unprepare do to files: no claim loses its device, no device is given
twice, and nothing is left."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nodedevices_api.sections import Injection
from nodedevices_plugin.claims.offer import ClaimOffer
from nodedevices_plugin.claims.request import NotNowError
from nodedevices_plugin.granting.answers import node_containers
from nodedevices_plugin.host.claim_files import ClaimFiles
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
from support.dra import allocated
from support.running_agent import NODE

STEPS = {"open", "os.mkdir", "os.remove", "os.rename"}  # audit events of what changes a folder
BOARD = DeviceFact(index=0, id="ACME-0", type="board", vendor="acme", device_nodes=("/dev/acme0",))


class Life:
    """What answers for claims, from its start with the files that an earlier one left."""

    def __init__(self, folder: Path) -> None:
        devices = Inventory(
            devices=(InventoryDevice(fact=BOARD, present=True, last_seen=datetime(2026, 11, 29, tzinfo=UTC)),)
        )
        ids = (SchedulableId(id=BOARD.id, device_id=BOARD.id),)
        self.folder = folder
        self.files = ClaimFiles(folder / "claims", folder / "cdi", driver=DRA_DRIVER)
        offer = ClaimOffer(RecentAllocations().granting)
        offer.restore(self.files.read())
        plan = Plan(resources=(OfferedResource(name="acme.com/board", api=Api.DRA, ids=ids),))
        offer.use(plan, devices, node_containers(devices, Injection()))
        self._claims = Claims(offer, self.files, get=self._get, pool=NODE, wait_seconds=0.0)

    def _get(self, _namespace: str, name: str) -> Mapping[str, Any]:
        return allocated(name, "board-0")

    def prepare(self, name: str) -> list[str]:
        return [each.device for each in self._claims.prepare("ml", name, f"uid-{name}")]

    def unprepare(self, name: str) -> None:
        self._claims.unprepare(f"uid-{name}")

    @property
    def left(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*") if path.is_file()}


def killed(folder: Path, at: int) -> bool:
    """Prepare a claim and unprepare it in a process that is killed before its `at`-th step; False: it had fewer."""
    pid = os.fork()
    if pid == 0:
        try:
            life, steps = Life(folder), itertools.count(1)

            def before(event: str, _arguments: object) -> None:
                if event in STEPS and next(steps) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(before)
            life.prepare("train")
            life.unprepare("train")
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("reboots", [False, True])
def test_a_prepare_that_was_killed_at_any_moment_is_prepared_again_and_leaves_nothing(
    tmp_path: Path, *, reboots: bool
) -> None:
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        if not killed(folder, at):
            break
        if reboots:
            shutil.rmtree(folder / "cdi", ignore_errors=True)
        life = Life(folder)
        assert not life.files.problem, f"killed before step {at}"
        assert life.prepare("train") == ["board-0"], f"killed before step {at}"
        with pytest.raises(NotNowError, match="prepared for the claim ml/train"):
            life.prepare("second")
        life.unprepare("train")
        assert life.prepare("second") == ["board-0"]
        life.unprepare("second")
        assert life.left == set(), f"killed before step {at}"
    assert at > 10, "both have more steps than that"


def test_an_unprepare_that_was_killed_at_any_moment_is_repeated_and_leaves_nothing(tmp_path: Path) -> None:
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        if not killed(folder, at):
            break
        life = Life(folder)
        life.unprepare("train")  # as the kubelet does for a claim whose pod has gone meanwhile
        assert life.left == set(), f"killed before step {at}"
        assert life.prepare("second") == ["board-0"], f"killed before step {at}"
