"""A small device plugin in the role of the vendor's: a separate program, which knows nothing of ours.

    python3 vendorplugin.py --ids GPU-a,GPU-b [--replicas 4] [--resource nvidia.com/gpu] [--unhealthy FILE] [--fails]

It behaves as NVIDIA's v0.20.0 does where that matters beside another plugin: always the same socket name, whole list
first, registers again only when a new kubelet.sock appears and never when its stream ends, answers Allocate with
NVIDIA_VISIBLE_DEVICES by UUID, removes its socket when it is terminated. Ids in FILE (one a line) are Unhealthy; the
file is looked at all the time. One JSON line on standard output for each thing that happens.

It stands alone, Python and grpcio, so that it can be sent as text (`python3 -c`) into a pod of any image that has both;
its few messages are written and read by hand, so that nothing of what is tested takes part in testing it.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

LOOK_SECONDS = 0.1
RETRY_SECONDS = 1.0


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


# --- protobuf, as much as is needed: https://protobuf.dev/programming-guides/encoding --------------------------------
def number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(which: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return number(which << 3 | 2) + number(len(data)) + data


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the length-delimited fields; numbers are left out."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        size, at = varint(data, at)
        if key & 7 == 0:
            continue
        yield key >> 3, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


# --- the plugin ------------------------------------------------------------------------------------------------------
class VendorPlugin:
    def __init__(self, resource: str, ids: list[str], folder: Path, unhealthy: Path | None, fails: bool) -> None:
        self.fails = fails
        self.resource = resource
        self.ids = ids
        self.folder = folder
        self.kubelet = folder / "kubelet.sock"
        self.socket = folder / f"nvidia-{resource.rpartition('/')[2]}.sock"
        self.unhealthy = unhealthy
        self.ending = threading.Event()
        self.server: grpc.Server | None = None

    def run(self) -> None:
        """Until it is terminated: serve and register, again for each kubelet."""
        known: object = None
        while not self.ending.wait(LOOK_SECONDS):
            kubelet = self.identity()
            if kubelet is None or kubelet == known:
                continue
            try:
                self.serve()
                self.register()
            except (grpc.RpcError, OSError, RuntimeError) as error:
                say(event="failed", why=str(error)[:300])
                self.ending.wait(RETRY_SECONDS)
                continue
            known = kubelet
            say(event="registered", resource=self.resource, ids=len(self.ids))
        if self.server is not None:
            self.server.stop(None).wait()
        self.socket.unlink(missing_ok=True)
        say(event="ended")

    def identity(self) -> object:
        try:
            found = self.kubelet.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_ctime_ns)

    def serve(self) -> None:
        if self.server is not None:
            self.server.stop(None).wait()
        self.socket.unlink(missing_ok=True)
        unary = grpc.unary_unary_rpc_method_handler
        server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        handlers: dict[str, Any] = {
            "GetDevicePluginOptions": unary(self.options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch),
            "Allocate": unary(self.allocate),
            "GetPreferredAllocation": unary(self.prefer),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self.server = server

    def register(self) -> None:
        """RegisterRequest: version = 1, endpoint = 2, resource_name = 3."""
        request = field(1, "v1beta1") + field(2, self.socket.name) + field(3, self.resource)
        with grpc.insecure_channel(f"unix:{self.kubelet}") as channel:
            call: Any = channel.unary_unary("/v1beta1.Registration/Register")
            call(request, timeout=20)

    def options(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        if self.fails:
            context.abort(grpc.StatusCode.INTERNAL, "it is not ready")
        return b""

    def list_and_watch(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """ListAndWatchResponse: devices = 1 {ID = 1, health = 2}. Sent whole, and again when a health changes."""
        sent: frozenset[str] | None = None
        while context.is_active() and not self.ending.is_set():
            bad = self.bad()
            if bad != sent:
                yield b"".join(
                    field(1, field(1, each) + field(2, "Unhealthy" if each in bad else "Healthy")) for each in self.ids
                )
                sent = bad
            self.ending.wait(LOOK_SECONDS)

    def bad(self) -> frozenset[str]:
        if self.unhealthy is None or not self.unhealthy.exists():
            return frozenset()
        return frozenset(self.unhealthy.read_text().split())

    def allocate(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        """container_requests = 1 {devices_ids = 1} -> container_responses = 1 {envs = 1 {key = 1, value = 2}}."""
        answer = b""
        for which, container in fields(request):
            ids = [value.decode() for at, value in fields(container) if which == 1 and at == 1]
            visible = ",".join(dict.fromkeys(each.partition("::")[0] for each in ids))
            envs = {"NVIDIA_VISIBLE_DEVICES": visible, "ALLOCATED_BY": "vendor"}
            answer += field(1, b"".join(field(1, field(1, key) + field(2, value)) for key, value in envs.items()))
            say(event="allocated", ids=ids)
        return answer

    def prefer(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        """container_requests = 1 {available = 1} -> container_responses = 1 {deviceIDs = 1}: one of its own."""
        answer = b""
        for _, container in fields(request):
            known = [value for at, value in fields(container) if at == 1 and value.decode() in self.ids]
            answer += field(1, b"".join(field(1, each) for each in known[:1]))
        return answer


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resource", default="nvidia.com/gpu")
    parser.add_argument("--ids", required=True, help="comma-separated")
    parser.add_argument("--replicas", type=int, default=0, help="offer each as <id>::0 ... <id>::<n-1>")
    parser.add_argument("--folder", type=Path, default=Path("/var/lib/kubelet/device-plugins"))
    parser.add_argument("--unhealthy", type=Path, help="file with the ids that are Unhealthy")
    parser.add_argument("--fails", action="store_true", help="answer GetDevicePluginOptions with an error")
    given = parser.parse_args(arguments)
    ids = given.ids.split(",")
    if given.replicas:
        ids = [f"{each}::{share}" for each in ids for share in range(given.replicas)]
    plugin = VendorPlugin(given.resource, ids, given.folder, given.unhealthy, given.fails)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: plugin.ending.set())
    plugin.run()


if __name__ == "__main__":
    main()
