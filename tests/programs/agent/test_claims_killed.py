"""kill -9 around everything that a prepare and an unprepare do to files, and a disk that is full at any byte of them.

No claim loses its device, no device is given twice, and nothing is left.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from nodedevices_api.sections import Injection
from nodedevices_common.errors import OperationError
from nodedevices_plugin.claims.offer import ClaimOffer
from nodedevices_plugin.claims.records import NotNowError
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
        return [entry.result.device for entry, _ in self._claims.prepare("ml", name, f"uid-{name}")]

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


REFUSED, PREPARED, WRONG = range(3)


def on_a_disk_with(room: int, folder: Path) -> int:
    """Prepare a claim in a process whose files have at most so many bytes, and another one once there is room again."""
    pid = os.fork()
    if pid == 0:
        outcome = WRONG
        try:
            structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # pytest reads a log from a file
            life, (_, most) = Life(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
            try:
                life.prepare("train")
                outcome = PREPARED
            except OperationError as error:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
                named = "uid-train.json: File too large" in str(error)
                if named and not life.left and life.prepare("second") == ["board-0"]:
                    outcome = REFUSED
        finally:
            os._exit(outcome)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_on_a_full_disk_a_prepare_is_refused_leaves_nothing_and_works_once_there_is_room(tmp_path: Path) -> None:
    outcomes = []
    for room in range(0, 4000, 25):
        folder = tmp_path / str(room)
        folder.mkdir()
        outcomes.append(on_a_disk_with(room, folder))
        if outcomes[-1] == PREPARED:
            break
    assert outcomes == [REFUSED] * (len(outcomes) - 1) + [PREPARED]
    assert len(outcomes) > 10
