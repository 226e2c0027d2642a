"""The documentation site, built by `make site`, whose generator fails on a page or an anchor that is not there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.repository import ROOT, tracked

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git: make site copies what it tracks")

SITE = ROOT / "build" / "site"
CODE = re.compile(r"<pre.*?</pre>", re.DOTALL)
UNREAD = re.compile(r"<(?:p|li)>(?:[^<]|<(?!/p>|/li>|p>|li>))*?\n(?:[-*] |\d\. |\|)[^\n]*")
OUTSIDE = re.compile(
    r"""<(?!a\b)[^>]+\s(?:src|srcset|poster|data)=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|next|prev)\b)[^>]*href=["']?(?:https?:)?//[^>]*>"""
    r"""|(?:url\(|@import)\s*["']?(?:https?:)?//[^"')]*"""
)


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    done = subprocess.run(["make", "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path: path.read_text() for path in SITE.rglob("*.html")}


def named(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from named(inner if isinstance(inner, list) else [inner])


def test_the_navigation_names_every_page_once() -> None:
    navigation = tomllib.loads((ROOT / "docs" / "site.toml").read_text())["project"]["nav"]
    there = [path.relative_to(ROOT).as_posix() for path in tracked() if path.suffix == ".md"]
    assert sorted(named(navigation)) == sorted(there)


def test_a_browser_loads_nothing_of_the_site_from_outside(pages: dict[Path, str]) -> None:
    styles = {path: path.read_text() for path in SITE.rglob("*.css")}
    assert {path: OUTSIDE.findall(text) for path, text in (pages | styles).items() if OUTSIDE.search(text)} == {}


@pytest.mark.parametrize(
    "text", ['<script src="https://a/x.js">', '<link href=//a/x.css rel="stylesheet">', "@import '//a/x'", "url(//a/x)"]
)
def test_what_is_loaded_from_outside_is_found(text: str) -> None:
    assert OUTSIDE.search(text)


def test_no_list_and_no_table_is_left_as_text(pages: dict[Path, str]) -> None:
    found = {path: UNREAD.findall(CODE.sub("", text)) for path, text in pages.items()}
    assert {path: texts for path, texts in found.items() if texts} == {}
