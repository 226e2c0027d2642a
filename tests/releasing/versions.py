"""`python -m releasing.versions 0.2.0` (`make version`): write the version to wherever it stands; a test compares.

`nodedevices_common.__version__` is the one that counts: the distribution, the programs and the site take it from there.
The other places are files that no program of ours makes: the chart's, the tags of images, commands on pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
PLACES = {
    "crds/nodedevices_common/__init__.py": r'^__version__ = "([^"]+)"',
    "manifests/chart/Chart.yaml": r"^(?:appV|v)ersion: (\S+)",
    "manifests/overlays/*/kustomization.yaml": r"newTag: (\S+)",
    "tests/cluster/cluster.mk": r"\bTAG *\??= ?(\d[\w.]*)",
    "tests/cluster/rig/__main__.py": r'"--tag", default="([^"]+)"',
    "tests/support/cluster_provider.py": r'"TAG", "([^"]+)"',
    "README.md": r"^Version (\d[\w.]*)",
    "docs/*.md": r"(?:newTag: |nodedevices-(?:agent|operator):|\bTAG=)(\d[\w.]*)",
}


def places(root: Path = ROOT) -> Iterator[tuple[Path, re.Pattern[str]]]:
    for files, pattern in PLACES.items():
        for path in sorted(root.glob(files)):
            yield path, re.compile(pattern, re.MULTILINE)


def found(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Each file with each version in it."""
    for path, pattern in places(root):
        yield from ((path.relative_to(root).as_posix(), version) for version in pattern.findall(path.read_text()))


def write(version: str, root: Path = ROOT) -> list[str]:
    """Files that changed. ValueError for what is no version."""
    if not VERSION.fullmatch(version):
        raise ValueError(f"V={version}: give a version such as 0.2.0 or 0.2.0rc1")
    changed = []
    for path, pattern in places(root):
        text = path.read_text()
        written = pattern.sub(lambda one: one[0].replace(one[1], version), text)
        if written != text:
            path.write_text(written)
            changed.append(path.relative_to(root).as_posix())
    return changed


if __name__ == "__main__":
    try:
        print(*write(sys.argv[1]), sep="\n")
    except ValueError as error:
        sys.exit(str(error))
