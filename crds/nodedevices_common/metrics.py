"""A program's metrics. A row says once what a metric is: a registry and the tables of docs/metrics.md are made of rows.

A row's text is Markdown as that page has it, with links relative to docs/; HELP has the same without the marks. What is
counted as it happens are attributes of a class:

    class Metrics(Exposition):
        requests = counter("nodedevices_x_requests_total", "Total requests, by verb and code.", "verb code")

    Metrics().requests.labels("get", "200").inc()

What is read at each scrape are samples, each of a row (`families`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from nodedevices_common.text import plain

# One more series for each counter and histogram, which Prometheus does not need.
disable_created_metrics()  # type: ignore[no-untyped-call]

M = TypeVar("M", Counter, Gauge, Histogram)


class MetricRow(Generic[M]):
    """Description of a metric. Of a class it is a row, of an instance of that class the metric itself (Exposition)."""

    HEAD: ClassVar = ("metric", "type", "labels", "what")

    def __init__(self, kind: type[M], name: str, text: str, labels: str, buckets: tuple[float, ...] = ()) -> None:
        self.kind: type[M] = kind
        self.name = name
        self.text = text
        self.labels = tuple(labels.split())
        self.buckets = buckets

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Exposition, owner: type) -> M: ...
    def __get__(self, instance: Exposition | None, owner: type) -> Any:
        return self  # an object's own attribute hides it

    @property
    def help(self) -> str:
        return plain(self.text)

    def registered(self, registry: CollectorRegistry) -> M:
        own: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        return self.kind(self.name, self.help, self.labels, registry=registry, **own)

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line of the page."""
        labels = " ".join(f"`{label}`" for label in self.labels)
        return f"`{self.name}`", self.kind.__name__.lower(), labels, self.text


AnyRow: TypeAlias = MetricRow[Counter] | MetricRow[Gauge] | MetricRow[Histogram]
SampleRow: TypeAlias = MetricRow[Counter] | MetricRow[Gauge]
Sample: TypeAlias = tuple[SampleRow, Sequence[str], float]


def counter(name: str, text: str, labels: str = "") -> MetricRow[Counter]:
    """`labels`: separated by spaces."""
    return MetricRow(Counter, name, text, labels)


def gauge(name: str, text: str, labels: str = "") -> MetricRow[Gauge]:
    return MetricRow(Gauge, name, text, labels)


def histogram(name: str, text: str, labels: str = "", *, buckets: tuple[float, ...]) -> MetricRow[Histogram]:
    return MetricRow(Histogram, name, text, labels, buckets)


def rows(attributes: Iterable[object]) -> tuple[AnyRow, ...]:
    """Return the rows among the attributes of a module or a class, by name: a table of docs/metrics.md."""
    return tuple(
        sorted((attribute for attribute in attributes if isinstance(attribute, MetricRow)), key=lambda row: row.name)
    )


class Exposition:
    """A registry with the metrics that the class has as rows; each object has its own, so that several can be in one
    process (tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for name, row in vars(type(self)).items():
            if isinstance(row, MetricRow):
                vars(self)[name] = row.registered(self.registry)

    def render(self) -> bytes:
        """Return the text exposition format."""
        return generate_latest(self.registry)


def families(samples: Iterable[Sample]) -> Iterator[Metric]:
    """Return the samples by metric, for a collector; a metric without samples is not among them."""
    found: dict[AnyRow, Metric] = {}
    for row, labels, value in samples:
        family = found.get(row)
        if family is None:
            kind = CounterMetricFamily if row.kind is Counter else GaugeMetricFamily
            family = found[row] = kind(row.name, row.help, labels=row.labels)
        family.add_sample(row.name, dict(zip(row.labels, labels, strict=True)), value)
    yield from found.values()
