"""A board with the answers to its queries, as an SVG for the documentation: its panels where Grafana puts them.

Simpler than Grafana's: it shows what the panels contain, and Grafana did not draw it, as the picture itself says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from dashboards.answers import Answer, Labels
from dashboards.description import WIDTH, Board, Colour, Kind, Panel, Unit, heading

COLUMN, ROW, GAP, HEAD = 50, 26, 6, 62  # pixels
LINE, LETTER = 15, 6.2  # of the small text
TEXT, FAINT, EDGE = "#24292e", "#6a737d", "#d5d9de"
PALETTE = ("#3274d9", "#e0b400", "#37872d", "#fa6400", "#8f3bb8", "#c4162a", "#56a64b", "#1f60c4")
COLOURS = {
    Colour.GREEN: "#37872d",
    Colour.YELLOW: "#e0b400",
    Colour.ORANGE: "#fa6400",
    Colour.RED: "#c4162a",
    Colour.BLUE: "#3274d9",
    Colour.PURPLE: "#8f3bb8",
    Colour.GREY: "#c7d0d9",
}
NOTE = "Drawn from the answers of a Prometheus on simulated devices, not by Grafana."
Points = Sequence[tuple[float, float]]


def drawn(board: Board, answers: Sequence[Answer], period: tuple[float, float]) -> str:
    """Return the SVG. `period`: the time that panels over time show."""
    parts: list[str] = []
    y = HEAD
    for title, panels in board.rows.items():
        parts.append(text(GAP, y + 17, title, size=14, weight="bold"))
        y += ROW
        x = tallest = 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest * ROW, 0
            mine = [each for each in answers if each.panel is panel]
            box = (x * COLUMN, y, panel.width * COLUMN - GAP, panel.height * ROW - GAP)
            parts.append(f'<svg x="{box[0]}" y="{box[1]}" width="{box[2]}" height="{box[3]}">')
            parts += framed(panel, mine, box[2], box[3], period)
            parts.append("</svg>")
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest * ROW
    width = WIDTH * COLUMN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(board.title)}</title>",
        f'<rect width="{width}" height="{y}" fill="#f7f8fa"/>',
        text(GAP, 24, board.title, size=18, weight="bold"),
        text(GAP, 46, f"{board.about} {NOTE}", colour=FAINT),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def framed(
    panel: Panel, answers: Sequence[Answer], width: int, height: int, period: tuple[float, float]
) -> Iterator[str]:
    yield f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="3" fill="#fff" stroke="{EDGE}"/>'
    yield text(8, 17, panel.title, weight="bold")
    if not any(each.series for each in answers):
        yield text(width / 2, height / 2, panel.empty or "no answer", anchor="middle", colour=FAINT)
        return
    match panel.kind:
        case Kind.STAT:
            yield from stat(panel, answers, width, height)
        case Kind.TABLE:
            yield from table(panel, answers, width, height)
        case Kind.LINES:
            yield from lines(panel, answers, width, height, period)
        case Kind.TIMELINE:
            yield from timeline(panel, answers, width, height, period)


def stat(panel: Panel, answers: Sequence[Answer], width: int, height: int) -> Iterator[str]:
    value = next(points[-1][1] for points in answers[0].series.values() if points)
    colour = Colour.GREEN
    for least, above in panel.above.items():
        colour = above if value >= least else colour
    yield text(width / 2, height / 2 + 18, shown(value, panel.unit), size=28, anchor="middle", colour=COLOURS[colour])


def table(panel: Panel, answers: Sequence[Answer], width: int, height: int) -> Iterator[str]:
    named = [each for each in answers if each.query.name]
    heads = [*map(heading, panel.labels), *(each.query.name for each in named)]
    cells = [
        [*(row.get(label, "") for label in panel.labels), *(row.get(f"#{each.query.name}", "") for each in named)]
        for row in joined(answers)
    ]
    longest = [max(len(each) for each in column) + 2 for column in zip(heads, *cells, strict=True)]
    starts = [8 + (width - 16) * sum(longest[:number]) / sum(longest) for number in range(len(heads))]
    room = [int((end - start) / LETTER) for start, end in zip(starts, [*starts[1:], width], strict=True)]
    for number, row in enumerate([heads, *cells]):
        y = 36 + number * LINE
        if y > height - 6:
            break
        for start, letters, cell in zip(starts, room, row, strict=True):
            yield text(start, y, short(cell, letters), colour=TEXT if number else FAINT)


def joined(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """Rows of what agrees in the labels that both have, as Grafana's transformation `merge` makes them."""
    rows: list[dict[str, str]] = []
    for answer in answers:
        for labels, points in answer.series.items():
            value = shown(points[-1][1], answer.query.unit or Unit.COUNT) if points else "unknown"
            row = dict(labels) | {f"#{answer.query.name}": value}
            same = [one for one in rows if all(one.get(label, word) == word for label, word in labels)]
            for one in same:
                one.update(row)
            if not same:
                rows.append(row)
    return sorted(rows, key=lambda row: [natural(row.get(label, "")) for label in answers[0].panel.labels])


