"""The probe server: what it starts and for whom, and what becomes of the agent's probes when it hangs or goes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from nodedevices_common.backoff import Backoff
from nodedevices_plugin.host.machine import (
    FoundHardware,
    HostPathReader,
    Machine,
    MachineError,
    ServedMachine,
)
from nodedevices_plugin.inputs.probe_sessions import SERVER_BACKOFF as BACKOFF, ProbeSocket
from nodedevices_plugin.inputs.probes import of_server
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings.options import by_name
from nodedevices_probe.main import DEFAULTS, served_options, variables
from nodedevices_probe.nvidia import NVIDIA_CTK
from nodedevices_probe.programs import ProgramError
from nodedevices_probe.protocol import Snapshot
from nodedevices_probe.registry import KINDS, PROGRAMS
from nodedevices_probe.serving import requests
from nodedevices_probe.serving.requests import (
    PROTOCOL,
    Allowed,
    FindHardware,
    FindPaths,
    Request,
    RequestError,
    RunProgram,
    StartProbe,
    Word,
)
from nodedevices_probe.serving.server import MAX_PROCESSES, MAX_WAITING
from support.patience import PATIENCE_SECONDS
from support.probes import busy, cancelled, eventually, until
from support.served import probe_server, programs_server

QUICK = Backoff(initial_seconds=0.05, max_seconds=0.2, jitter=0.0)
ROOT = "--driver-root-ctr-path=/driver-root"
ALLOWED = Allowed(
    kinds=KINDS,
    programs=PROGRAMS,
    paths={"driver-root-ctr-path": "/driver-root", "devices-dir": "/etc/nodedevices"},
)
CTK = RunProgram(name="nvidia-ctk", root="", arguments=("--class=gpu",))


def paths(*patterns: str, root: str = "/driver-root") -> FindPaths:
    return FindPaths(root=root, patterns=patterns)


# --- which requests are allowed ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "request_",
    [
        StartProbe(arguments=("nvml", ROOT, "--telemetry")),
        StartProbe(arguments=("simulated", "--profile=h100 x 8", "--node-name=n")),
        StartProbe(arguments=("intel", "--deny-ids=0x49c5", "--interval-seconds=2")),
        StartProbe(arguments=("nic", "--all")),
        StartProbe(arguments=("generic", "--file=/etc/nodedevices//generic.yaml", ROOT)),
        StartProbe(arguments=("generic", "--file=/etc/nodedevices/n1.generic.yaml", ROOT)),
        StartProbe(arguments=("nic", ROOT, "--rdma-required=none", "--sriov=/of/the/agent")),
        paths("/dev/nvidia*", "/etc/cufile.json"),
        FindHardware(),
        CTK,
    ],
)
def test_what_an_agent_asks_for_is_allowed_and_survives_the_way(request_: Request) -> None:
    assert requests.decode(requests.encode(request_)) == request_
    ALLOWED.check(request_)


@pytest.mark.parametrize(
    ("command_line", "arguments"),
    [
        ("nodedevices-probe intel --deny-ids 0x49c5,0x9a49", ("intel", "--deny-ids=0x49c5,0x9a49")),
        ("/app/bin/nodedevices-probe nic --all --interval-seconds=2", ("nic", "--all", "--interval-seconds=2")),
        ("nodedevices-probe nvml", ("nvml",)),
        ("nodedevices-probe simulated --file /etc/devices.yaml", ()),
        ("nodedevices-probe amd --root /elsewhere", ()),
        ("nodedevices-probe nvml --once", ()),
        ("nodedevices-probe auto", ()),
        ("nodedevices-probe", ()),
        ("/opt/probe.sh nvml", ()),
    ],
)
def test_a_built_in_probe_with_flags_of_ones_own_is_the_servers_too_and_other_programs_are_not(
    command_line: str, arguments: tuple[str, ...]
) -> None:
    found = of_server(command_line.split())
    assert found == arguments
    if found:
        ALLOWED.check(StartProbe(arguments=found))


@pytest.mark.parametrize("kind", KINDS)
def test_every_flag_that_the_agent_passes_on_is_allowed_with_the_servers_own_paths(kind: str) -> None:
    given = {option: f"/own/{option}" for option in KINDS[kind].passed_on.values()}
    own = Allowed(kinds=KINDS, programs=PROGRAMS, paths={**given, "devices-dir": "/own"})
    own.check(StartProbe(arguments=tuple(KINDS[kind].arguments(given))))


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (StartProbe(arguments=()), "give one of nvml"),
        (StartProbe(arguments=("auto",)), "give one of nvml"),
        (StartProbe(arguments=("serve", "--listen=unix:/x")), "give one of nvml"),
        *(
            (
                StartProbe(arguments=("nvml", flag)),
                "is not allowed; give some of --driver-root-ctr-path, --telemetry, --interval",
            )
            for flag in ("--root=/x", "--listen=unix:/x", "--fd=3", "--once", "--tele", "-h", "x")
        ),
        (
            StartProbe(arguments=("nvml", "--driver-root-ctr-path=/x")),
            "is not the probe server's, which has /driver-root",
        ),
        (StartProbe(arguments=("nvml", "--driver-root-ctr-path=/driver-root/../x")), "is not the probe server's"),
        (StartProbe(arguments=("nvml", "--driver-root-ctr-path")), "is not the probe server's"),
        (StartProbe(arguments=("simulated", "--file=/etc/shadow")), "--simulated: '/etc/shadow' is not"),
        (StartProbe(arguments=("simulated", "--file=")), "which has none"),
        (paths("/dev/x", root="/"), "is not the probe server's"),
        *((paths(each), "give absolute paths") for each in ("dev/x", "/dev/../x", "/**")),
        (RunProgram(name="sh", root="", arguments=("-c",)), "'sh' is unknown; give one of nvidia-ctk"),
        (RunProgram(name="nvidia-ctk", root="/x", arguments=()), "is not the probe server's"),
        *(
            (
                RunProgram(name="nvidia-ctk", root="", arguments=(each,)),
                "is not allowed; give some of --class=",
            )
            for each in ("--output=/x", "--driver-root=/x", "--class", "runtime", "-class=gpu")
        ),
    ],
)
def test_all_else_is_refused_with_what_would_be_right(request_: Request, says: str) -> None:
    with pytest.raises(RequestError) as refused:
        ALLOWED.check(request_)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 5000,
        b"{}",
        b'{"protocol": "other", "hardware": true}',
        *(
            f'{{"protocol": "{PROTOCOL}", {rest}}}'.encode()
            for rest in (
                '"hardware": false',
                '"hardware": true, "probe": []',
                '"probe": "nvml"',
                '"probe": [1]',
                '"probe": ["a\\u0000b"]',
                f'"probe": {["x"] * 600}'.replace("'", '"'),
                f'"probe": ["{"x" * 5000}"]',
                '"paths": {"root": "/"}',
                '"paths": {"root": "/", "patterns": [], "more": 1}',
                '"program": {"name": "nvidia-ctk"}',
            )
        ),
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(RequestError):
        requests.decode(line)


@pytest.mark.parametrize("said", [Word(refused="no"), Word(exited=75), Word(exited=-9)])
def test_what_the_server_says_of_a_process_is_understood(said: Word) -> None:
    empty, line, end = said.line().split(b"\n")
    assert (empty, requests.word(line), end) == (b"", said, b"")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"server":',
        b'{"server":1}',
        b'{"server":{"exited":"1"}}',
        b'{"server":{"exited":100000}}',
        b'{"server":{"more":1}}',
        b'{"server":' + b"[" * 4000,
        b'{"server":{"refused":"' + b"x" * 5000 + b'"}}',
    ],
)
def test_what_the_server_did_not_say_is_a_line_like_any_other(line: bytes) -> None:
    assert requests.word(line) is None


def test_the_servers_options_are_the_agents_with_the_same_variables_and_defaults() -> None:
    known = by_name()
    for each in served_options(KINDS):
        assert set(variables(each)) == set(known[each].variables)
        assert DEFAULTS.get(each, "") == known[each].default


# --- processes --------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def followed(
    path: Path, arguments: Callable[[], Sequence[str]], *, silence: float = 45.0
) -> AsyncIterator[tuple[ProbeSocket, list[Snapshot]]]:
    seen: list[Snapshot] = []
    source = ProbeSocket(
        str(path), arguments, on_snapshot=seen.append, backoff=QUICK, end_after_silence_seconds=silence
    )
    task = asyncio.create_task(source.run())
    try:
        yield source, seen
    finally:
        await cancelled(task)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where `nodedevices-probe serve` listens."""
    path = tmp_path_factory.mktemp("here") / "probes.sock"
    with probe_server(path, "--driver-root-ctr-path=/nowhere"):
        yield path


