"""The site, built: staged pages, Zensical in strict mode, and the version of this tree in the list of versions.

A version has its own folder, `<folder>/<version>`, and stays as it is when another one is built beside it;
`versions.json`, in mike's format, is what the theme's choice of versions reads, and `index.html` leads to the newest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from docsite.pages import ROOT, Staged, title
from nodedevices_common import __version__

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
START = (
    '<!doctype html><meta charset="utf-8"><title>NodeDevices</title><meta http-equiv="refresh" content="0; url={0}/">'
)
START_PAGE = START + '<a href="{0}/index.html">NodeDevices {0}</a>\n'


class SiteError(Exception):
    """What is wrong with the pages."""


def build(folder: Path, work: Path, *, version: str = __version__, source: str = "") -> Path:
    """The folder of that version. `work`: for the staged pages; it is emptied."""
    site = folder / version
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    stage(work, site, source)
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=work,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SiteError(COLOUR.sub("", done.stdout).partition("Traceback (most recent call last)")[0])
    built = work / "site"
    for made_for_a_server in ("sitemap.xml", "404.html"):  # which needs addresses, and this site has none
        (built / made_for_a_server).unlink(missing_ok=True)
    shutil.copytree(built, site)
    choose(folder)
    return site


def stage(work: Path, site: Path, source: str) -> None:
    config = tomllib.loads((ROOT / "docs" / "site.toml").read_text())
    staged = Staged.of(source=source)
    files = dict(staged.files())
    titles = {name: title(text) for name, text in files.items() if name.endswith(".md")}
    config["project"]["nav"] = list(navigation(config["project"]["nav"], titles))
    config["project"] |= {"docs_dir": "docs", "site_dir": "site"}
    missing, twice = compare(list(named(config["project"]["nav"])), titles)
    if missing or twice:
        raise SiteError(
            f"docs/site.toml, nav: not named: {missing or 'none'}; named twice or not there: {twice or 'none'}"
        )
    for name, text in files.items():
        path = work / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(Path(__file__).with_name("site.css"), work / "docs" / "site.css")
    (work / "zensical.toml").write_text("".join(toml(config)))


def navigation(entries: list[Any], titles: dict[str, str]) -> Iterator[Any]:
    """With `folder/*` replaced by the folder's pages that are not named beside it, by title."""
    here = {page for entry in entries for page in named([entry])}
    for entry in entries:
        if isinstance(entry, dict):
            for name, inner in entry.items():
                yield {name: list(navigation(inner, titles)) if isinstance(inner, list) else inner}
        elif entry.endswith("/*"):
            inside = [page for page in titles if f"{PurePosixPath(page).parent}/*" == entry and page not in here]
            yield from sorted(inside, key=lambda page: titles[page])
        else:
            yield entry


def named(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from named(inner if isinstance(inner, list) else [inner])


def compare(pages: list[str], titles: dict[str, str]) -> tuple[list[str], list[str]]:
    """Pages that the navigation lacks, and what it names without need or reason."""
    return sorted(titles.keys() - set(pages)), sorted(
        {page for page in pages if pages.count(page) > 1 or page not in titles}
    )


def toml(config: dict[str, Any]) -> Iterator[str]:
    """The configuration as TOML: JSON's strings, numbers and lists are TOML's, tables on a line are not JSON's."""

    def value(of: Any) -> str:
        if isinstance(of, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in of.items()) + "}"
        if isinstance(of, list):
            return "[" + ", ".join(value(inner) for inner in of) + "]"
        return json.dumps(of)

    for table, inner in config.items():
        yield f"[{table}]\n"
        for key, of in inner.items():
            yield f"{key} = {value(of)}\n"


def choose(folder: Path) -> None:
    """Write what lists the versions that are there, the newest first."""
    found = [path.name for path in folder.iterdir() if path.is_dir()]
    versions = sorted(found, key=order, reverse=True)
    listed = [{"version": each, "title": each, "aliases": ["latest"] * (each == versions[0])} for each in versions]
    (folder / "versions.json").write_text(json.dumps(listed, indent=2) + "\n")
    (folder / "index.html").write_text(START_PAGE.format(versions[0]))


def order(version: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+-]", version))