def lines(
    panel: Panel, answers: Sequence[Answer], width: int, height: int, period: tuple[float, float]
) -> Iterator[str]:
    given = [(name(each, labels), points) for each in answers for labels, points in each.series.items() if points]
    series: list[tuple[str, Points]] = [*(stacked(given) if panel.stacked else given)]
    top = max([value for _, points in series for _, value in points], default=0.0) or 1.0
    left, right, above, below = 56, width - 10, 28, height - 34
    for share in (0.0, 0.5, 1.0):
        y = below - share * (below - above)
        yield f'<path d="M{left} {y:.0f}H{right}" stroke="{EDGE}"/>'
        yield text(left - 4, y + 4, shown(share * top, panel.unit), anchor="end", colour=FAINT)
    scale = Scale(period, (left, right), top, (below, above))
    colours = [
        COLOURS[panel.colours[one]] if one in panel.colours else PALETTE[number % len(PALETTE)]
        for number, (one, _) in enumerate(series)
    ]
    for colour, (_, points) in reversed([*zip(colours, series, strict=True)]):
        path = scale.path(points)
        if panel.stacked:
            first, last = scale.x(points[0][0]), scale.x(points[-1][0])
            yield f'<path d="{path}L{last} {below}L{first} {below}Z" fill="{colour}"/>'
        else:
            yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    yield from legend([(one, colour) for colour, (one, _) in zip(colours, series, strict=True)], width, height)


def stacked(series: Iterable[tuple[str, Points]]) -> Iterator[tuple[str, Points]]:
    """Each on those before it."""
    below: dict[float, float] = {}
    for one, points in series:
        raised = [(when, value + below.get(when, 0.0)) for when, value in points]
        below |= dict(raised)
        yield one, raised


def timeline(
    panel: Panel, answers: Sequence[Answer], width: int, height: int, period: tuple[float, float]
) -> Iterator[str]:
    series = sorted(
        ((name(answers[0], labels), points) for labels, points in answers[0].series.items()),
        key=lambda each: natural(each[0]),
    )
    states = {each.value: each for each in panel.states}
    left, right = 90, width - 10
    room = (height - 54) / len(series)
    scale = Scale(period, (left, right), 1.0, (0, 0))
    for number, (one, points) in enumerate(series):
        y = 26 + number * room
        yield text(left - 6, y + room / 2 + 4, one, anchor="end", colour=FAINT)
        changes = [
            point
            for before, point in zip([None, *points], points, strict=False)
            if before is None or before[1] != point[1]
        ]
        for (when, value), end in zip(changes, [*(each[0] for each in changes[1:]), period[1]], strict=True):
            x = scale.x(when)
            colour = COLOURS[states[int(value)].colour]
            yield f'<rect x="{x}" y="{y:.1f}" width="{scale.x(end) - x}" height="{room - 2:.1f}" fill="{colour}"/>'
    yield from legend([(each.text, COLOURS[each.colour]) for each in panel.states], width, height)


