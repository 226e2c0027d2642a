"""What a reader's browser would find in a built site: links and anchors that lead nowhere, what comes from outside,
pages that the navigation does not reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

LOADED = {  # attributes whose address a browser fetches by itself
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "video": ("src", "poster"),
}
IN_STYLES = re.compile(r"""url\(\s*["']?(?!data:|#)([^"')]+)|@import\s+["']([^"']+)""")
OUTSIDE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
HERE = "http://site.invalid/"  # of a scheme that urljoin joins


class Page(HTMLParser):
    """Ids, links (and those of the navigation), and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.navigation: set[str] = set()
        self.loads: set[str] = set()
        self._navs = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        self._navs += tag == "nav"
        if tag == "a" and "href" in given:
            (self.navigation if self._navs else self.links).add(given["href"])
        if tag != "link" or given.get("rel") not in {"canonical", "next", "prev"}:
            self.loads |= {given[name] for name in LOADED.get(tag, ()) if given.get(name)}
        self.loads |= {found for pair in IN_STYLES.findall(given.get("style", "")) for found in pair if found}

    def handle_endtag(self, tag: str) -> None:
        self._navs -= tag == "nav"


@dataclass(frozen=True)
class Site:
    folder: Path
    pages: dict[str, Page] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Site:
        found = sorted(folder.rglob("*.html"))
        return cls(folder, {path.relative_to(folder).as_posix(): Page(path.read_text()) for path in found})

    @cached_property
    def files(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def dead(self) -> Iterator[str]:
        """Links within the site whose file or anchor is not there."""
        for name, page in self.pages.items():
            for link in page.links | page.navigation | page.loads:
                url = urlsplit(urljoin(HERE + name, link))
                if not url.geturl().startswith(HERE):
                    continue
                target = unquote(url.path).lstrip("/")
                target = f"{target}index.html" if not target or target.endswith("/") else target
                ids = self.pages[target].ids if target in self.pages else set()
                if target not in self.files or (url.fragment and ids and unquote(url.fragment) not in ids):
                    yield f"{name}: {link}"

    def outside(self) -> Iterator[str]:
        """What a browser would fetch from elsewhere."""
        for name, page in self.pages.items():
            yield from (f"{name}: {address}" for address in page.loads if OUTSIDE.match(address))
        for path in self.folder.rglob("*.css"):
            addresses = {found for pair in IN_STYLES.findall(path.read_text()) for found in pair if found}
            yield from (f"{path.name}: {address}" for address in addresses if OUTSIDE.match(address))

    def unreached(self, start: str = "index.html") -> set[str]:
        """Pages that the navigation of the first one does not name."""
        links = {urlsplit(urljoin(HERE + start, link)) for link in self.pages[start].navigation}
        return self.pages.keys() - {url.path.lstrip("/") or start for url in links if url.geturl().startswith(HERE)}
