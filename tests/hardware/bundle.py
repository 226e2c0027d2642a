"""The folder that a machine with a GPU is given: the program, our wheel, and the wheels of the agent's lock.

Wheels are taken by their hashes, for one Python on Linux; they are kept in the build cache, by the lock, so that the
next folder needs no network. No source distribution is ever built.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.rig.binaries import cache
from nodedevices_common import __version__
from releasing.build import Commit, git, made_by

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LOCK = ROOT / "requirements" / "agent.lock"
PIP = ROOT / ".tools" / "bin" / "pip"
MOST_BYTES = 30 << 20
NAMED = 5  # of the largest files
SUPPORT = ("fakestore", "kubelet", "running_agent")  # of tests/support, as they are
OF_BUILDER = ("__main__.py", "bundle.py", "run.py")
GLIBC = ("2_28", "2_17", "2_5")  # that a machine with a driver of these years has


class BundleError(Exception):
    """Raised when the folder cannot be made; the text says why."""


def write(folder: Path, *, python: str, machine: str) -> Path:
    """Make the folder anew, and return it."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "bundle"
        wheels = made / "wheels"
        shutil.copytree(locked(python, machine), wheels)
        for name, content in our_wheel().items():
            (wheels / name).write_bytes(content)
        program(made / "program")
        shutil.copy(HERE / "run.py", made / "run.py")
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(wheels.iterdir())}
        about = {"version": __version__, "commit": commit(), "python": python, "machine": machine, "wheels": sums}
        (made / "manifest.json").write_text(json.dumps(about, indent=1) + "\n")
        sizes = {str(path.relative_to(made)): path.stat().st_size for path in made.rglob("*") if path.is_file()}
        if problem := too_large(sizes):
            raise BundleError(problem)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, folder)
    return folder


def too_large(sizes: Mapping[str, int], most: int = MOST_BYTES) -> str:
    """Say by how much the files are too large, and which are the largest; "" where they are not."""
    total = sum(sizes.values())
    if total <= most:
        return ""
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:NAMED]
    named = ", ".join(f"{name} ({size / (1 << 20):.1f} MiB)" for name, size in largest)
    return f"the folder has {total / (1 << 20):.1f} MiB, and may have {most >> 20}; its largest files: {named}"


def program(target: Path) -> None:
    """Copy what runs there."""
    shutil.copytree(HERE, target / "hardware", ignore=shutil.ignore_patterns(*OF_BUILDER, "__pycache__"))
    (target / "support").mkdir()
    for name in SUPPORT:
        shutil.copy(HERE.parent / "support" / f"{name}.py", target / "support")


def our_wheel() -> dict[str, bytes]:
    return made_by("hatchling", "build", "-t", "wheel", "-d", tree=ROOT)


def commit() -> str:
    """Return the commit, and whether the files are others by now; "" outside of a repository."""
    try:
        changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        return Commit.head().id[:12] + changed
    except (OSError, subprocess.CalledProcessError):
        return ""


def locked(python: str, machine: str) -> Path:
    """Return a folder with the wheels of the lock, from the build cache or from the package index."""
    digest = hashlib.sha256(LOCK.read_bytes() + f"{python} {machine}".encode()).hexdigest()[:16]
    place = cache() / "hardware" / digest
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        fetched = Path(folder) / "wheels"
        command = [*pip(), *pip_arguments(python, machine), "--dest", str(fetched), "--requirement", str(LOCK)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise BundleError(f"the wheels of {LOCK.name} for CPython {python} on {machine} could not be had:\n{last}")
        try:
            fetched.rename(place)
        except OSError:
            if not place.is_dir():  # another builder was faster
                raise
    return place


def pip() -> list[str]:
    return [str(PIP)] if PIP.exists() else [sys.executable, "-m", "pip"]


def pip_arguments(python: str, machine: str) -> list[str]:
    platforms = [f"manylinux_{version}_{machine}" for version in GLIBC]
    platforms += [f"manylinux2014_{machine}"]
    return [
        *("download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", python),
        *(word for name in platforms for word in ("--platform", name)),
    ]


def here() -> tuple[str, str]:
    """Return the running Python's version and machine."""
    return f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine()
