"""The extender's metrics. Names and labels are part of what users build alerts on; label values are closed sets."""

from __future__ import annotations

from nodedevices_common import __version__
from nodedevices_common.metrics import Exposition, counter, gauge, histogram, rows

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)  # seconds; the target is 0.1


class ExtenderMetrics(Exposition):
    build_info = gauge("nodedevices_extender_build_info", "Version of the extender.", "version")
    requests = counter(
        "nodedevices_extender_requests_total",
        "Total requests (`filter`, `prioritize`, `inspect`). If `filter` does not grow while pods with shares of "
        "memory are scheduled, the scheduler does not call.",
        "verb code",
    )
    seconds = histogram(
        "nodedevices_extender_request_seconds",
        "Time from a complete request to its answer; `filter` includes the wait for pods that are being bound.",
        "verb",
        buckets=_BUCKETS,
    )
    nodes = counter(
        "nodedevices_extender_filtered_nodes_total",
        "Total filtered nodes: `passed`, `unknown` (passed without current data), `failed`, or `unresolvable` (no "
        "pod's end would make room).",
        "result",
    )
    api_requests = counter(
        "nodedevices_extender_api_requests_total",
        "Total requests to the API server, including starts of watches; code `0`: no answer.",
        "verb resource code",
    )
    ready = gauge(
        "nodedevices_extender_ready",
        "Whether `/readyz` answers ok: everything is listed and watched. If not, every node passes.",
    )
    age = gauge(
        "nodedevices_extender_cache_age_seconds",
        "Time since the API server last sent anything of this kind; a watch does every minute. After 180 s every node "
        "passes.",
        "kind",
    )
    objects = gauge(
        "nodedevices_extender_cache_objects",
        "Number of cached NodeDevices, and of bound pods that request a resource shared by memory.",
        "kind",
    )
    lists = gauge(
        "nodedevices_extender_cache_lists",
        "Number of LISTs: at the start, when a watch cannot continue, and of pods for each new resource shared by "
        "memory.",
        "kind",
    )

    def __init__(self) -> None:
        super().__init__()
        self.build_info.labels(__version__).set(1)

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server has ended, or a watch has begun."""
        self.api_requests.labels(verb, resource, str(code)).inc()


ROWS = rows(vars(ExtenderMetrics).values())  # for docs/metrics.md
