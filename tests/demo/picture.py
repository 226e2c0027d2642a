"""The picture at the top of README.md: what the demo showed, as a terminal in which command follows command.

    PICTURE=docs/demo.svg make demo

An SVG that needs no script: a browser shows the commands one after another, and all of them where nothing moves.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLUMNS = 112
LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 18, 7.8, 16  # pixels; monospace of 13 pixels
SECONDS_A_BLOCK = 2.5
STYLE = """\
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d0d7de; white-space: pre }
.step { fill: #7ee787 } .command { fill: #ffffff; font-weight: bold }
g { animation: show .2s backwards } @keyframes show { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { g { animation: none } }"""


@dataclass(frozen=True)
class Block:
    """A command with its output, and the step of the story that it belongs to."""

    step: str
    command: str
    output: str


def svg(blocks: Sequence[Block]) -> str:
    """Return the text of the SVG file: blocks below each other, a step's title where it changes."""
    groups: list[str] = []
    row, step = 0, ""
    for number, block in enumerate(blocks):
        lines = [("step", f"# {line}") for line in textwrap.wrap(block.step, COLUMNS - 2) if block.step != step]
        lines += [("command", f"$ {block.command}")]
        lines += [("output", part) for line in block.output.rstrip("\n").splitlines() for part in _folded(line)]
        drawn = [
            f'<text class="{kind}" x="{MARGIN}" y="{MARGIN + (row + at + 1) * LINE_HEIGHT}">{escape(text)}</text>'
            for at, (kind, text) in enumerate(lines)
        ]
        groups.append("\n".join([f'<g style="animation-delay: {number * SECONDS_A_BLOCK}s">', *drawn, "</g>"]))
        row, step = row + len(lines) + 1, block.step
    width, height = round(2 * MARGIN + COLUMNS * CHARACTER_WIDTH), 2 * MARGIN + row * LINE_HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">',
            f"<style>\n{STYLE}\n</style>",
            '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
            *groups,
            "</svg>\n",
        ]
    )


def _folded(line: str) -> list[str]:
    """As a terminal of this width folds a line."""
    return [line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]
