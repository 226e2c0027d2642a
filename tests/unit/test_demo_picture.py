"""README's picture: an SVG with every line of every command that it was given, in order."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from demo.picture import COLUMNS, Block, svg

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def lines(text: str) -> list[tuple[str | None, str | None]]:
    return [(each.get("class"), each.text) for each in ElementTree.fromstring(text).iter(f"{SVG}text")]


def test_every_line_is_there_in_order_and_a_title_once() -> None:
    blocks = [Block("A fault", "kubectl get nd", "NAME\nn1 <&>\n"), Block("A fault", "kubectl describe", "x" * 200)]
    assert lines(svg(blocks)) == [
        ("step", "# A fault"),
        ("command", "$ kubectl get nd"),
        ("output", "NAME"),
        ("output", "n1 <&>"),
        ("command", "$ kubectl describe"),
        ("output", "x" * COLUMNS),
        ("output", "x" * (200 - COLUMNS)),
    ]


def test_the_picture_of_the_readme_is_one() -> None:
    assert "](docs/demo.svg)" in (ROOT / "README.md").read_text()
    shown = lines((ROOT / "docs" / "demo.svg").read_text())
    commands = [text for kind, text in shown if kind == "command"]
    assert "$ kubectl get nodedevices" in commands
    assert any("Xid79" in str(text) for kind, text in shown if kind == "output")
