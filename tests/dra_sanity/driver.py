"""A DRA driver as a kubelet meets it: a registration socket in a folder, and the socket that it names.

As pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra of Kubernetes 1.37.2 call them, with their deadlines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from nodedevices_plugin.kubelet.api import dra_v1_pb2 as dra, pluginregistration_v1_pb2 as registration

REGISTRATION = "pluginregistration.Registration"
SERVICES = {  # by the version that a driver supports, as kubelets prefer them
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
HEALTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # the service's name is the version
INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
CALL_SECONDS = 45.0


class NoDriverError(Exception):
    """There is no driver to check; the text says why."""


@dataclass(frozen=True)
class Claim:
    """A claim, as a kubelet names it in its calls."""

    namespace: str
    name: str
    uid: str

    @property
    def named(self) -> dra.Claim:
        return dra.Claim(namespace=self.namespace, name=self.name, uid=self.uid)


@dataclass(frozen=True)
class Driver:
    """`registry`: the folder plugins_registry. `name`: of the driver; empty: the only one that is there."""

    registry: Path
    name: str = ""

    @property
    def socket(self) -> Path:
        """The registration socket. A kubelet takes no name that begins with a dot."""
        sockets = [path for path in sorted(self.registry.glob("[!.]*")) if path.is_socket()]
        found = [path for path in sockets if not self.name or path.name.startswith(f"{self.name}-")]
        if len(found) != 1:
            there = ", ".join(path.name for path in sockets) or "none"
            raise NoDriverError(f"{self.registry}: one registration socket is needed (--driver); there is {there}")
        return found[0]

    def info(self) -> registration.PluginInfo:
        found: registration.PluginInfo = _call(
            self.socket,
            f"/{REGISTRATION}/GetInfo",
            registration.InfoRequest().SerializeToString(),
            registration.PluginInfo.FromString,
            INFO_SECONDS,
        )
        return found

    def notify(self, *, registered: bool, error: str = "") -> None:
        status = registration.RegistrationStatus(plugin_registered=registered, error=error)
        answered = registration.RegistrationStatusResponse.FromString
        method = f"/{REGISTRATION}/NotifyRegistrationStatus"
        _call(self.socket, method, status.SerializeToString(), answered, NOTIFY_SECONDS)

    def prepare(self, *claims: Claim) -> Mapping[str, dra.NodePrepareResourceResponse]:
        request = dra.NodePrepareResourcesRequest(claims=[claim.named for claim in claims])
        answer = self.raw("NodePrepareResources", request.SerializeToString(), dra.NodePrepareResourcesResponse)
        return dict(answer.claims)

    def unprepare(self, *claims: Claim) -> Mapping[str, dra.NodeUnprepareResourceResponse]:
        request = dra.NodeUnprepareResourcesRequest(claims=[claim.named for claim in claims])
        answer = self.raw("NodeUnprepareResources", request.SerializeToString(), dra.NodeUnprepareResourcesResponse)
        return dict(answer.claims)

    def raw(self, method: str, request: bytes, answer: Any = dra.NodePrepareResourcesResponse) -> Any:
        """The answer to these bytes. Raises grpc.RpcError."""
        info = self.info()
        service = next(name for version, name in SERVICES.items() if version in info.supported_versions)
        return _call(Path(info.endpoint), f"/{service}/{method}", request, answer.FromString, CALL_SECONDS)

    def health(self, service: str, seconds: float) -> bytes:
        """The first message of the stream, undecoded. Raises grpc.RpcError."""
        with _channel(Path(self.info().endpoint)) as channel:
            watch: Any = channel.unary_stream(f"/{service}/NodeWatchResources")
            first: bytes = next(iter(watch(b"", timeout=seconds, wait_for_ready=True)))
            return first


@contextlib.contextmanager
def _channel(path: Path) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        yield channel


def _call(path: Path, method: str, request: bytes, read: Callable[[bytes], Any], seconds: float) -> Any:
    with _channel(path) as channel:
        ask: Any = channel.unary_unary(method, response_deserializer=read)
        return ask(request, timeout=seconds, wait_for_ready=True)
