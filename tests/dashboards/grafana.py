"""A board as Grafana's JSON, by Grafana's own builders (grafana-foundation-sdk), whose types are its schema.

The data source is the board's variable; nothing is asked of Grafana but panels that it has itself. A table is one row
for what the labels of its queries have in common (transformation `merge`), with headings in the place of labels.
"""

from __future__ import annotations

from string import ascii_uppercase
from typing import TypeVar

from dashboards.description import Board, Colour, Kind, Panel, Query, Variable, heading
from dashboards.promql import scoped
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as types, dashboard as models, prometheus as query_types

RUNBOOKS = "https://nodedevices.example.com/runbooks"  # as in the alerts: docs/alerts.md says how to put another there
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "nodedevices"
POINTS = 500  # of a series: of 40,000 devices that is less than Prometheus reads for a query (50 million samples)
LINE_OPACITY, STACK_OPACITY = 10, 40
HIDDEN = (
    "cluster",
    "node",
    "uuid",
    "namespace",
)  # labels by which a table's queries are joined, unless they are columns of it
LINKED = {  # heading of a column -> where its values lead
    "Node": "/d/nodedevices-node?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    "&var-node=${__value.raw}",
    "Namespace": "/d/nodedevices-job-owner?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    "&var-namespace=${__value.raw}",
}

Builder = TypeVar("Builder", stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)


def text(board: Board) -> str:
    """Return the file's text."""
    made: str = JSONEncoder(sort_keys=True, indent=2).encode(_board(board).build())
    return made + "\n"


def _board(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .readonly()
        .refresh("1m")
        .time("now-6h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("NodeDevices")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for number, variable in enumerate(board.variables):
        made.with_variable(_variable(variable, board.variables[:number]))
    ids = iter(range(1, 1000))
    for title, panels in board.rows.items():
        made.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            made.with_panel(_panel(panel, board).id(next(ids)))
    return made


def _variable(variable: Variable, before: tuple[Variable, ...]) -> dashboard.QueryVariable:
    """Return the choice, among what is left by those before it."""
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(scoped(variable.query, before))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.several:
        made.multi(True).include_all(True).all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return made


def _panel(panel: Panel, board: Board) -> stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel:
    match panel.kind:
        case Kind.STAT:
            return _common(_stat(), panel, board)
        case Kind.LINES:
            return _common(_lines(panel), panel, board)
        case Kind.TABLE:
            return _common(_table(panel), panel, board)
        case Kind.TIMELINE:
            return _common(_timeline(panel), panel, board)


def _common(made: Builder, panel: Panel, board: Board) -> Builder:
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        made.with_target(_target(letter, query, panel, board))
    steps = [models.Threshold(value=None, color=Colour.GREEN)]
    steps += [models.Threshold(value=value, color=colour) for value, colour in panel.above.items()]
    made.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.alerts:
        made.links(
            [
                dashboard.DashboardLink(f"Runbook of {alert}")
                .type(models.DashboardLinkType.LINK)
                .url(f"{RUNBOOKS}/{alert}.md")
                .target_blank(True)
                for alert in panel.alerts
            ]
        )
    about = panel.about
    if panel.kind is Kind.TABLE and panel.empty:  # in a table `no value` is what single cells say
        about += f" Empty: {panel.empty}."
    elif panel.empty:
        made.no_value(panel.empty)
    return (
        made.title(panel.title)
        .description(about)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(panel.height)
    )


def _target(letter: str, query: Query, panel: Panel, board: Board) -> prometheus.Dataquery:
    made = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(scoped(query.expr, board.variables))
    match panel.kind:
        case Kind.TABLE:
            return made.instant().format(query_types.PromQueryFormat.TABLE)
        case Kind.STAT:
            return made.instant()
        case _:
            return made.range().legend_format(query.name)


def _stat() -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(types.BigValueColorMode.VALUE)
        .graph_mode(types.BigValueGraphMode.NONE)
    )


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .min(0)
        .max_data_points(POINTS)
        .fill_opacity(STACK_OPACITY if panel.stacked else LINE_OPACITY)
        .legend(
            common.VizLegendOptions()
            .display_mode(types.LegendDisplayMode.LIST)
            .placement(types.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(types.TooltipDisplayMode.MULTI).sort(types.SortOrder.DESCENDING))
    )
    for name, colour in panel.colours.items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        made.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=fixed)])
    if panel.stacked:
        made.stacking(common.StackingConfig().mode(types.StackingMode.NORMAL))
    return made


def _timeline(panel: Panel) -> statetimeline.Panel:
    options = {str(one.value): models.ValueMappingResult(text=one.text, color=one.colour) for one in panel.states}
    return (
        statetimeline.Panel()
        .max_data_points(POINTS)
        .mappings([models.ValueMap(options=options)])
        .show_value(types.VisibilityMode.NEVER)
        .merge_values(True)
        .fill_opacity(80)
        .legend(
            common.VizLegendOptions()
            .display_mode(types.LegendDisplayMode.LIST)
            .placement(types.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )


def _table(panel: Panel) -> table.Panel:
    """Return the table; Grafana calls a query's values `Value`, and `Value #A` where there are several queries."""
    letters = dict(zip(ascii_uppercase, panel.queries, strict=False))
    values = (
        {"Value": panel.queries[0]} if len(letters) == 1 else {f"Value #{one}": each for one, each in letters.items()}
    )
    hidden = ["Time", *(label for label in HIDDEN if label not in panel.labels)]
    hidden += [name for name, query in values.items() if not query.name]
    shown = {label: heading(label) for label in panel.labels}
    shown |= {name: query.name for name, query in values.items() if query.name}
    organized = {
        "excludeByName": dict.fromkeys(hidden, True),
        "includeByName": {},
        "indexByName": {name: number for number, name in enumerate(shown)},
        "renameByName": shown,
    }
    unknown = models.DashboardSpecialValueMapOptions(
        match=models.SpecialValueMatch.NA_N, result=models.ValueMappingResult(text="unknown")
    )
    made = table.Panel().show_header(True).filterable(True).mappings([models.SpecialValueMap(options=unknown)])
    if len(values) > 1:
        made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    made.with_transformation(models.DataTransformerConfig(id_val="organize", options=organized))
    for query in panel.queries:
        if query.unit is not None and query.unit is not panel.unit:
            made.override_by_name(query.name, [models.DynamicConfigValue(id_val="unit", value=query.unit)])
    for label in panel.labels:
        if (url := LINKED.get(heading(label))) is not None:
            link = {"title": f"Show this {label}", "url": url}
            made.override_by_name(heading(label), [models.DynamicConfigValue(id_val="links", value=[link])])
    return made