class Scale:
    """Time and value to pixels."""

    def __init__(self, period: tuple[float, float], xs: tuple[int, int], top: float, ys: tuple[int, int]) -> None:
        self._period, self._xs, self._top, self._ys = period, xs, top, ys

    def x(self, when: float) -> int:
        share = (when - self._period[0]) / (self._period[1] - self._period[0])
        return round(self._xs[0] + share * (self._xs[1] - self._xs[0]))

    def y(self, value: float) -> int:
        return round(self._ys[0] + value / self._top * (self._ys[1] - self._ys[0]))

    def path(self, points: Points) -> str:
        """Without points that change nothing."""
        pixels = [(self.x(when), self.y(value)) for when, value in points]
        kept = [
            pixel
            for before, pixel, after in zip([None, *pixels], pixels, [*pixels[1:], None], strict=False)
            if before is None or after is None or not before[1] == pixel[1] == after[1]
        ]
        return "M" + "L".join(f"{x} {y}" for x, y in kept)


def legend(entries: Sequence[tuple[str, str]], width: int, height: int) -> Iterator[str]:
    x: float = 10
    for one, colour in entries:
        needed = 22 + LETTER * len(one)
        if x + needed > width:
            yield text(x, height - 8, "...", colour=FAINT)
            return
        yield f'<rect x="{x:.0f}" y="{height - 14}" width="8" height="3" fill="{colour}"/>'
        yield text(x + 12, height - 8, one, colour=FAINT)
        x += needed


def name(answer: Answer, labels: Labels) -> str:
    """Of a series, as Grafana's legend has it."""
    known = dict(labels)
    return re.sub(r"{{(\w+)}}", lambda found: known.get(found[1], ""), answer.query.name)


def natural(words: str) -> list[tuple[int, str]]:
    """For sorting: gpu-10 after gpu-9."""
    return [(int(each), "") if each.isdigit() else (-1, each) for each in re.split(r"(\d+)", words)]


def shown(value: float, unit: Unit) -> str:
    """A value with its unit, about as Grafana writes it."""
    match unit:
        case Unit.SHARE:
            return f"{value:.0%}"
        case Unit.SECONDS:
            return scaled(value, {1.0: "s", 1e-3: "ms", 1e-6: "µs"}) if value < 120 else f"{value / 60:.0f} min"
        case Unit.AGO:
            return f"{shown(time.time() - value / 1000, Unit.SECONDS)} ago"
        case Unit.BYTES:
            return scaled(value, {2**30: "GiB", 2**20: "MiB", 1.0: "B"})
        case Unit.HERTZ:
            return scaled(value, {1e9: "GHz", 1e6: "MHz"})
        case Unit.CELSIUS:
            return f"{value:.3g} °C"
        case Unit.WATTS:
            return f"{value:.3g} W"
        case Unit.PER_SECOND:
            return f"{value:.2g}/s"
        case _:
            return f"{value:.3g}"


def scaled(value: float, units: Mapping[float, str]) -> str:
    size, unit = next(
        ((size, unit) for size, unit in units.items() if abs(value) >= size), (1.0, "" if value == 0 else "?")
    )
    return f"{value / size:.3g} {unit}".strip()


def short(words: str, letters: int) -> str:
    return words if len(words) <= letters else words[: max(letters - 1, 1)] + "…"


def text(
    x: float, y: float, words: str, *, size: int = 11, weight: str = "", anchor: str = "", colour: str = TEXT
) -> str:
    more = f' font-size="{size}"' if size != 11 else ""
    more += f' font-weight="{weight}"' if weight else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}"{more}>{escape(words)}</text>'