def l4s(count: int) -> list[str]:
    return ["simulated", f"--profile=l4 x {count}", "--node-name=n"]


async def test_a_probe_of_the_server_is_replaced_when_it_is_to_have_other_arguments(here: Path) -> None:
    wanted = l4s(1)
    async with followed(here, lambda: wanted) as (source, seen):
        await eventually(lambda: seen and len(seen[-1].devices) == 1)
        wanted = l4s(2)
        await eventually(lambda: len(seen[-1].devices) == 2)
        assert source.counters.starts == 2


async def test_a_probe_of_the_server_reads_what_the_agent_wants(tmp_path: Path) -> None:
    arguments = busy(tmp_path)
    with probe_server(path := tmp_path / "probes.sock", f"--simulated={tmp_path}/busy.yaml"):
        async with followed(path, lambda: arguments) as (source, seen):
            source.want(use=True)
            await eventually(lambda: seen and seen[-1].devices[0].readings.processes == 1)
            assert len({each.instance for each in seen}) == 1


async def test_a_refusal_is_said_in_the_servers_words_and_tried_again(here: Path) -> None:
    wanted = ["nvml", "--driver-root-ctr-path=/elsewhere"]
    async with followed(here, lambda: wanted) as (source, seen):
        await eventually(lambda: source.last_error and "refused" in source.last_error)
        assert "is not the probe server's, which has /nowhere; give both the same" in (source.last_error or "")
        wanted = l4s(1)
        await eventually(lambda: seen)


