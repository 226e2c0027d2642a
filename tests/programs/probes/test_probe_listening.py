"""`nodedevices-probe --listen unix:/PATH`: agents and people read the lines there, come and go, and lose nothing."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe import loop
from nodedevices_probe.protocol import PROTOCOL, Snapshot
from support.patience import PATIENCE_SECONDS
from support.preloaded import fork
from support.probes import COMMAND, MODULE, ended, until
from support.simulated import strike


def write(file: Path, **more: object) -> None:
    file.with_suffix(".new").write_text(yaml.safe_dump({"profile": "l4 x 2", **more}))
    file.with_suffix(".new").replace(file)


class Client:
    """Somebody who has connected; used as a context, so that nothing stays open."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_SECONDS)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.lines = self.socket.makefile("rb")

    def line(self) -> Snapshot:
        read = self.lines.readline()
        assert read, "the probe has closed the connection"
        return parse_line(read.rstrip(b"\n"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.socket.close()


def first_line(path: Path) -> Snapshot:
    with Client(path) as client:
        return client.line()


def devices_at(path: Path) -> int:
    try:
        return len(first_line(path).devices)
    except OSError:
        return 0


@contextmanager
def listening(folder: Path, *arguments: str) -> Iterator[Path]:
    """A simulated probe of FOLDER/devices.yaml, and where it listens."""
    path = folder / "probe.sock"
    what = ["simulated", "--file", str(folder / "devices.yaml"), "--listen", f"unix:{path}", *arguments]
    process = fork(MODULE, what, os.environ, folder / "log")
    try:
        until(lambda: devices_at(path))
        yield path
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Path]:
    write(tmp_path / "devices.yaml")
    with listening(tmp_path) as path:
        yield path


def test_every_client_gets_its_first_line_at_once_and_each_line_from_then_on(probe: Path) -> None:
    with Client(probe) as one, Client(probe) as other:
        assert [len(each.line().devices) for each in (one, other)] == [2, 2]
        write(probe.with_name("devices.yaml"), devices=[{"index": 1, "absent": True}])
        for each in (one, other):
            until(lambda each=each: len(each.line().devices) == 1)  # type: ignore[misc]


def test_what_happened_while_nobody_was_connected_is_in_the_next_clients_first_line(probe: Path) -> None:
    began = time.monotonic()
    sequence = first_line(probe).sequence
    connected = time.monotonic() - began  # a machine that stalls meanwhile has a line for each second
    write(probe.with_name("devices.yaml"), events=[strike(1, 79)])
    time.sleep(1.8)
    lines: list[Snapshot] = []
    while not lines or not lines[-1].events:  # it has not read its file yet
        began = time.monotonic()
        lines.append(first_line(probe))
        connected += time.monotonic() - began
    assert [each.xid for each in lines[-1].events] == [79]
    assert lines[-1].sequence <= sequence + 2 * len(lines) + connected, "no line was written for nobody"


def test_a_client_that_does_not_read_holds_no_other_back(probe: Path) -> None:
    with Client(probe), Client(probe) as reader:
        sequences = [reader.line().sequence for _ in range(20)]
    assert sequences == list(range(sequences[0], sequences[0] + 20))


def test_a_client_says_that_it_wants_to_know_who_uses_a_device(probe: Path) -> None:
    write(probe.with_name("devices.yaml"), devices=[{"index": 0, "processes": 1}])
    with Client(probe) as client:
        client.socket.sendall(b"nonsense\n" + loop.encode_wanted(use=True))
        until(lambda: client.line().devices[0].readings.processes == 1)


def test_a_fifth_client_takes_the_place_of_the_first(probe: Path) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(probe)) for _ in range(5)]
        assert all(each.line() for each in clients[1:])
        until(lambda: not clients[0].lines.readline())


def test_only_its_own_user_may_connect_and_what_an_ended_probe_left_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "devices.yaml")
    for _ in range(2):
        with listening(tmp_path) as path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("unix:probe.sock", "give unix: and an absolute path of at most 107 bytes, as in unix:/run/nics/probe.sock"),
        ("/run/x", "'/run/x' is not allowed"),
        ("unix:/nonexistent/probe.sock", "--listen unix:/nonexistent/probe.sock: No such file or directory"),
    ],
)
def test_where_nothing_can_listen_the_probe_says_why_and_ends(value: str, says: str) -> None:
    done = ended("simulated", "--profile", "l4", "--listen", value)
    assert done.code == 2
    assert says in done.err


def test_a_second_probe_does_not_take_a_socket_that_another_one_listens_on(probe: Path) -> None:
    done = ended("simulated", "--profile", "l4", "--listen", f"unix:{probe}")
    assert done.code == 2
    assert "another program listens there already" in done.err
    assert devices_at(probe) == 2


SAID = loop.encode_wanted(use=True)


# --- what the agent wants ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("use", [True, False])
def test_what_the_agent_writes_is_what_a_probe_reads(use: bool) -> None:
    assert loop.decode_wanted(loop.encode_wanted(use=use)) is use


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 4000,
        b"{}",
        b'{"protocol": "other", "use": true}',
        b'{"protocol": "%s", "use": "yes"}' % PROTOCOL.encode(),
    ],
)
def test_what_is_not_understood_changes_nothing_and_the_next_line_counts(line: bytes) -> None:
    seen: list[bool] = []
    chunks = iter([line + b"\n" + SAID[:10], SAID[10:], b""])
    loop.follow(lambda: next(chunks), seen.append)
    assert seen == [True]


def test_a_line_of_another_agent_that_says_more_or_less_is_understood() -> None:
    assert loop.decode_wanted(b'{"protocol": "%s", "use": true, "more": {}}' % PROTOCOL.encode()) is True
    assert loop.decode_wanted(b'{"protocol": "%s"}' % PROTOCOL.encode()) is False


def test_a_child_whose_input_is_closed_reports_all_the_same(tmp_path: Path) -> None:
    program = f"exec {' '.join(COMMAND)} simulated --profile l4 --fd 3 3>{tmp_path / 'lines'} <&-"
    process = subprocess.Popen(["sh", "-c", program], stderr=subprocess.PIPE, start_new_session=True)
    try:
        until(lambda: (tmp_path / "lines").exists() and (tmp_path / "lines").read_bytes().count(b"\n") >= 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert b"Traceback" not in said
