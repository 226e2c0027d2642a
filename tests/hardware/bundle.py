"""The folder that a machine with a GPU is given: the program, and one archive with our package and what it needs.

The packages are those of the agent's lock, from wheels by their hashes, for one Python on Linux: uv unpacks them for a
Python that need not be here, and a run of the folder has no more to do than to unpack the archive. Nothing is compiled.
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

from nodedevices_common import __version__

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LOCK = ROOT / "requirements" / "agent.lock"
UV = ROOT / ".tools" / "bin" / "uv"
ARCHIVE = "packages.zip"
MOST_BYTES = 30 << 20
NAMED = 5  # of the largest files
SUPPORT = ("fakestore", "kubelet", "local", "patience", "preloaded", "running_agent")  # of tests/support, as they are
OF_BUILDER = ("__main__.py", "bundle.py", "run.py")
LIBC = "manylinux_2_28"  # glibc of 2018


class BundleError(Exception):
    """Raised when the folder cannot be made; the text says why."""


def write(folder: Path, *, python: str, machine: str) -> Path:
    """Make the folder anew, and return it."""
    with tempfile.TemporaryDirectory() as temporary:
        packages, made = Path(temporary) / "packages", Path(temporary) / "bundle"
        install(packages, python, machine)
        made.mkdir()
        shutil.make_archive(str(made / "packages"), "zip", packages)
        program(made / "program")
        shutil.copy(HERE / "run.py", made)
        sha256 = hashlib.sha256((made / ARCHIVE).read_bytes()).hexdigest()
        about = {"version": __version__, "commit": commit(), "python": python, "machine": machine, "sha256": sha256}
        (made / "manifest.json").write_text(json.dumps(about, indent=1) + "\n")
        sizes = {str(path.relative_to(made)): path.stat().st_size for path in made.rglob("*") if path.is_file()}
        if problem := too_large(sizes):
            raise BundleError(problem)
        shutil.rmtree(folder, ignore_errors=True)
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


def commit() -> str:
    """Return the commit, and whether the files are others by now; "" outside of a repository."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def install(target: Path, python: str, machine: str) -> None:
    """Unpack the wheels of the lock, and our own of this tree; without the network where uv's cache has them all."""
    command = [*uv_command(python, machine), str(target)]
    for more in (["--offline"], []):
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run([*command, *more], check=False, capture_output=True, text=True)
        if not done.returncode:
            break
    else:
        why = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise BundleError(f"no packages of {LOCK.name} for CPython {python} on {machine}:\n{why}")
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise BundleError(f"our own wheel cannot be built:\n{done.stderr.strip()}")
        for wheel in Path(folder).iterdir():
            shutil.unpack_archive(wheel, target, "zip")


def uv_command(python: str, machine: str) -> list[str]:
    """Return the command, whose last argument, the folder, is to follow."""
    return [
        *(str(UV if UV.exists() else "uv"), "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"),
        *("--python-version", python, "--python-platform", f"{machine}-{LIBC}", "--python", sys.executable),
        *("--requirement", str(LOCK), "--target"),
    ]


def here() -> tuple[str, str]:
    """Return the running Python's version and machine."""
    return f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine()