async def test_a_probe_that_wants_a_fresh_process_ends_as_it_planned_to(tmp_path: Path) -> None:
    with programs_server(path := tmp_path / "probes.sock"):
        for status, planned in ((75, True), (3, False)):
            source = ProbeSocket(str(path), lambda s=status: [f"import sys; sys.exit({s})"], on_snapshot=print)  # type: ignore[misc]
            assert await source.session() is planned
            assert source.last_error == f"the probe exited with status {status}"


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def pids_of(server: subprocess.Popen[bytes]) -> list[int]:
    listed = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(each) for each in listed.split()]


async def test_a_server_that_is_killed_takes_its_probes_along_and_the_next_one_is_found(tmp_path: Path) -> None:
    path = tmp_path / "probes.sock"
    async with followed(path, lambda: l4s(1)) as (source, seen):
        await eventually(
            lambda: source.last_error == f"failed to connect to the probe server at {path}: No such file or directory"
        )
        with probe_server(path) as server:
            await eventually(lambda: seen)
            pids = pids_of(server)
            server.kill()
            await eventually(lambda: not any(map(is_there, pids)))
            await eventually(lambda: source.last_error)
        lines = len(seen)
        with probe_server(path):  # where the killed one left its socket
            await eventually(lambda: len(seen) > lines and source.last_error is None)


async def test_a_server_that_is_ended_leaves_neither_probes_nor_socket(tmp_path: Path) -> None:
    path = tmp_path / "probes.sock"
    with probe_server(path) as server:
        async with followed(path, lambda: l4s(1)) as (_, seen):
            await eventually(lambda: seen)
            pids = pids_of(server)
            server.terminate()
            assert await asyncio.to_thread(server.wait, PATIENCE_SECONDS) == 0
            await eventually(lambda: not any(map(is_there, pids)))
    assert not path.exists()


async def test_a_server_that_is_stopped_keeps_no_line_back_and_starts_nothing_for_an_agent_that_has_given_up(
    tmp_path: Path,
) -> None:
    path = tmp_path / "probes.sock"
    with probe_server(path) as server:
        async with followed(path, lambda: l4s(1)) as (_, seen):
            await eventually(lambda: seen)
            server.send_signal(signal.SIGSTOP)
            lines = len(seen)
            await eventually(lambda: len(seen) >= lines + 2)
            async with followed(path, lambda: l4s(2), silence=0.5) as (second, nothing):
                await eventually(lambda: second.counters.kills >= 2)
                assert nothing == []
            running = pids_of(server)
            server.send_signal(signal.SIGCONT)
            async with followed(path, lambda: l4s(2)) as (_, later):
                await eventually(lambda: later)
                assert len(pids_of(server)) == len(running) + 1


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_SECONDS)
    client.connect(str(path))
    return client


