"""What a dashboard is made of: rows of panels, each with its queries, as data.

A panel is one line of a board (`boards/`): a title, what it answers, PromQL, a unit. Queries do not name the cluster or
what else the board is narrowed to: `promql.scoped` adds those matchers to every metric that has the label. Grafana's
JSON (`grafana`) is made of this.

An answer may be empty only where `empty` says why that is as it should be; a test runs every query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

HEADINGS = {"uuid": "Id", "pci_bus_id": "PCI", "numa_node": "NUMA", "cuda_version": "CUDA", "alertname": "Alert"}


class Kind(StrEnum):
    """Panels of Grafana's schema, by their type there."""

    STAT = "stat"
    LINES = "timeseries"
    TABLE = "table"
    TIMELINE = "state-timeline"


class Unit(StrEnum):
    """Grafana's names of units."""

    COUNT = "short"
    SHARE = "percentunit"  # 0 to 1
    SECONDS = "s"
    PER_SECOND = "cps"
    AGO = "dateTimeFromNow"  # Unix time in milliseconds
    BYTES = "bytes"
    CELSIUS = "celsius"
    WATTS = "watt"
    HERTZ = "hertz"


class Colour(StrEnum):
    GREEN = "green"
    YELLOW = "yellow"
    ORANGE = "orange"
    RED = "red"
    BLUE = "blue"
    PURPLE = "purple"
    GREY = "#9fa7b3"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    name: str = ""  # of its series, with {{label}}; of its column, in a table
    unit: Unit | None = None  # of its column, where it differs from the panel's


@dataclass(frozen=True, slots=True)
class State:
    """What a value of a timeline means."""

    value: int
    text: str
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    about: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: Unit = Unit.COUNT
    width: int
    height: int
    stacked: bool = False
    colours: Mapping[str, Colour] = field(default_factory=dict)  # of series, by name
    labels: tuple[str, ...] = ()  # a table's columns before those of its queries
    above: Mapping[float, Colour] = field(default_factory=dict)  # the colour from a value on; below all it is green
    states: tuple[State, ...] = ()
    alerts: tuple[str, ...] = ()  # whose runbooks the panel links to
    empty: str = ""  # why an empty answer is as it should be


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board. `several`: any number of them, all by default, also series without the label."""

    name: str
    label: str
    query: str
    several: bool = False


CLUSTER = Variable("cluster", "Cluster", "label_values(nodedevices_build_info, cluster)", several=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    name: str  # of its file
    title: str
    about: str
    rows: Mapping[str, Sequence[Panel]]
    variables: tuple[Variable, ...] = (CLUSTER,)

    @property
    def uid(self) -> str:
        return f"nodedevices-{self.name}"

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for panels in self.rows.values() for panel in panels)


def stat(
    title: str,
    about: str,
    expr: str,
    *,
    unit: Unit = Unit.COUNT,
    above: Mapping[float, Colour] | None = None,
    alerts: Sequence[str] = (),
) -> Panel:
    """One number."""
    return Panel(
        title=title,
        about=about,
        kind=Kind.STAT,
        queries=(Query(expr),),
        unit=unit,
        width=4,
        height=4,
        above=above or {},
        alerts=tuple(alerts),
    )


def lines(
    title: str,
    about: str,
    queries: Mapping[str, str],
    *,
    unit: Unit = Unit.COUNT,
    stacked: bool = False,
    colours: Mapping[str, Colour] | None = None,
    width: int = 12,
    alerts: Sequence[str] = (),
    empty: str = "",
) -> Panel:
    """Series over time; `queries`: the name of a query's series -> PromQL."""
    return Panel(
        title=title,
        about=about,
        kind=Kind.LINES,
        queries=tuple(Query(expr, name) for name, expr in queries.items()),
        unit=unit,
        width=width,
        height=8,
        stacked=stacked,
        colours=colours or {},
        alerts=tuple(alerts),
        empty=empty,
    )


def table(
    title: str,
    about: str,
    labels: str,
    values: Mapping[str, str | tuple[str, Unit]] | None = None,
    *,
    rows: Sequence[str] = (),
    width: int = 12,
    height: int = 8,
    alerts: Sequence[str] = (),
    empty: str = "",
) -> Panel:
    """What holds now. `labels`: the first columns; `values`: heading of a further column -> PromQL, with its unit;
    `rows`: PromQL whose labels alone are shown."""
    queries = [("", (each, Unit.COUNT)) for each in rows]
    queries += [
        (name, each if isinstance(each, tuple) else (each, Unit.COUNT)) for name, each in (values or {}).items()
    ]
    return Panel(
        title=title,
        about=about,
        kind=Kind.TABLE,
        queries=tuple(Query(expr, name, unit) for name, (expr, unit) in queries),
        width=width,
        height=height,
        labels=tuple(labels.split()),
        alerts=tuple(alerts),
        empty=empty,
    )


def timeline(
    title: str,
    about: str,
    name: str,
    expr: str,
    states: Sequence[State],
    *,
    width: int = 24,
    alerts: Sequence[str] = (),
) -> Panel:
    """A bar for each series, coloured by its state."""
    return Panel(
        title=title,
        about=about,
        kind=Kind.TIMELINE,
        queries=(Query(expr, name),),
        width=width,
        height=8,
        states=tuple(states),
        alerts=tuple(alerts),
    )


def heading(label: str) -> str:
    """Return what stands above a label's column."""
    return HEADINGS.get(label) or label.replace("_", " ").capitalize()
