"""Pools that live elsewhere, from a file and checks of their controllers to the line and to what pods are given."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from nodedevices_common.errors import InputError
from nodedevices_plugin.model import Holder
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_probe import remote as attributes
from nodedevices_probe.files import WatchedFile
from nodedevices_probe.registry import KINDS
from nodedevices_probe.remote.config import ControllerCheck, RemoteConfig, parse
from nodedevices_probe.remote.probe import FIRST_SECONDS, Checker, RemoteSource, attempt
from support.cases import cases
from support.clock import Clock
from support.facts import START
from support.fuzzing import scaled
from support.local import at_once
from support.sources import line_of
from support.stepped_node import Node

ORION = "virtaitech.com/gpu"
FILE = "pools: [{preset: orion, controller: '10.0.0.5:9123', count: 3}]"
LOCAL = at_once(["--node-name=n1", "--probe=remote", "--devices-dir=/etc"], {})


class Pools:
    """A file, the probe that reads it, and what its checks say."""

    def __init__(self, folder: Path, file: str) -> None:
        self.path = folder / "remote.yaml"
        self.path.write_text(file)
        self.clock, self.checkers = Clock(100.0), dict[ControllerCheck, Checker]()
        watched = WatchedFile(path=self.path, parse=parse)
        self.source = RemoteSource(file=watched, make=self._make, clock=self.clock)

    def _make(self, check: ControllerCheck) -> Checker:
        self.checkers[check] = Checker(check=check)
        return self.checkers[check]

    def says(self, file: str) -> None:
        self.path.with_name("new").write_text(file)
        self.path.with_name("new").replace(self.path)
        self.source.poll()
        self.source.poll()

    def found(self, *, reachable: bool | None, problem: str = "") -> None:
        for each in self.checkers.values():
            each.reachable, each.problem = reachable, problem

    def seen_by(self, node: Node, *holders: Holder) -> Node:
        node.devices = self.source.poll().devices
        node.given(device_files={attributes.FILE: DeviceFileOutcome(content=parse(self.path.read_bytes()))})
        return node.now({}, *holders)


@pytest.fixture
def pools(tmp_path: Path) -> Pools:
    made = Pools(tmp_path, FILE)
    made.source.poll()
    return made


# --- what is offered and given ---------------------------------------------------------------------------------------
def test_a_pool_is_offered_by_count_and_containers_get_its_variables_alone(pools: Pools) -> None:
    pools.found(reachable=True)
    node = pools.seen_by(Node(local=LOCAL))
    id_ = "pool:virtaitech.com:gpu"
    assert node.offers == {ORION: [f"{id_}::{number}" for number in range(3)]}
    edits = node.container(ORION, f"{id_}::0", f"{id_}::2")
    assert edits.envs == {"ORION_CONTROLLER": "10.0.0.5:9123", "ORION_VGPU": "2", "ORION_DEVICE_TYPE": "GPU"}
    assert (edits.devices, edits.mounts) == ((), ())


def test_other_pools_have_other_variables_and_names(tmp_path: Path) -> None:
    file = "pools: [{name: fpga, count: 1, check: {http: 'http://a/b'}, env: {POOL: '{{id}}', N: '{{count}}'}}]"
    pools = Pools(tmp_path, file)
    pools.source.poll()
    pools.found(reachable=True)
    node = pools.seen_by(Node(local=LOCAL))
    assert node.offers == {"remote.nodedevices.io/fpga": ["pool:fpga::0"]}
    assert node.container("remote.nodedevices.io/fpga", "pool:fpga::0").envs == {"POOL": "pool:fpga", "N": "1"}


# --- health ----------------------------------------------------------------------------------------------------------
def test_a_controller_that_cannot_be_reached_is_a_reason_and_comes_back(pools: Pools) -> None:
    pools.found(reachable=True)
    node = pools.seen_by(Node(local=LOCAL))
    pools.found(reachable=False, problem="Connection refused")
    pools.seen_by(node)
    assert node.world.known.verdicts["pool:virtaitech.com:gpu"].reason == "ControllerUnreachable"
    assert node.offers == {ORION: []}
    [problem] = pools.source.poll().problems
    assert problem.message == f"{ORION}: its controller cannot be reached: Connection refused"
    pools.found(reachable=True)
    pools.seen_by(node)
    node.clock += 3600
    pools.seen_by(node)
    assert len(node.offers[ORION]) == 3


def test_what_is_not_known_yet_ends_no_fault_and_is_none(pools: Pools) -> None:
    pools.found(reachable=False)
    node = pools.seen_by(Node(local=LOCAL))
    pools.found(reachable=None)
    node.clock += 3600
    pools.seen_by(node)
    assert node.world.known.verdicts["pool:virtaitech.com:gpu"].reason == "ControllerUnreachable"
    pools.clock.now += FIRST_SECONDS
    fresh = pools.seen_by(Node(local=LOCAL))
    assert len(fresh.offers[ORION]) == 3


def test_the_first_line_waits_for_the_first_checks_but_not_for_ever(pools: Pools) -> None:
    assert pools.source.poll().silent
    pools.clock.now += FIRST_SECONDS
    assert not pools.source.poll().silent
    pools.found(reachable=True)
    assert not pools.source.poll().silent


def test_one_success_is_enough_and_so_many_failures_are_needed() -> None:
    answers = iter(["no", "no", "", "no", "no", "no", ""])
    checker = Checker(check=ControllerCheck(tcp="a:1", failures=3), try_once=lambda _: next(answers))
    seen = []
    for _ in range(7):
        checker.step()
        seen.append(checker.state()[0])
    assert seen == [None, None, True, True, True, False, True]


def test_a_check_that_does_not_return_is_a_failure_of_its_own_pool() -> None:
    clock, ended, begun = Clock(100.0), threading.Event(), threading.Event()

    def hangs(_: ControllerCheck) -> str:
        begun.set()
        ended.wait(60)
        return ""

    checker = Checker(check=ControllerCheck(tcp="a:1", timeout_seconds=2, failures=2), try_once=hangs, clock=clock)
    thread = threading.Thread(target=checker.step, daemon=True)
    thread.start()
    assert begun.wait(60)
    try:
        assert checker.state() == (None, "")
        clock.now += 6.1
        assert checker.state() == (False, "the check does not return")
    finally:
        ended.set()
        thread.join(60)
    assert checker.reachable is None, "an answer that came too late is none"


@contextmanager
def answering(handler: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that does this with each connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handler(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Healthz(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz?full=1" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


def test_tcp_and_http_checks_of_real_servers() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthz) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        assert attempt(ControllerCheck(tcp=address)) == ""
        assert attempt(ControllerCheck(http=f"http://{address}/healthz?full=1")) == ""
        assert attempt(ControllerCheck(http=f"http://{address}/")) == "it answers with status 404"
        server.shutdown()
    assert attempt(ControllerCheck(tcp=address)) == "Connection refused"
    assert attempt(ControllerCheck(http=f"http://{address}/healthz")) == "Connection refused"
    assert attempt(ControllerCheck(tcp="nowhere.invalid:1")) != ""


def nothing(connection: socket.socket) -> None:
    """Until the client has had enough."""
    while connection.recv(4096):
        pass


def test_servers_that_say_nonsense_or_nothing_are_failures_and_never_more() -> None:
    for said in (b"", b"\x00\xff\r\n\r\n", b"HTTP/1.1 999999999999 x\r\n\r\n", b"HTTP/1.1 200\r\nA" + b"a" * 70_000):
        with answering(lambda connection, said=said: connection.sendall(said)) as port:  # type: ignore[misc]
            assert attempt(ControllerCheck(http=f"http://127.0.0.1:{port}/", timeout_seconds=1)) != ""
    with answering(nothing) as port:
        assert "timed out" in attempt(ControllerCheck(http=f"http://127.0.0.1:{port}/", timeout_seconds=1))
    with answering(lambda connection: connection.sendall(b"not TLS")) as port:
        assert attempt(ControllerCheck(http=f"https://127.0.0.1:{port}/", timeout_seconds=1)) != ""


# --- the file --------------------------------------------------------------------------------------------------------
def test_a_pool_whose_check_is_the_same_keeps_what_is_known_of_it(pools: Pools) -> None:
    pools.found(reachable=True)
    before = dict(pools.checkers)
    pools.says(FILE.replace("count: 3", "count: 5"))
    assert pools.checkers == before
    assert not pools.source.poll().silent
    pools.says(FILE.replace("9123", "9124"))
    assert len(pools.checkers) == 2
    assert pools.source.poll().devices[0].readings.conditions == ("controllerUnchecked",)


def test_a_file_that_breaks_changes_nothing_and_is_named(pools: Pools) -> None:
    pools.found(reachable=True)
    pools.says("pools: 3")
    facts = pools.source.poll()
    assert ([each.id for each in facts.devices], [each.code for each in facts.problems]) == (
        ["pool:virtaitech.com:gpu"],
        ["FileInvalid"],
    )


def test_before_the_first_good_file_the_probe_says_nothing(tmp_path: Path) -> None:
    source = Pools(tmp_path, "").source
    assert source.poll().silent
    assert [each.code for each in source.poll().problems] == ["FileInvalid"]


def test_a_pool_that_is_taken_out_of_the_file_is_no_fault_once_nobody_holds_it(pools: Pools) -> None:
    pools.found(reachable=True)
    node = pools.seen_by(Node(local=LOCAL))
    id_ = "pool:virtaitech.com:gpu"
    pod = Holder(namespace="ml", pod="p", container="c", resource=ORION, ids=(f"{id_}::1",), since=START)
    pools.says("pools: []")
    pools.seen_by(node, pod)
    assert [each.fact.id for each in node.world.known.inventory.devices] == [id_]
    pools.seen_by(node)
    assert node.world.known.inventory.devices == ()
    assert node.world.known.verdicts == {}


def test_the_line_is_one_that_the_agent_accepts(pools: Pools) -> None:
    pools.found(reachable=False, problem="\x1b[31m" + "x" * 900)
    pools.source.poll()
    assert line_of(pools.source).devices[0].readings.conditions == ("controllerUnreachable",)


REFUSED = {
    "": "is empty",
    "a": "give a mapping with pools",
    "{}": "pools: is missing",
    "pools: [{count: 1}]": "pools[0].name: is missing",
    "pools: [{name: a}]": "pools[0].count: is missing",
    "pools: [{name: a, count: 0}]": "count: 0 is not allowed; give an integer from 1 to 1000",
    "pools: [{name: a, count: 1}]": "pools[0].controller: is missing; give host:port",
    "pools: [{name: a, count: 1, controller: x}]": "controller: 'x' is not allowed; give host:port",
    "pools: [{name: a, count: 1, controller: 'a:b:1'}]": "is not allowed; give host:port",
    "pools: [{name: a, count: 1, controller: 'a:0'}]": "is not allowed; give host:port",
    "pools: [{name: a, count: 1, check: {}}]": "pools[0].controller: is missing",
    "pools: [{name: a, count: 1, check: {periodSeconds: 3}}]": "check.tcp: is missing; give tcp or http",
    "pools: [{name: a, count: 1, check: {tcp: 'a:1', http: 'http://a'}}]": "check.http: tcp is given, too",
    "pools: [{name: a, count: 1, check: {http: 'ftp://a'}}]": "http: 'ftp://a' is not allowed; give a URL",
    "pools: [{name: a, count: 1, check: {http: 'http://u:p@a'}}]": "is not allowed; give a URL",
    "pools: [{name: a, count: 1, check: {http: 'http://a:99999'}}]": "is not allowed; give a URL",
    "pools: [{name: a, count: 1, controller: 'a:1', check: {timeoutSeconds: 11}}]": "an integer from 1 to 10",
    "pools: [{name: a, count: 1, controller: 'a:1', env: {A: '{{uid}}'}}]": "{{uid}} is not a field; known here",
    "pools: [{preset: orion, count: 1, check: {tcp: 'a:1'}}]": "pools[0].controller: is missing",
    "pools: [{preset: oryon, count: 1}]": "preset: 'oryon' is not allowed; give one of orion",
    "pools: [{name: a, count: 1, controller: 'a:1'}, {name: a, count: 1, controller: 'a:1'}]": "a is given twice",
}


@cases("text", *REFUSED)
def test_what_is_wrong_is_named_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(text.encode())
    assert REFUSED[text] in str(refused.value)


def outcome(raw: bytes) -> RemoteConfig | tuple[str, ...]:
    try:
        return parse(raw)
    except InputError as error:
        return error.problems


@settings(max_examples=scaled(100), deadline=None)
@given(
    st.text(max_size=40), st.sampled_from(["controller: {}", "check: {{http: {}}}", "check: {{tcp: {}}}", "name: {}"])
)
def test_addresses_of_any_kind_are_understood_or_refused(value: str, where: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    assert outcome(f"pools: [{{count: 1, {where.format(quoted)}}}]".encode())


def test_the_agents_flag_is_needed_and_passed_on() -> None:
    with pytest.raises(ConfigError, match="--probe remote: needs --devices-dir, a folder with"):
        parse_flags(["--node-name=n", "--probe=remote"], {})
    local = parse_flags(["--node-name=n", "--probe=remote", "--devices-dir=/etc"], {})
    assert KINDS["remote"].arguments(local.probe_options) == ["remote", "--file=/etc/remote.yaml"]