def test_connections_that_say_nothing_keep_no_request_away(here: Path) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_WAITING + 4):
            stack.enter_context(connected(here)).sendall(b"half a requ")
        assert ServedMachine(str(here)).hardware() == Machine().hardware()


def test_more_processes_than_the_most_are_refused_until_one_ends(tmp_path: Path) -> None:
    asked = requests.encode(StartProbe(arguments=("import time; time.sleep(60)",)))
    with programs_server(path := tmp_path / "probes.sock") as server, ExitStack() as stack:
        clients = []
        for _ in range(MAX_PROCESSES):  # each asks at once: of connections without a request there may be few
            clients.append(stack.enter_context(connected(path)))
            clients[-1].sendall(asked)
        until(lambda: len(pids_of(server)) == MAX_PROCESSES)
        with connected(path) as late:
            late.sendall(asked)
            assert b"32 processes are running, which is the most" in late.makefile("rb").read()
        clients[0].close()
        with connected(path) as later:
            until(lambda: len(pids_of(server)) < MAX_PROCESSES)
            later.sendall(asked)
            until(lambda: len(pids_of(server)) == MAX_PROCESSES)


def test_a_second_server_does_not_take_a_socket_that_another_one_listens_on(here: Path) -> None:
    from support.probes import COMMAND

    second = [*COMMAND, "serve", f"--listen=unix:{here}", "--health-address=off"]
    done = subprocess.run(second, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, "another program listens there already" in done.stderr) == (2, True)


def test_the_back_off_ends_before_silence_would_be_reported() -> None:
    assert BACKOFF.after(10_000, lambda _, high: high) < 15


# --- its health -------------------------------------------------------------------------------------------------------
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def fetch(port: int, text: bytes = b"GET /healthz HTTP/1.1\r\n\r\n", seconds: float = PATIENCE_SECONDS) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        client.sendall(text)
        return client.makefile("rb").read()


