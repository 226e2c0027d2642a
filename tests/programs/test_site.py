"""The documentation site: built whole, and looked at as a browser would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docsite.build import build, choose, compare, navigation
from docsite.check import Site
from docsite.pages import ROOT, Staged, lists, split
from nodedevices_common import __version__

CODE = re.compile(r"<pre.*?</pre>", re.DOTALL)
UNREAD = re.compile(r"<(?:p|li)>(?:[^<]|<(?!/p>|/li>|p>|li>))*?\n(?:[-*] |\d\. |\|)[^\n]*")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    return Site.read(build(folder / "versions", folder / "work"))


def test_the_site_has_every_page_of_the_documentation(site: Site) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert not pages - site.pages.keys()


def test_no_link_and_no_anchor_of_the_site_leads_nowhere(site: Site) -> None:
    assert not list(site.dead())


def test_a_browser_loads_nothing_of_the_site_from_outside(site: Site) -> None:
    assert not list(site.outside())


def test_the_navigation_reaches_every_page_of_the_site(site: Site) -> None:
    assert not site.unreached()


def test_no_list_and_no_table_is_left_as_text(site: Site) -> None:
    found = [(name, UNREAD.findall(CODE.sub("", (site.folder / name).read_text()))) for name in site.pages]
    assert not [(name, texts) for name, texts in found if texts]


def test_the_search_knows_every_page(site: Site) -> None:
    found = json.loads((site.folder / "search.json").read_text())["items"]
    assert {each["location"].partition("#")[0] or "index.html" for each in found} >= site.pages.keys()


def test_the_versions_are_those_that_are_there_and_the_first_page_leads_to_the_newest(
    site: Site, tmp_path: Path
) -> None:
    listed = json.loads((site.folder.parent / "versions.json").read_text())
    assert listed == [{"version": __version__, "title": __version__, "aliases": ["latest"]}]
    for version in ("0.9.0", "0.10.0", "0.10.0rc1"):
        (tmp_path / version).mkdir()
    choose(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert (listed[0]["version"], listed[0]["aliases"]) == ("0.10.0", ["latest"])
    assert "url=0.10.0/" in (tmp_path / "index.html").read_text()


PLANTED = """<nav><a href="b.html">B</a></nav><a href="b.html#no">x</a><a href="c.html">y</a><h1 id="top">A</h1>
<a href="#top">t</a><a href="https://example.com">out</a><script src="https://example.com/x.js"></script>"""


def test_the_check_finds_a_dead_link_a_dead_anchor_a_load_from_outside_and_a_lonely_page(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(PLANTED)
    (tmp_path / "b.html").write_text("<h1 id=yes>B</h1>")
    (tmp_path / "lonely.html").write_text("<h1>C</h1>")
    (tmp_path / "style.css").write_text("@import '//example.com/a.css'; a {background: url(data:x)}")
    site = Site.read(tmp_path)
    assert sorted(site.dead()) == ["index.html: b.html#no", "index.html: c.html"]
    assert sorted(site.outside()) == ["index.html: https://example.com/x.js", "style.css: //example.com/a.css"]
    assert site.unreached() == {"index.html", "lonely.html"}


def test_a_page_that_the_navigation_does_not_name_is_an_error() -> None:
    assert compare(["a.md", "b.md", "b.md", "gone.md"], dict.fromkeys(["a.md", "b.md", "c.md"], "")) == (
        ["c.md"],
        ["b.md", "gone.md"],
    )


def test_a_folders_pages_are_in_the_navigation_by_title() -> None:
    titles = {"f/index.md": "F", "f/a.md": "Zebra", "f/b.md": "Ape"}
    assert list(navigation([{"F": ["f/index.md", "f/*"]}], titles)) == [{"F": ["f/index.md", "f/b.md", "f/a.md"]}]


NAMES = {
    "README.md": "index.md",
    "docs/a.md": "a.md",
    "docs/f/b.md": "f/b.md",
    "docs/decisions/001.md": "decisions/001.md",
}


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("README.md", "[a](docs/a.md#x)", "[a](a.md#x)"),
        ("docs/f/b.md", "[r](../../README.md)", "[r](../index.md)"),
        ("README.md", "[d](docs/decisions)", "[d](decisions/index.md)"),
        ("README.md", "[here](#x) [w](https://example.com/)", "[here](#x) [w](https://example.com/)"),
        ("docs/a.md", "[a test](../tests/x.py)", "a test (`tests/x.py`)"),
        ("docs/a.md", "[`x.py`](../tests/x.py)", "`x.py`"),
        ("docs/a.md", "    [code](../README.md)", "    [code](../README.md)"),
    ],
)
def test_a_link_leads_to_the_page_or_is_words(path: str, text: str, expected: str) -> None:
    assert Staged(NAMES).page(path, text + "\n") == expected + "\n"


def test_with_the_address_of_the_tree_a_link_to_a_file_stays_a_link() -> None:
    staged = Staged(NAMES, source="https://example.com/tree/")
    assert staged.page("docs/a.md", "[t](../tests/x.py)\n") == "[t](https://example.com/tree/tests/x.py)\n"


@pytest.mark.parametrize(
    ("github", "markdown"),
    [
        ("Text:\n- one\n- two\n  more\n", "Text:\n\n-   one\n-   two\n    more\n"),
        ("- one\n\n  second\n\nText\n", "-   one\n\n    second\n\nText\n"),
        ("- one\n  - inner\n- two\n", "-   one\n    -   inner\n-   two\n"),
        ("1. one\n\n        code\n\n   more\n2. two\n", "1.  one\n\n         code\n\n    more\n\n2.  two\n"),
        ("Text\n\n    - code\n      more\n", "Text\n\n    - code\n      more\n"),
        ("```\n- code\n```\n", "```\n- code\n```\n"),
        ("- a\n\n  b\n- c\n", "-   a\n\n    b\n\n-   c\n"),
        ("a\n- b - c\nlazy\n", "a\n\n-   b - c\nlazy\n"),
    ],
)
def test_lists_are_written_as_the_generator_reads_them(github: str, markdown: str) -> None:
    assert "\n".join([*lists(github.splitlines()), ""]) == markdown


def test_code_is_told_from_prose() -> None:
    text = "a\n\n    b\n\nc\n```\nd\n```\ne\n    f\n"
    assert "".join(block for code, block in split(text) if code) == "    b\n```\nd\n```\n"
    assert "".join(block for _, block in split(text)) == text
