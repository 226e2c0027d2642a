"""Streams the health of the pool's devices to the kubelet, which shows it in the status of pods that have them.

Read in pkg/kubelet/cm/dra of Kubernetes 1.37.2: a report is merged into what is known, and a device that is not
reported again within its time-out reads Unknown. So all devices are sent at each change, and again within the time-out.
The end of a stream makes all of them Unknown, and the kubelet opens another one after 5 seconds. Kubelets of 1.34 and
1.35 ask for none by default.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import grpc

from nodedevices_plugin.claims.slices import DeviceHealth
from nodedevices_plugin.kubelet.api import dra_health_v1_pb2 as api
from nodedevices_plugin.model import HealthState

SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # by full name; the messages are the same
TIMEOUT_SECONDS = 30
REPEAT_SECONDS = 10.0

_HEALTH = {
    HealthState.HEALTHY: api.HEALTHY,
    HealthState.DEGRADED: api.HEALTHY,  # it is offered; the message has the reason
    HealthState.UNHEALTHY: api.UNHEALTHY,
    HealthState.UNKNOWN: api.UNKNOWN,
}


class HealthStreams:
    """`show` and `serve` are for the event loop; each stream has a thread. `pool`: of this node."""

    def __init__(self, pool: str, *, repeat_seconds: float = REPEAT_SECONDS) -> None:
        self._pool = pool
        self._repeat_seconds = repeat_seconds
        self._changed = threading.Condition()
        self._serving = False
        self._shown: tuple[DeviceHealth, ...] = ()

    def show(self, devices: tuple[DeviceHealth, ...]) -> None:
        with self._changed:
            if devices != self._shown:
                self._shown = devices
                self._changed.notify_all()

    def serve(self, *, serving: bool) -> None:
        """`serving` False: end the streams, before their server waits for them."""
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch, api.NodeWatchResourcesRequest.FromString, api.NodeWatchResourcesResponse.SerializeToString
        )
        return tuple(
            grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch}) for service in SERVICES
        )

    def _watch(
        self, _request: api.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[api.NodeWatchResourcesResponse]:
        def ended() -> None:
            with self._changed:
                self._changed.notify_all()

        def over() -> bool:
            return not self._serving or not context.is_active()

        def differs(sent: tuple[DeviceHealth, ...]) -> bool:
            return over() or self._shown is not sent

        if not context.add_callback(ended):
            return  # the kubelet that called has gone
        while True:
            with self._changed:
                if over():
                    return
                shown = self._shown
            yield self._report(shown)
            with self._changed:
                self._changed.wait_for(partial(differs, shown), timeout=self._repeat_seconds)

    def _report(self, devices: tuple[DeviceHealth, ...]) -> api.NodeWatchResourcesResponse:
        now = int(time.time())
        return api.NodeWatchResourcesResponse(
            devices=[
                api.DeviceHealth(
                    device=api.DeviceIdentifier(pool_name=self._pool, device_name=device.name),
                    health=_HEALTH[device.state],
                    last_updated_time=now,
                    health_check_timeout_seconds=TIMEOUT_SECONDS,
                    message=device.reason,
                )
                for device in devices
            ]
        )
