"""Unpacks the packages beside it into a temporary folder, and runs NodeDevices on this machine's NVIDIA GPUs.

    python3 run.py [--out FOLDER] [--help]

Needs the Python of the packages, which it names, and nothing else: no network, no compiler, no Kubernetes, no root. It
changes nothing on the card, and leaves nothing on the machine but the record. Any Python from 3.6 on reads this file.
"""

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ARCHIVE = FOLDER / "packages.zip"
USAGE = 2
OURS = ("PYTHON", "NODEDEVICES_", "KUBE")  # variables that would change what is run


def unfit(manifest: "dict[str, Any]", python: str, implementation: str, machine: str) -> str:
    """Say why this Python cannot run the packages; "" where it can."""
    wanted, here = manifest["python"], f"{implementation} {python} on {machine}"
    if here == f"CPython {wanted} on {manifest['machine']}":
        return ""
    return (
        f"run.py: these packages are for CPython {wanted} on {manifest['machine']}, and this is {here}. Run it with "
        f"python{wanted}, or make a folder for this one: make hardware-bundle HARDWARE_PYTHON={python}"
    )


def unpack(sha256: str, target: Path) -> None:
    """Unpack the archive; raise SystemExit where it is not what was put there."""
    if hashlib.sha256(ARCHIVE.read_bytes()).hexdigest() != sha256:
        sys.exit(f"run.py: {ARCHIVE} is not the file that was put there; copy the folder anew")
    with zipfile.ZipFile(str(ARCHIVE)) as archive:
        archive.extractall(str(target))


def main() -> int:
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    python = "{}.{}".format(*sys.version_info[:2])
    problem = unfit(manifest, python, platform.python_implementation(), platform.machine())
    if problem:
        print(problem, file=sys.stderr)
        return USAGE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run.py: ended by a signal"))
    target = Path(tempfile.mkdtemp(prefix="nd-"))  # short: a socket's path has 107 bytes
    try:
        unpack(manifest["sha256"], target)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        environment["PYTHONPATH"] = os.pathsep.join((str(target), str(FOLDER / "program")))
        environment["PYTHONPYCACHEPREFIX"] = str(target / "pycache")
        environment["TMPDIR"] = str(target)  # what a step leaves that was ended goes with it
        process = subprocess.Popen([sys.executable, "-m", "hardware.main", *sys.argv[1:]], env=environment)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:  # the program has it, too
            return process.wait()
    finally:
        shutil.rmtree(str(target), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
