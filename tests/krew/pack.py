"""`kubectl nodedevices` as a single file, and the archive and the manifest with which krew installs it.

The file is a zip that Python runs: our packages, click and PyYAML as they are installed here, without what is compiled.
It starts with any Python from 3.11 on, on any machine. Equal sources give equal bytes: files in order, one time, one
mode, and nothing compressed inside, which no version of zlib changes. What needs compiled packages (pydantic, orjson)
is left out, and the command that loads it says so.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from nodedevices_common import __version__

ROOT = Path(__file__).parents[2]
COMMAND = "kubectl-nodedevices"
TEMPLATE = ".krew.yaml"  # as krew-release-bot reads it
OURS = (
    ("cli", "nodedevices_kubectl/**/*.py"),
    ("crds", "nodedevices_common/*.py"),
    ("crds", "nodedevices_kube/*.py"),
    ("crds", "nodedevices_api/__init__.py"),
    ("crds", "nodedevices_api/conditions.py"),
    ("crds", "nodedevices_api/dra.py"),
)
THEIRS = ("click", "pyyaml")
SHEBANG = b"#!/usr/bin/env python3\n"
TIME = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip knows
PLAIN, EXECUTABLE = 0o644, 0o755
MAIN = b"""\
import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: kubectl nodedevices needs Python 3.11 or later; this is " + sys.version.split()[0])
if os.path.basename(sys.argv[0]).startswith("kubectl_complete"):
    from nodedevices_kubectl.main import complete as main
else:
    from nodedevices_kubectl.main import main
main()
"""
_URI = re.compile(r'\{\{ *addURIAndSha "(?P<uri>[^"]+)" \.TagName *\}\}')
_TAG = re.compile(r"\{\{ *\.TagName *\}\}")


@dataclass(frozen=True, slots=True)
class Packed:
    """Contents by file name: the single file, krew's archive and krew's manifest."""

    files: dict[str, bytes]
    version: str


def pack(tree: Path = ROOT, version: str = __version__) -> Packed:
    """Return all that a release has of it. `tree`: the sources."""
    single = single_file(tree)
    packed = archive(tree, single)
    name = f"{COMMAND}-v{version}.tar.gz"
    text = manifest((tree / TEMPLATE).read_text(), f"v{version}", packed)
    return Packed({f"{COMMAND}.pyz": single, name: packed, "nodedevices.yaml": text.encode()}, version)


def write(folder: Path, packed: Packed) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in packed.files.items():
        path = folder / name
        path.write_bytes(content)
        path.chmod(EXECUTABLE if name.endswith(".pyz") else PLAIN)
        paths.append(path)
    return paths


def single_file(tree: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, content in sorted(dict(_contents(tree)).items()):
            about = zipfile.ZipInfo(name, TIME)
            about.create_system, about.external_attr = 3, PLAIN << 16  # of Unix, whatever this machine is
            file.writestr(about, content)
    return SHEBANG + buffer.getvalue()


def _contents(tree: Path) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", MAIN
    yield "licenses/nodedevices.txt", (tree / "LICENSE").read_bytes()
    for folder, pattern in OURS:
        for path in (tree / folder).glob(pattern):
            yield path.relative_to(tree / folder).as_posix(), path.read_bytes()
    for name in THEIRS:
        installed = distribution(name)
        for each in installed.files or ():
            path = Path(str(installed.locate_file(each)))
            if each.suffix == ".py" and each.parts[0] != "_yaml":  # the binding to libyaml, which is compiled
                yield each.as_posix(), path.read_bytes()
            elif "licenses" in each.parts:
                yield f"licenses/{name}-{installed.version}.txt", path.read_bytes()


def archive(tree: Path, single: bytes) -> bytes:
    """Return what krew unpacks: the command under the name that kubectl looks for, and the licence."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, mode in (
            ("LICENSE", (tree / "LICENSE").read_bytes(), PLAIN),
            (COMMAND, single, EXECUTABLE),
        ):
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), mode
            tar.addfile(about, io.BytesIO(content))
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)  # gzip, with no time and no name in it
    return packer.compress(buffer.getvalue()) + packer.flush()


def manifest(template: str, tag: str, packed: bytes) -> str:
    """Fill in krew-release-bot's template as that program would."""

    def place(found: re.Match[str]) -> str:
        uri = _TAG.sub(tag, found["uri"])
        return f"uri: {uri}\n    sha256: {hashlib.sha256(packed).hexdigest()}"

    return _TAG.sub(tag, _URI.sub(place, template))
