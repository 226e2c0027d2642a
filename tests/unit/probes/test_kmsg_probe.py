"""The probe of the kernel's log: what is new at each look, how old it may be, and what it says when it cannot read."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest
from nodedevices_probe import kmsg as kinds
from nodedevices_probe.kmsg.probe import (
    BOOTED_SECONDS,
    LOST_SHOWN_SECONDS,
    MAX_LINES,
    SIZES,
    Follower,
    KernelLogSource,
    file_tail,
)
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import Driver, DriverState
from support.clock import Clock
from support.facts import START
from support.sources import line_of

STALLED = "mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"
DAY = 86_400.0


class Log:
    """The kernel's log: the newest lines, as many as its ring holds."""

    def __init__(self, ring: int = 1 << 20) -> None:
        self.lines = b""
        self.ring = ring
        self.refuses = 0

    def write(self, text: str, at: float, priority: int = 3) -> Log:
        self.lines += f"<{priority}>[{at:12.6f}] {text}\n".encode()
        return self

    def tail(self, size: int) -> bytes:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        kept = self.lines[-min(size, self.ring) :]
        return kept if len(kept) == len(self.lines) else kept[kept.find(b"\n") + 1 :]


class Probe:
    def __init__(self, log: Log, uptime: float = DAY) -> None:
        self.clock = Clock(uptime)
        self.source = KernelLogSource(
            system=System(Path("/nonexistent")),
            follower=Follower(log.tail),
            monotonic=lambda: self.clock.now,
            wall=lambda: START + timedelta(seconds=self.clock.now),
        )

    def events(self) -> list[tuple[str, int]]:
        """Kind and count of the events that a look finds."""
        before = self.source.events.newest()
        self.source.poll()
        return [(each.kind, each.count) for each in self.source.events.for_line() if each.sequence > before]

    @property
    def problems(self) -> list[str]:
        return [each.code for each in self.source.poll().problems]


def test_it_has_no_devices_and_its_line_is_one_that_the_agent_reads() -> None:
    log = Log().write(STALLED, DAY - 1)
    line = line_of(Probe(log).source)
    [event] = line.events
    assert (line.probe, line.devices, line.accelerators_on_bus, line.problems) == ("kmsg", (), 0, ())
    assert (event.kind, event.device_id, event.pci_bus_id) == (kinds.MLX5_STALLED, None, "0000:d2:00.0")
    assert line.driver == Driver(state=DriverState.LOADED), "none that a node's drivers are to name"


def test_a_new_line_is_an_event_once_and_what_came_after_a_repair_stands_behind_it() -> None:
    log = Log().write("nothing", DAY)
    probe = Probe(log)
    assert probe.events() == []
    log.write(STALLED, DAY + 1).write("nothing", DAY + 2)
    assert probe.events() == [(kinds.MLX5_STALLED, 1)]
    assert probe.events() == []
    fatal = "mlx5_core 0000:d2:00.0: poll_health:839:(pid 0): Fatal error 3 detected"
    repaired = "mlx5_core 0000:d2:00.0: mlx5_health_try_recover:338:(pid 268269): health recovery succeeded"
    log = Log().write(fatal, at=10).write(repaired, at=20).write(fatal, at=200)
    assert Probe(log, uptime=300.0).events() == [(kinds.MLX5_RECOVERED, 1), (kinds.MLX5_FATAL, 2)]


def test_of_before_the_probe_only_what_came_while_it_was_started_anew_or_since_a_boot_is_reported() -> None:
    assert Probe(Log().write(STALLED, DAY - 61), DAY).events() == []
    probe = Probe(Log().write(STALLED, DAY - 10))
    probe.source.poll()
    [event] = probe.source.events.for_line()
    assert event.time == START + timedelta(seconds=DAY - 10)
    log = Log().write(STALLED, 5.0)
    assert Probe(log, uptime=BOOTED_SECONDS - 1).events() == [(kinds.MLX5_STALLED, 1)]
    assert Probe(log, uptime=BOOTED_SECONDS + 1).events() == []


