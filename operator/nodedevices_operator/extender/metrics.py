"""The extender's metrics. Names and labels are part of what users build alerts on; label values are closed sets."""

from __future__ import annotations

from nodedevices_common import __version__
from nodedevices_common.metrics import Exposition, counter, gauge, histogram, rows

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)  # seconds; the target is 0.1


class ExtenderMetrics(Exposition):
    build_info = gauge("nodedevices_extender_build_info", "Version of the extender.", "version")
    requests = counter(
        "nodedevices_extender_requests_total",
        "Total requests, by verb (`filter`, `prioritize`, `inspect`) and HTTP status. Where `filter` stands still "
        "while pods with shares of memory are scheduled, the scheduler does not call.",
        "verb code",
    )
    seconds = histogram(
        "nodedevices_extender_request_seconds",
        "Time from a complete request to its answer, by verb; of `filter` with the moment that it waits for pods that "
        "are being bound.",
        "verb",
        buckets=_BUCKETS,
    )
    nodes = counter(
        "nodedevices_extender_filtered_nodes_total",
        "Total nodes that were filtered, by result: `passed`; `unknown`: passed, since nothing current is known of "
        "them; `failed`; `unresolvable`: no pod's end would make room.",
        "result",
    )
    api_requests = counter(
        "nodedevices_extender_api_requests_total",
        "Total requests to the API server, by verb, resource and HTTP status, the starts of watches among them; `0`: "
        "no answer.",
        "verb resource code",
    )
    ready = gauge(
        "nodedevices_extender_ready",
        "1 while `/readyz` answers ok: all is listed and watched. While it is 0 every node passes.",
    )
    age = gauge(
        "nodedevices_extender_cache_age_seconds",
        "Time since the API server was last heard of for this kind: a watch is heard of every minute. After 180 s "
        "every node passes.",
        "kind",
    )
    objects = gauge(
        "nodedevices_extender_cache_objects",
        "Objects in the cache, by kind: NodeDevices, and pods that are bound and request a resource shared by memory.",
        "kind",
    )
    lists = gauge(
        "nodedevices_extender_cache_lists",
        "How often everything of this kind was listed: at the start, when a watch cannot go on, and pods for each "
        "further resource that is shared by memory.",
        "kind",
    )

    def __init__(self) -> None:
        super().__init__()
        self.build_info.labels(__version__).set(1)

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server has ended, or a watch has begun."""
        self.api_requests.labels(verb, resource, str(code)).inc()


ROWS = rows(vars(ExtenderMetrics).values())  # for docs/metrics.md
