"""`make site`: build the documentation site of this tree into build/site/<version>; `--serve` also shows it."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from docsite.build import SiteError, build
from docsite.check import Site
from docsite.pages import ROOT

FOLDER = ROOT / "build" / "site"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docsite", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"default {FOLDER.relative_to(ROOT)}")
    parser.add_argument("--source", default="", help="address below which this tree's files are, for links to them")
    parser.add_argument("--serve", type=int, metavar="PORT", help="show it on 127.0.0.1, until interrupted")
    given = parser.parse_args()
    try:
        site = Site.read(build(given.folder, ROOT / "build" / "site-pages", source=given.source))
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    if wrong := sorted([*site.dead(), *site.outside(), *site.unreached()]):
        print("leads nowhere, comes from outside, or is not in the navigation:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{len(site.pages)} pages in {site.folder}")
    if given.serve is not None:
        serve(given.folder, given.serve)
    return 0


def serve(folder: Path, port: int) -> None:
    with ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    sys.exit(main())
