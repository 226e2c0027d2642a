"""`PYTHONPATH=tests python -m dashboards [--check]`: write the dashboards' JSON, or compare it."""

from __future__ import annotations

import argparse
import sys

from crdgen import generate
from dashboards import grafana
from dashboards.files import BOARDS, path


def main() -> int:
    """Exit status: 0 written or equal, 1 different."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    files = {path(board): grafana.text(board) for board in BOARDS}
    return generate.write(files, check=parser.parse_args().check)


if __name__ == "__main__":
    sys.exit(main())
