"""PromQL for dashboards: which metrics there are, which labels a scrape gives them, and the matchers of a board.

A series of an agent has the labels of its row (docs/metrics.md) and those of the scrape, of which `node` is one;
series of the operator have `node` only where the row says so. What names a pod means the pod that holds a device:
`honorLabels` is needed for that (docs/alerts.md). A metric that no row describes is an error.

Gauges are taken by `each`: the same thing scraped twice, or of two pods while one replaces the other, counts once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dashboards.description import Board, Variable
from nodedevices_common.metrics import AnyRow
from nodedevices_operator import metrics as operator
from nodedevices_plugin.status import metrics as agent
from nodedevices_plugin.status.samples import TELEMETRY_ROWS

AGENT: dict[str, AnyRow] = {row.name: row for row in (*agent.ROWS, *TELEMETRY_ROWS)}
OPERATOR: dict[str, AnyRow] = {row.name: row for row in operator.ROWS}
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}  # of both, by prometheus_client
DEVICE = ("index", "uuid")
HOLDER = (*DEVICE, "resource", "namespace", "pod", "container")
SAME_DEVICE = "on (cluster, node, uuid)"
SAME_TARGET = "on (job, instance)"

_METRIC = re.compile(r"\b((?:nodedevices|process)_\w+)(?:\{([^}]*)\})?")
_OF_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


def each(metric: str, *labels: str, where: str = "") -> str:
    """Return the gauge of every node, once, with these labels."""
    return fleet(metric, "node", *labels, where=where)


def fleet(metric: str, *labels: str, where: str = "") -> str:
    """Return the operator's gauge of every cluster, once, with these labels. A replica that stands by shows none."""
    return f"max by ({', '.join(('cluster', *labels))}) ({metric}{f'{{{where}}}' if where else ''})"


def rate(counter: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (rate({counter}[$__rate_interval]))"


def quantile(share: float, histogram: str, *labels: str) -> str:
    by = ", ".join(("le", *labels))
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket[$__rate_interval])))"


def p50_p99(histogram: str, *labels: str) -> dict[str, str]:
    """Return both quantiles, by the name of their series."""
    series = "".join(f"{{{{{label}}}}} " for label in labels)
    return {f"{series}{name}": quantile(share, histogram, *labels) for name, share in (("p50", 0.5), ("p99", 0.99))}


def row(name: str) -> AnyRow | None:
    """Return what describes the metric, or None for one of the process. KeyError: there is no such metric."""
    if name in PROCESS:
        return None
    known = AGENT | OPERATOR
    return known[name if name in known else _OF_HISTOGRAM.sub("", name)]


def metrics(expr: str) -> set[str]:
    """Return the names of the metrics in it."""
    return {found[1] for found in _METRIC.finditer(expr)}


def labels(name: str) -> set[str]:
    """Return the labels by which a board can be narrowed: a metric's own, and those that a scrape gives its target."""
    described = row(name)
    own = set(described.labels) if described is not None else set()
    return own | {"cluster"} | ({"node"} if name in AGENT or _OF_HISTOGRAM.sub("", name) in AGENT else set())


def scoped(expr: str, variables: Sequence[Variable]) -> str:
    """Return the query with the matchers of these variables on every metric that has their labels."""

    def narrowed(found: re.Match[str]) -> str:
        name, own = found[1], found[2]
        known = labels(name)
        matchers = [f'{one.name}{"=~" if one.several else "="}"${one.name}"' for one in variables if one.name in known]
        return f"{name}{{{', '.join([*matchers, *([own] if own else [])])}}}"

    return _METRIC.sub(narrowed, expr)


def queries(board: Board) -> list[str]:
    """Return every query of the board's panels, as Grafana sends it but for the values of its variables."""
    return [scoped(query.expr, board.variables) for panel in board.panels for query in panel.queries]
