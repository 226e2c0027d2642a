"""What `make release` puts together, of one commit's tree and nothing else.

Built twice it is the same, byte by byte: times are the commit's (SOURCE_DATE_EPOCH), and nothing asks the network, the
machine's name or a clock. Images are not among it: who installs builds them, from the sources (docs/releases.md).
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from releasing import archives, locks, sbom, statements
from releasing.versions import ROOT

IMAGES = ("agent", "operator")
PINNED = ("requirements/agent.lock", "requirements/build.lock", "requirements/operator.lock")
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """A part that could not be made, with what its program said."""


@dataclass(frozen=True, slots=True)
class Commit:
    id: str
    epoch: int

    @classmethod
    def head(cls, root: Path = ROOT) -> Commit:
        shown = git("show", "--no-patch", "--format=%H %ct", "HEAD", root=root).decode().split()
        return cls(shown[0], int(shown[1]))


def git(*arguments: str, root: Path = ROOT) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE).stdout


@contextmanager
def tree_of(commit: Commit, root: Path = ROOT) -> Iterator[Path]:
    """A folder with that commit's files."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit.id, root=root))) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def release(tree: Path, commit: Commit, version: str, *, source: str = "") -> dict[str, bytes]:
    """Every file by its name. `source`: the repository's address, without which there is no SECURITY-INSIGHTS.yml."""
    files = {
        **distributions(tree, commit.epoch),
        **plugin(tree),
        f"nodedevices-{version}-chart.tgz": archives.chart(tree / "manifests" / "chart", commit.epoch),
        f"nodedevices-{version}-source.tar.gz": archives.sources(tree, version, commit.epoch),
    }
    packages = {image: locks.read((tree / f"requirements/{image}.lock").read_text()) for image in IMAGES}
    for image, parts in packages.items():
        name = f"nodedevices-{image}"
        files[f"{name}-{version}.cdx.json"] = sbom.bom(name, version, parts, commit.epoch).encode()
    known = tomllib.loads((tree / "requirements" / "vex.toml").read_text()).get("statement", [])
    installed = {each.name: each for parts in packages.values() for each in parts}
    vex = statements.vex(known, tuple(installed.values()), version, commit.epoch)
    files[f"nodedevices-{version}.openvex.json"] = vex.encode()
    if source:
        files["SECURITY-INSIGHTS.yml"] = statements.insights(source, commit.epoch).encode()
    inputs = {name: (tree / name).read_bytes() for name in PINNED}
    proof = statements.provenance(files, inputs, version=version, commit=commit.id)
    files[f"nodedevices-{version}.intoto.json"] = proof.encode()
    sums = "".join(f"{statements.sha256(data)}  {name}\n" for name, data in sorted(files.items()))
    return files | {SUMS: sums.encode()}


def distributions(tree: Path, epoch: int) -> dict[str, bytes]:
    """Wheel and source distribution, by the locked hatchling of this environment."""
    targets = ("-t", "wheel", "-t", "sdist")
    return made_by("hatchling", "build", *targets, "-d", tree=tree, SOURCE_DATE_EPOCH=str(epoch))


def plugin(tree: Path) -> dict[str, bytes]:
    """kubectl nodedevices as a single file, and what krew installs it with: by the tree's own program."""
    return made_by("krew", "--folder", tree=tree, PYTHONPATH=os.pathsep.join((f"{tree}/tests", f"{tree}/crds")))


def made_by(module: str, *arguments: str, tree: Path, **environment: str) -> dict[str, bytes]:
    """What `python -m module` writes into the folder that is its last argument. It leaves nothing in the tree."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments, folder],
            cwd=tree,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ReleaseError(f"python -m {module} failed:\n{done.stderr}{done.stdout}")
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
