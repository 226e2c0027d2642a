"""What the probe of the kernel's log costs: at rest, and while 10,000 lines a second are written.

The real command with a file in the place of the kernel's log, which this process writes and, as the kernel's ring,
never lets grow beyond RING_BYTES; and a client of its socket, as the agent is. The floor: as many bytes read from the
same file once a second, and nothing else. What one look at this machine's own log takes by syslog(2) is a row of its
own.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nodedevices_probe.kmsg.probe import SIZES, Follower, kernel_tail

from benchmarks.process import cpu_seconds, memory_mib
from benchmarks.table import Row

LINES_PER_SECOND = 10_000
SECONDS = 15.0
BURST_SECONDS = 0.05
RING_BYTES = 2 << 20
MAX_CORE = 5.0  # per cent
OTHERS = "audit: type=1326 audit(1732600000.123:456): auid=1000 uid=1000 gid=1000 ses=3 subj=unconfined pid=4711 comm="
KNOWN = "mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"
UNKNOWN = "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed, status"
LOOKS = 20


class Ring:
    """The log's file. Its readers see whole lines, and the newest ones, at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()

    def write(self, text: str, count: int) -> None:
        now = time.monotonic()
        lines = "".join(f"<4>[{now + number / 1e6:12.6f}] {text} {number}\n" for number in range(count))
        if self.path.stat().st_size > RING_BYTES:
            kept = self.path.read_bytes()[-RING_BYTES // 2 :]
            new = self.path.with_suffix(".new")
            new.write_bytes(kept[kept.find(b"\n") + 1 :])
            new.replace(self.path)
        with self.path.open("a") as file:
            file.write(lines)

    def flood(self, text: str, seconds: float) -> float:
        """Write at the rate, and return how many lines a second it was."""
        began, written = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = round(passed * LINES_PER_SECOND) - written
            self.write(text, due)
            written += due
            time.sleep(BURST_SECONDS)
        return written / seconds


@contextlib.contextmanager
def probe(folder: Path, ring: Ring) -> Iterator[int]:
    """The probe's pid, with a client that reads its lines."""
    path = folder / "kmsg.sock"
    command = ("kmsg", "--listen", f"unix:{path}", "--kmsg-path", str(ring.path))
    with subprocess.Popen([Path(sys.executable).with_name("nodedevices-probe"), *command]) as process:
        while not path.is_socket():
            time.sleep(0.05)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            reader = subprocess.Popen(["cat"], stdin=client.fileno(), stdout=subprocess.DEVNULL)
            time.sleep(3)
            yield process.pid
            reader.kill()
            reader.wait()
        process.terminate()


def measure() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ring = Ring(folder / "log")
        ring.write(OTHERS, 10_000)
        with probe(folder, ring) as pid:
            before = cpu_seconds(pid)
            time.sleep(SECONDS)
            rows.append(Row(what="at rest: CPU", measured=_per_cent(pid, before), unit="%"))
            for what, text in (
                ("lines of others", OTHERS),
                ("lines of a driver that are no events", UNKNOWN),
                ("lines that are events", KNOWN),
            ):
                before = cpu_seconds(pid)
                rate = ring.flood(text, SECONDS)
                rows.append(
                    Row(
                        what=f"{rate:,.0f} {what} a second: CPU",
                        measured=_per_cent(pid, before),
                        unit="%",
                        target=MAX_CORE,
                        floor=_floor(ring, rate),
                        floor_is="the same bytes read, once a second",
                    )
                )
            rows.append(Row(what="memory, after", measured=memory_mib(pid), unit="MiB"))
    return [*rows, *_own_log()]


def _per_cent(pid: int, before: float) -> float:
    return 100 * (cpu_seconds(pid) - before) / SECONDS


def _floor(ring: Ring, rate: float) -> float:
    per_line = len(ring.path.read_bytes().splitlines()[-1]) + 1
    began = time.process_time()
    for _ in range(LOOKS):
        with ring.path.open("rb") as file:
            file.read(round(rate * per_line))
    return 100 * (time.process_time() - began) / LOOKS


def _own_log() -> list[Row]:
    """A look at the log of this machine while nothing is new."""
    follower = Follower(kernel_tail)
    try:
        for _ in SIZES:
            follower.news()
    except OSError:
        return []
    began = time.process_time()
    for _ in range(LOOKS):
        follower.news()
    return [
        Row(what="a look at this machine's own log", measured=1e3 * (time.process_time() - began) / LOOKS, unit="ms")
    ]
