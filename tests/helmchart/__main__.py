"""`PYTHONPATH=tests python -m helmchart [--check]`: write what is generated of manifests/chart, or compare it."""

from __future__ import annotations

import argparse
import sys

from crdgen import generate
from helmchart import templates, values


def main() -> int:
    """Exit status: 0 written or equal, 1 different."""
    parser = argparse.ArgumentParser(prog="python -m helmchart", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    files = templates.made() | {templates.CHART / name: text for name, text in values.made().items()}
    shown = {path.relative_to(templates.ROOT): text for path, text in files.items()}
    return generate.write(shown, check=parser.parse_args().check)


if __name__ == "__main__":
    sys.exit(main())
