"""Devices that exist by configuration, on the rig: their files as ConfigMaps, and what stands for a controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from support.cluster import SYSTEM
from support.rig_cluster import RigCluster

FUSE, TUN, KVM = "generic.nodedevices.io/fuse", "generic.nodedevices.io/tun", "devices.kubevirt.io/kvm"
PORT, POOL = "example.com/port", "virtaitech.com/gpu"
PRESETS = ("/dev/fuse", "/dev/net/tun", "/dev/kvm")
PORTS = {"/dev/ndports/port0": 3, "/dev/ndports/port7": 5}  # minor numbers: /dev/null's and /dev/zero's
MOST_FUSE, MOST_POOL = 2, 3
GENERIC = f"""
devices:
- {{preset: fuse, count: {MOST_FUSE}}}
- {{preset: tun}}
- {{preset: kvm, name: {KVM}}}
- name: {PORT}
  paths: [{{path: "/dev/ndports/port*", containerPath: "/dev/port{{{{match}}}}"}}]
  env: {{PORT: "{{{{path}}}}"}}
"""
REMOTE = """
pools:
- preset: orion
  controller: {controller}
  count: {count}
  check: {{http: "http://{controller}/", periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 2}}
"""
CONTROLLER_PORT = 9123


def nodes_to_make() -> tuple[str, ...]:
    """Device nodes that the machine, and with it each node of the rig, does not have."""
    return (*(each for each in PRESETS if not Path(each).exists()), *PORTS)


def make_port(rig: RigCluster, node: str, path: str) -> None:
    """In the place of one of another number: several names of one device are one device."""
    rig.shell(node, f"rm -f {path}; mknod -m 666 {path} c 1 {PORTS[path]}")


def controller(rig: RigCluster) -> str:
    """Where the pool's controller answers, while one runs: the machine's own address on the cluster's bridge."""
    return f"{rig.rig.rig.layout.gateway}:{CONTROLLER_PORT}"


@contextmanager
def files(rig: RigCluster, node: str, **others: str) -> Iterator[None]:
    """The ConfigMap of the component device-files, and the ports of its generic.yaml. `others`: texts of JSON files."""
    for path in PORTS:
        make_port(rig, node, path)
    own = {"generic.yaml": GENERIC, "remote.yaml": REMOTE.format(controller=controller(rig), count=MOST_POOL)}
    rig.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "nodedevices-devices", "namespace": SYSTEM},
            "data": {**own, **{f"{name}.json": text for name, text in others.items()}},
        }
    )
    try:
        yield
    finally:
        rig.kubectl.delete("configmap", "nodedevices-devices", namespace=SYSTEM)


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


class Controller:
    """Of the pool; it runs from the beginning."""

    def __init__(self, rig: RigCluster) -> None:
        self.address = controller(rig)
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def start(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._server = ThreadingHTTPServer((host, int(port)), _Answers)
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def running(rig: RigCluster) -> Iterator[Controller]:
    made = Controller(rig)
    try:
        yield made
    finally:
        made.stop()
