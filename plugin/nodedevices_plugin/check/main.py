"""The command nodedevices-check: loads the rest, and runs it."""

from __future__ import annotations

import sys

from nodedevices_common import loading


def main() -> int:
    with loading.quickly():
        from nodedevices_plugin.check import command  # noqa: PLC0415  loaded quickly
    return command.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