def test_the_first_look_reads_behind_all_that_a_driver_wrote_at_boot() -> None:
    log = Log()
    for number in range(MAX_LINES + 200):
        log.write(f"mlx5_core 0000:3b:{number % 32:02x}.0: firmware version: 28.39.1002", at=DAY - 900 + number / 1000)
    probe = Probe(log.write(STALLED, at=DAY - 5))
    assert probe.events() == [(kinds.MLX5_STALLED, 1)]
    assert probe.problems == []


def test_of_a_log_without_times_nothing_old_is_reported_and_equal_lines_are_counted() -> None:
    log = Log()
    log.lines = f"<3>{STALLED}\n".encode()
    probe = Probe(log)
    assert probe.events() == []
    log.lines += f"<3>mlx5_core 0000:d2:00.0: Fatal error 3 detected\n<3>{STALLED}x\n".encode()
    assert probe.events() == [(kinds.MLX5_FATAL, 1), (kinds.MLX5_STALLED, 1)]
    log = Log().write("nothing", DAY)
    probe = Probe(log)
    probe.events()
    for number in range(100):
        log.write(STALLED, DAY + number / 1e6)
    assert probe.events() == [(kinds.MLX5_STALLED, 100)]


def test_lines_that_the_kernel_overwrote_unread_are_a_problem_for_some_minutes() -> None:
    log = Log(ring=4096).write("nothing", DAY)
    probe = Probe(log)
    assert probe.problems == []
    for number in range(1000):
        log.write(f"flood {number}", DAY + 1 + number / 1e3)
    log.write(STALLED, DAY + 3)
    assert probe.events() == [(kinds.MLX5_STALLED, 1)], "what is still there is read"
    assert probe.problems == ["KernelLogLinesLost"]
    probe.clock.now += LOST_SHOWN_SECONDS
    assert probe.problems == []


def test_a_log_that_was_cleared_shows_no_line_twice_and_no_text_stands_for_a_line() -> None:
    log = Log().write(STALLED, DAY - 2).write("nothing", DAY - 1)
    probe = Probe(log)
    assert probe.events() == [(kinds.MLX5_STALLED, 1)]
    log.lines = b""
    assert (probe.events(), probe.problems) == ([], [])
    log.write(STALLED, DAY + 1)
    assert probe.events() == [(kinds.MLX5_STALLED, 1)]
    log = Log().write("last", 1.0)
    follower = Follower(log.tail)
    follower.news()
    last = log.lines.decode().rstrip("\n")
    log.write(STALLED, 2.0).write(f"forged {last}", 3.0, priority=11)
    assert STALLED.encode() in follower.news()[0]


def test_a_log_that_may_not_be_read_is_a_problem_that_says_what_to_do_and_ends_by_itself() -> None:
    log = Log().write(STALLED, DAY - 1)
    log.refuses = errno.EPERM
    probe = Probe(log)
    [problem] = probe.source.poll().problems
    assert problem.code == "KernelLogUnreadable"
    assert "Operation not permitted" in problem.message
    assert "SYSLOG" in problem.message
    log.refuses = 0
    assert (probe.events(), probe.problems) == ([(kinds.MLX5_STALLED, 1)], [])


def test_more_than_one_look_reads_at_a_time_is_found_in_a_greater_one() -> None:
    log = Log(ring=SIZES[-1]).write("nothing", 1.0)
    follower = Follower(log.tail)
    for _ in range(4):  # the first look reads all, later ones less and less
        follower.news()
    log.write(STALLED, 2.0)
    for number in range(20_000):
        log.write(f"flood {number}", 3 + number / 1e6)
    news, lost = follower.news()
    assert news.startswith(b"<3>[    2.000000] mlx5_core")
    assert (news.count(b"\n"), lost) == (20_001, False)


@pytest.mark.parametrize("half", [b"", b"<3>[   12.000000] mlx5_co"])
def test_of_a_file_only_whole_lines_are_read(tmp_path: Path, half: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"<6>[    1.000000] " + b"x" * 100 + b"\n<6>[    2.000000] second\n" + half)
    assert file_tail(path, 80) == b"<6>[    2.000000] second\n"
    assert file_tail(path, 1 << 16).count(b"\n") == 2
