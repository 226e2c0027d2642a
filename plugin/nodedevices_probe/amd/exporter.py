"""Health of GPUs by AMD's device metrics exporter, on nodes where it runs.

It watches more than sysfs shows (fields of the GPU's firmware), every 30 s, and serves the result on a unix socket:
metricssvc.proto of ROCm's device-metrics-exporter, `MetricsService.List`. gRPC is loaded only where the socket is, and
an exporter that hangs is not waited for. One that no longer answers is being restarted, most likely: what it said last
holds, until its socket is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
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
    _calls: BoundedReads[frozenset[str]] = field(default_factory=lambda: BoundedReads(seconds=2 * CALL_SECONDS))
    _last: frozenset[str] = frozenset()

    def unhealthy(self, roots: Roots) -> frozenset[str]:
        """The PCI addresses of GPUs that it calls unhealthy; none where it does not run."""
        if not roots.exists(SOCKET):
            self._last = frozenset()
        elif (said := self._calls.read({SOCKET: partial(self._list, roots.place(SOCKET))})[SOCKET]) is not None:
            self._last = said
        return self._last

    def _list(self, socket: Path) -> frozenset[str]:
        import grpc  # noqa: PLC0415 - some 20 MiB, for nodes that have the exporter

        options = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0)]
        try:
            with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
                call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)
                raw = call(b"", timeout=CALL_SECONDS)
            response = _response().FromString(raw)
        except Exception:  # a call's own errors, and bytes that are no such message
            return self._last
        return frozenset(gpu.Device.lower() for gpu in response.GPUState if gpu.Health.lower() == UNHEALTHY)


# The fields that are read here.
_MESSAGES = """
name: "nodedevices/metricssvc.proto" package: "metricssvc" syntax: "proto3"
message_type {
  name: "GPUState"
  field { name: "Health" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "Device" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "GPUStateResponse"
  field {
    name: "GPUState" number: 1 type: TYPE_MESSAGE type_name: ".metricssvc.GPUState" label: LABEL_REPEATED
  }
}
"""


@cache
def _response() -> Any:
    """The message GPUStateResponse."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # noqa: PLC0415 - as above

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("metricssvc.GPUStateResponse"))
