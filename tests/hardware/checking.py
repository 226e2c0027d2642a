"""nodedevices-check on the real driver."""

from __future__ import annotations

from hardware.probing import check, result_of
from hardware.step import Report, Request


async def run(report: Report, request: Request) -> None:
    answer = check()
    report.add("summary", result_of(answer))
    report.add("answer", answer)
