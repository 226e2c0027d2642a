"""AMD's device metrics exporter as a condition of GPUs. The tests' exporter is a gRPC server with its method."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from nodedevices_plugin.vendors.amd import Amd
from nodedevices_probe.amd import EXPORTER_UNHEALTHY
from nodedevices_probe.amd.exporter import METHOD, SOCKET, Exporter
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import System
from support.trees import amd_bus_id, mi300x


def field(number: int, text: bytes) -> bytes:
    """Of a protobuf message, length-delimited and short."""
    return bytes((number << 3 | 2, len(text))) + text


def state(device: str, health: str) -> bytes:
    """A GPUState with ID, UUID, health, a workload and the device."""
    texts = ((1, "0"), (2, "ff"), (3, health), (4, "pod"), (5, device))
    return field(1, b"".join(field(number, text.encode()) for number, text in texts))


@contextmanager
def exporter(root: Path, answer: Any) -> Iterator[None]:
    """Serves at the socket below the root; `answer`: bytes, or what makes them."""
    path = root / SOCKET
    path.parent.mkdir(parents=True, exist_ok=True)
    made = answer if callable(answer) else lambda _request, _context: answer
    service, method = METHOD.strip("/").split("/")
    handler = grpc.unary_unary_rpc_method_handler(made, request_deserializer=bytes, response_serializer=bytes)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
        path.unlink(missing_ok=True)


@pytest.fixture
def root() -> Iterator[Path]:
    """With a short name: a socket's path has 107 bytes at most."""
    with TemporaryDirectory(prefix="nd", dir="/tmp") as folder:
        yield Path(folder)


def test_what_it_calls_unhealthy_is_a_condition_of_that_gpu_alone_and_ends_with_it(root: Path) -> None:
    mi300x(root, gpus=2)
    source = AmdSource(system=System(root))
    says = [state(amd_bus_id(0), "healthy") + state(amd_bus_id(1).upper(), "Unhealthy")]
    with exporter(root, lambda _request, _context: says[0]):
        assert [each.readings.conditions for each in source.poll().devices] == [(), (EXPORTER_UNHEALTHY,)]
        [found] = [each for each in Amd().read(source.poll().devices[1].readings) if each.reason == "ExporterUnhealthy"]
        assert found.evident
        says[0] = state(amd_bus_id(1), "healthy")
        assert [each.readings.conditions for each in source.poll().devices] == [(), ()]


def test_where_it_does_not_run_nothing_is_said(root: Path) -> None:
    assert Exporter().unhealthy(Roots(root)) == frozenset()


def test_what_it_said_last_holds_while_it_does_not_answer_and_ends_with_its_socket(root: Path) -> None:
    of = Exporter()
    with exporter(root, state("0000:19:00.0", "unhealthy")):
        assert of.unhealthy(Roots(root)) == {"0000:19:00.0"}
    (root / SOCKET).touch()
    assert of.unhealthy(Roots(root)) == {"0000:19:00.0"}
    (root / SOCKET).unlink()
    assert of.unhealthy(Roots(root)) == frozenset()


@pytest.mark.parametrize("answer", [b"\xff\xff", field(1, b"\xff"), b"x" * 4096])
def test_an_answer_that_is_none_changes_nothing(root: Path, answer: bytes) -> None:
    with exporter(root, answer):
        assert Exporter().unhealthy(Roots(root)) == frozenset()


def test_one_that_hangs_keeps_the_probe_no_longer_than_its_limit(root: Path) -> None:
    going_on = threading.Event()

    def hang(_request: Any, _context: Any) -> bytes:
        going_on.wait(60)
        return b""

    with exporter(root, hang):
        assert Exporter().unhealthy(Roots(root)) == frozenset()
        going_on.set()
