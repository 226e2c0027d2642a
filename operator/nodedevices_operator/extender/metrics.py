"""The extender's metrics. Names and labels are part of what users build alerts on; label values are closed sets."""

from __future__ import annotations

from nodedevices_common import __version__
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "nodedevices_extender"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)  # seconds; the target is 0.1


class Metrics:
    """One registry for each extender, so that several can be in one process (tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        info = Gauge(f"{PREFIX}_build_info", "Version of the extender.", ["version"], registry=own)
        info.labels(__version__).set(1)
        self.requests = Counter(
            f"{PREFIX}_requests",
            "Total requests, by verb (filter, prioritize, inspect) and HTTP status.",
            ["verb", "code"],
            registry=own,
        )
        self.seconds = Histogram(
            f"{PREFIX}_request_seconds",
            "Time from a complete request to its answer, by verb.",
            ["verb"],
            buckets=_BUCKETS,
            registry=own,
        )
        self.nodes = Counter(
            f"{PREFIX}_filtered_nodes",
            "Total nodes that were filtered, by result: passed, unknown (passed, since nothing current is known of "
            "them), failed, unresolvable.",
            ["result"],
            registry=own,
        )
        self.api_requests = Counter(
            f"{PREFIX}_api_requests",
            "Total requests to the API server, by verb, resource and HTTP status; 0: no answer.",
            ["verb", "resource", "code"],
            registry=own,
        )
        self.ready = Gauge(f"{PREFIX}_ready", "1 while /readyz answers ok: all is listed and watched.", registry=own)
        self.age = Gauge(
            f"{PREFIX}_cache_age_seconds",
            "Time since the API server was last heard of for this kind; a watch is heard of every minute.",
            ["kind"],
            registry=own,
        )
        self.objects = Gauge(f"{PREFIX}_cache_objects", "Objects in the cache, by kind.", ["kind"], registry=own)
        self.lists = Gauge(
            f"{PREFIX}_cache_lists", "How often everything of this kind was listed.", ["kind"], registry=own
        )

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server has ended, or a watch has begun."""
        self.api_requests.labels(verb, resource, str(code)).inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
