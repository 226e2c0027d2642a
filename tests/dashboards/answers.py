"""A board's queries, asked of a Prometheus as Grafana asks them: with values for what the board leaves open."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.description import Board, Kind, Panel, Query, Variable
from dashboards.promql import scoped
from support.prometheus_server import Server

ALL = ".*"
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Answer:
    panel: Panel
    query: Query
    series: Mapping[Labels, tuple[tuple[float, float], ...]]  # labels -> time and value, finite ones alone


@dataclass(frozen=True)
class Asker:
    """`values`: of the boards' variables. Panels over time show `began` to `ended`."""

    prometheus: Server
    values: Mapping[str, str]
    began: float
    ended: float
    step: float = 1.0
    rate_interval: str = "30s"  # long enough for two scrapes; Grafana takes four

    def board(self, board: Board) -> Iterator[Answer]:
        for panel in board.panels:
            for query in panel.queries:
                yield Answer(panel, query, self.series(scoped(query.expr, board.variables), panel.kind))

    def choices(self, board: Board, variable: Variable) -> list[str]:
        """What Grafana would offer for it."""
        before = board.variables[: board.variables.index(variable)]
        found = LABEL_VALUES.fullmatch(scoped(variable.query, before))
        assert found is not None, variable.query
        query = {"match[]": self.filled(found[1]), "start": str(self.began), "end": str(self.ended)}
        values: list[str] = self.prometheus.get(f"label/{found[2]}/values", **query)
        return values

    def series(self, expr: str, kind: Kind) -> dict[Labels, tuple[tuple[float, float], ...]]:
        query = self.filled(expr)
        if kind in {Kind.STAT, Kind.TABLE}:
            result = self.prometheus.get("query", query=query, time=str(self.ended))["result"]
            points = [(each["metric"], [each["value"]]) for each in result]
        else:
            period = {"start": str(self.began), "end": str(self.ended), "step": str(self.step)}
            result = self.prometheus.get("query_range", query=query, **period)["result"]
            points = [(each["metric"], each["values"]) for each in result]
        return {tuple(sorted(metric.items())): finite(values) for metric, values in points}

    def filled(self, query: str) -> str:
        """The query with the values of the variables. KeyError: it has another one."""
        known = {"__rate_interval": self.rate_interval, **self.values}
        return re.sub(r"\$(\w+)", lambda found: known[found[1]], query)


def finite(values: list[list[Any]]) -> tuple[tuple[float, float], ...]:
    pairs = ((float(when), float(value)) for when, value in values)
    return tuple((when, value) for when, value in pairs if math.isfinite(value))
