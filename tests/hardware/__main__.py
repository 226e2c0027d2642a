"""`make hardware-bundle` and `make hardware`: the folder for a machine with a GPU, and a run of it on this one.

python -m hardware bundle [--python 3.12] [--folder build/hardware]    # the folder alone
python -m hardware run [--folder build/hardware] [-- --no-faults ...]  # for this Python, and run it here
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from hardware import bundle

FOLDER = bundle.ROOT / "build" / "hardware"


def parser() -> argparse.ArgumentParser:
    own, machine = bundle.here()
    parser = argparse.ArgumentParser(prog="python -m hardware", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("run", "bundle"))
    parser.add_argument(
        "--python", default=own, metavar="VERSION", help="the version that is to run it (default: %(default)s)"
    )
    parser.add_argument("--machine", default=machine, help="x86_64 or aarch64 (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("arguments", nargs="*", help="of run.py, after --")
    return parser


def main() -> int:
    given = parser().parse_args()
    try:
        folder = bundle.write(given.folder, python=given.python, machine=given.machine)
    except bundle.BundleError as error:
        print(error, file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / (1 << 20):.1f} MiB, for CPython {given.python} on {given.machine}", flush=True)
    if given.command == "bundle":
        return 0
    return subprocess.run([sys.executable, str(folder / "run.py"), *given.arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
