"""`make krew`: write the single file, krew's archive and krew's manifest into dist/krew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from krew.pack import ROOT, pack, write

FOLDER = ROOT / "dist" / "krew"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m krew", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"default {FOLDER.relative_to(ROOT)}")
    for path in write(parser.parse_args().folder, pack()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
