"""One step in a process of its own: `python -m hardware.child STEP REQUEST RESULT`.

Everything that asks the driver may hang in it for ever: the process that started this one ends it when its time is
over, and takes the result that is there.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

from hardware.step import SKIPPED, Report, Request, SkippedError, why

Step = Callable[[Report, Request], Awaitable[None]]


def main(name: str, request: Path, result: Path) -> None:
    signal.signal(signal.SIGTERM, _end)
    report = Report(result)
    report.write()
    try:
        step: Step = importlib.import_module(f"hardware.{name}").run
        asyncio.run(_whole(step, report, Request.read(request)))
    except SkippedError as error:
        report.outcome, report.because = SKIPPED, str(error)
    except Exception as error:
        report.failed.append("the step")
        report.because = why(error)
    report.write()
    sys.stdout.flush()
    os._exit(0)  # a thread that hangs in the driver keeps nothing waiting


async def _whole(step: Step, report: Report, request: Request) -> None:
    await step(report, request)


def _end(*_: object) -> NoReturn:
    raise SystemExit("ended by a signal")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
