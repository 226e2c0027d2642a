"""Health of GPUs by AMD's device metrics exporter, on nodes where it runs.

It watches more than sysfs shows (fields of the GPU's firmware), every 30 s, and serves the result on a unix socket:
metricssvc.proto of ROCm's device-metrics-exporter, `MetricsService.List`. gRPC is loaded only where the socket is, and
an exporter that hangs is not waited for. One that no longer answers is being restarted, most likely: what it said last
holds, until its socket is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.source import BoundedReads

SOCKET = "var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"
METHOD = "/metricssvc.MetricsService/List"
CALL_SECONDS = 1.0
MAX_BYTES = 1 << 20
UNHEALTHY = "unhealthy"


@dataclass(slots=True, kw_only=True)
class Exporter:
    roots: Roots
    _calls: BoundedReads[frozenset[str]] = field(default_factory=lambda: BoundedReads(seconds=2 * CALL_SECONDS))
    _last: frozenset[str] = frozenset()

    def unhealthy(self) -> frozenset[str]:
        """The PCI addresses of GPUs that it calls unhealthy; none where it does not run."""
        if not self.roots.exists(SOCKET):
            self._last = frozenset()
            return self._last
        said = self._calls.read({SOCKET: self._list})[SOCKET]
        self._last = self._last if said is None else said
        return self._last

    def _list(self) -> frozenset[str]:
        import grpc  # noqa: PLC0415 - some 20 MiB, for nodes that have the exporter

        options = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0)]
        try:
            with grpc.insecure_channel(f"unix:{self.roots.place(SOCKET)}", options=options) as channel:
                call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)
                raw = call(b"", timeout=CALL_SECONDS)
            response = _response().FromString(raw)
        except Exception:  # a call's own errors, and bytes that are no such message
            return self._last
        return frozenset(gpu.Device.lower() for gpu in response.GPUState if gpu.Health.lower() == UNHEALTHY)


@cache
def _response() -> Any:
    """The message GPUStateResponse, with the fields that are read here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - as above

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="nodedevices/metricssvc.proto", package="metricssvc", syntax="proto3"
    )
    state = file.message_type.add(name="GPUState")
    for number, name in ((3, "Health"), (5, "Device")):
        state.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    response = file.message_type.add(name="GPUStateResponse")
    response.field.add(
        name="GPUState",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".metricssvc.GPUState",
        label=field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("metricssvc.GPUStateResponse"))