def test_the_server_answers_the_kubelet_whatever_others_send_and_not_while_it_hangs(tmp_path: Path) -> None:
    port = free_port()
    with probe_server(tmp_path / "probes.sock", f"--health-address=127.0.0.1:{port}") as server, ExitStack() as stack:
        for _ in range(MAX_WAITING + 4):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS))
        assert fetch(port).startswith(b"HTTP/1.1 200 OK\r\n")
        assert fetch(port, b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 ")
        with suppress(ConnectionResetError):  # it is closed with what was not read
            assert fetch(port, b"x" * 10_000).startswith(b"HTTP/1.1 404 ")
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            fetch(port, seconds=0.5)
        server.send_signal(signal.SIGCONT)
        assert fetch(port).startswith(b"HTTP/1.1 200 OK\r\n")


# --- what else an agent asks ------------------------------------------------------------------------------------------
def test_optional_nodes_and_hardware_are_as_they_are_where_the_server_runs(here: Path) -> None:
    patterns = ("/dev/nul*", "/dev/fuse", "/etc/cufile.json")
    served: Machine = ServedMachine(str(here))
    assert served.existing(Path("/nowhere"), patterns) == Machine().existing(Path("/nowhere"), patterns) > set()
    assert served.hardware() == Machine().hardware()


def test_a_vendors_program_runs_where_the_server_does_and_says_why_it_fails(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-ctk"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\n[ "$*" = "cdi generate --format=json --class=gpu" ] && echo "{}" || { echo bad >&2; exit 3; }\n'
    )
    tool.chmod(0o755)
    path = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    with probe_server(tmp_path / "probes.sock", environment=path):
        served = ServedMachine(str(tmp_path / "probes.sock"))
        assert served.run(NVIDIA_CTK, ["--class=gpu"], driver_root="").text == "{}\n"
        with pytest.raises(ProgramError, match=r"^nvidia-ctk: status 3: bad$"):
            served.run(NVIDIA_CTK, ["--class=other"], driver_root="")
        with pytest.raises(ProgramError, match="refused: nvidia-ctk: '--output=/x' is not allowed"):
            served.run(NVIDIA_CTK, ["--output=/x"], driver_root="")


@contextmanager
def answering(folder: Path, answer: list[bytes]) -> Iterator[Path]:
    """Something that listens where the server should, and answers every request with the last of these bytes."""
    path = folder / "other.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(1 << 16)
                    with suppress(OSError):
                        client.sendall(answer[-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_SECONDS)


GARBAGE = {
    b"": "closed the connection",
    b'{"answer": ["/dev/fu': "closed the connection",
    b"garbage\n": "not one line of JSON",
    b'{"answer"}\n': "not one line of JSON",
    b"[" * 10_000 + b"\n": "not one line of JSON",
    b'{"answer": null}\n': "is not a list|names hardware|is not what a program printed",
    b'{"answer": ["/etc/shadow"]}\n': "was not asked for|is not what a program printed",
    b'{"answer": {"weird": "x"}}\n': "is not a list|was not asked for|is not what a program printed",
    b'{"answer": [1]}\n': "was not asked for|is not what a program printed",
    b'{"answer": {"text": "x", "driverRoot": "/elsewhere"}}\n': "is not a list|was not asked for|is not what a program",
    Word(exited=-11).line(): "ended with status -11",
    Word(refused="no room").line(): "refused: no room",
    b"x" * (2 << 20): "more than 1048576 bytes|closed the connection",
}


@pytest.mark.parametrize("answer", GARBAGE)
def test_an_answer_that_is_none_is_an_error_and_counted(answer: bytes, tmp_path: Path) -> None:
    failed: list[str] = []
    with answering(tmp_path, [answer]) as path:
        served = ServedMachine(str(path), failed=failed.append)
        with pytest.raises(MachineError, match=GARBAGE[answer]):
            served.existing(Path("/"), ("/dev/fuse", "/dev/nvidia*"))
        with pytest.raises(MachineError, match=GARBAGE[answer]):
            served.hardware()
        with pytest.raises(ProgramError, match=GARBAGE[answer]):
            served.run(NVIDIA_CTK, [], driver_root="")
    assert failed == ["paths", "hardware", "program"]


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path := tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(MachineError, match="no answer for"):
            ServedMachine(str(path), answer_seconds=0.2).hardware()


async def test_the_last_good_answer_counts_while_there_is_no_good_one_and_that_is_shown(tmp_path: Path) -> None:
    answer = [b'{"answer": ["/dev/fuse"]}\n']
    with answering(tmp_path, answer) as path:
        changes: list[str] = []
        reader = HostPathReader(
            lambda: Path("/"),
            dict,
            worker=Worker("t"),
            on_change=lambda: changes.append(reader.problem),
            machine=Asked(path),
        )
        await reader.first()
        answer.append(b'{"answer": ["/dev/')
        await reader.first()
        await reader.first()
        assert reader.existing == {"/dev/fuse"}
        answer.append(b'{"answer": []}\n')
        await reader.first()
        assert (reader.existing, reader.problem) == (frozenset(), "")
    assert [bool(each) for each in changes] == [False, True, False]


class Asked(ServedMachine):
    """Asks for one node, whatever vendors want."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))

    def existing(self, driver_root: Path, patterns: Sequence[str]) -> frozenset[str]:
        return super().existing(driver_root, ("/dev/fuse",))


async def test_hardware_that_was_found_stays_found_while_the_server_is_away(tmp_path: Path) -> None:
    answer = [b'{"answer": {"amd": "a card"}}\n']
    with answering(tmp_path, answer) as path:
        found = FoundHardware(worker=Worker("t"), on_change=lambda: None, check=ServedMachine(str(path)).hardware)
        found.want(True)
        await found.first()
        answer.append(b"")
        await found.first()
        assert (found.found, "closed the connection" in found.problem) == (frozenset({"amd"}), True)
        answer.append(b'{"answer": {"nvml": "another"}}\n')
        await found.first()
        assert (found.found, found.problem) == (frozenset({"amd", "nvml"}), "")
