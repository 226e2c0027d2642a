"""The repository's pages as pages of the site: where each one goes, and its text as Python-Markdown reads it.

Pages are written for GitHub: links lead to files of the repository, lists follow a paragraph at once, and what
belongs to a point is indented by its marker's width. On the site a link to a page leads to that page; one to a file
that the site does not have becomes words, or a link below `source` where it is known; lists get the blank line and the
four spaces that Python-Markdown asks for. Code is left as it is.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
# Pages outside docs/, by the name that they have on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "manifests/chart/README.md": "chart.md",
    "tests/cluster/README.md": "cluster.md",
    "tests/conformance/amd_device_plugin/README.md": "conformance-amd.md",
    "tests/conformance/nvidia_device_plugin/README.md": "conformance-nvidia.md",
}
NOT_PAGES = {"site.toml"}
INDEXED = ("decisions", "runbooks")  # folders whose page is a list of their pages
TITLE = re.compile(r"^# +(.+?) *$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])( +)\S")
STARTS_A_LIST = re.compile(r"([-*+]|1[.)]) +\S")
CODE_INDENT = 4


@dataclass(frozen=True)
class Staged:
    """`source`: address below which the repository's files are, or empty. `names`: repository's path -> site's path."""

    names: Mapping[str, str]
    source: str = ""

    @classmethod
    def of(cls, root: Path = ROOT, source: str = "") -> Staged:
        inside = sorted(path for path in (root / "docs").rglob("*") if path.is_file() and path.name not in NOT_PAGES)
        docs = {path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix() for path in inside}
        return cls({**docs, **{path: name for path, name in OUTSIDE.items() if (root / path).exists()}}, source)

    def files(self, root: Path = ROOT) -> Iterator[tuple[str, str]]:
        """Each file of the site with its text."""
        for path, name in self.names.items():
            text = (root / path).read_text()
            yield name, self.page(path, text) if name.endswith(".md") else text
        for folder in INDEXED:
            yield f"{folder}/index.md", self.index(folder, root)

    def index(self, folder: str, root: Path = ROOT) -> str:
        """A page that lists the pages of a folder."""
        pages = [(name, path) for path, name in self.names.items() if str(PurePosixPath(name).parent) == folder]
        points = [f"- [{title((root / path).read_text())}]({PurePosixPath(name).name})" for name, path in sorted(pages)]
        return f"# {folder.capitalize()}\n\n" + "\n".join(points) + "\n"

    def page(self, path: str, text: str) -> str:
        """The page of that path of the repository, as the site has it."""

        def moved(link: re.Match[str]) -> str:
            words, target = link[1], link[2]
            if SCHEME.match(target) or target.startswith("#"):
                return link[0]
            file, _, anchor = target.partition("#")
            found = os.path.normpath(PurePosixPath(path).parent / file)
            name = self.names.get(found) or self.folder(found)
            if name is not None:
                here = PurePosixPath(self.names[path]).parent
                return f"[{words}]({os.path.relpath(name, here)}{'#' * bool(anchor)}{anchor})"
            if self.source:
                return f"[{words}]({self.source.rstrip('/')}/{found}{'#' * bool(anchor)}{anchor})"
            return words if found in words or PurePosixPath(found).name in words else f"{words} (`{found}`)"

        linked = (block if code else LINK.sub(moved, block) for code, block in split(text))
        return "\n".join([*lists("".join(linked).splitlines()), ""])

    def folder(self, path: str) -> str | None:
        """The page of the folder of that path, where the site has one."""
        name = f"{path.removeprefix('docs/')}/index.md"
        known = name in self.names.values() or name in {f"{folder}/index.md" for folder in INDEXED}
        return name if known and path.startswith("docs/") else None


def title(text: str) -> str:
    found = TITLE.search(text)
    if found is None:
        raise ValueError(f"a page without a title: {text[:60]!r}")
    return found[1]


def split(text: str) -> Iterator[tuple[bool, str]]:
    """Runs of lines, and whether they are code."""
    for code, lines in groupby(marked(text), key=lambda each: each[0]):
        yield code, "".join(line for _, line in lines)


def marked(text: str) -> Iterator[tuple[bool, str]]:
    fenced = indented = False
    after_blank = True
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
            yield True, line
            continue
        indented = line.startswith(" " * CODE_INDENT) and (indented or after_blank)
        yield fenced or indented, line
        after_blank = not bare


def lists(lines: list[str]) -> Iterator[str]:
    """Lists by Python-Markdown's rules: a blank line before, and four spaces for each level."""
    fenced = code = False
    levels: list[int] = []  # for each open item, the column at which its text begins
    before, apart = "", False  # whether the open item has more than one paragraph
    for line in lines:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if bare.startswith("```"):
            fenced = not fenced
        elif not fenced and not levels:
            code = indent >= CODE_INDENT and (code or not before.strip())
        if fenced or bare.startswith("```") or (code and not levels):
            yield shifted(line, levels) if levels else line
        elif not bare:
            apart = True
            yield line
        else:
            item, began = ITEM.match(line), bool(levels)
            while levels and indent < levels[-1] and (item or not before.strip()):
                levels.pop()
            if item and indent < (levels[-1] if levels else 0) + CODE_INDENT:
                if before.strip() and (apart if began else STARTS_A_LIST.match(line)):
                    yield ""
                yield (
                    " " * CODE_INDENT * len(levels) + item[2] + " " * (CODE_INDENT - len(item[2])) + line[item.end(3) :]
                )
                levels.append(item.end(3))
                apart = False
            else:
                yield shifted(line, levels)
        before = line


def shifted(line: str, levels: list[int]) -> str:
    """A line that belongs to the innermost item, or a lazy continuation of its paragraph."""
    indent = len(line) - len(line.lstrip())
    if not levels or indent < levels[-1]:
        return line
    return " " * (CODE_INDENT * len(levels) + indent - levels[-1]) + line.lstrip()
