"""The command nodedevices-check: reads its command line, checks once, prints, and returns the exit status.

A wrong command line is UNKNOWN as well (3, where other commands have 2, which means CRITICAL here), with what would be
right on the standard error. Everything that fails is in the output, in the form that was asked for; a wrong command
line only where that is json or nagios, which programs read. The log has errors alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from nodedevices_common import logs
from nodedevices_common.errors import InputError
from nodedevices_common.text import printable

from nodedevices_plugin.check import output, reading, sources
from nodedevices_plugin.check.asked import Asked, form_of, parse
from nodedevices_plugin.check.output import TABLE
from nodedevices_plugin.check.result import Result, Status, conclude, not_checked

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    try:
        asked = parse(arguments, os.environ)
    except InputError as error:
        for problem in error.problems:
            print(f"nodedevices-check: {printable(problem)}", file=sys.stderr)  # noqa: T201  for the command's user
        form = form_of(arguments)
        if form != TABLE:
            node = os.environ.get("NODE_NAME") or socket.gethostname().lower()
            _write(not_checked(error.problems, node=node, time=datetime.now(UTC)), form)
        return Status.UNKNOWN
    logs.configure("error", "auto")
    try:
        result = asyncio.run(_ended_by_signals(asked))
    except Exception:  # a bug of ours, which Python would end with 1: that is WARNING here
        log.exception("check failed")
        result = not_checked(["failed; the log has the error"], node=asked.local.node_name, time=datetime.now(UTC))
    _write(result, asked.output)
    return result.status


def _write(result: Result, form: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a script's locale may have few characters
    sys.stdout.write(output.shown(result, form))


async def _ended_by_signals(asked: Asked) -> Result:
    """Check; a SIGTERM or SIGINT ends the probes' processes, and the result says so."""
    running = asyncio.create_task(_check(asked))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await running
    return not_checked(["ended by a signal"], node=asked.local.node_name, time=datetime.now(UTC))


async def _check(asked: Asked) -> Result:
    local, until = asked.local, time.monotonic() + asked.timeout_seconds
    node = local.node_name
    try:
        async with asyncio.timeout(asked.timeout_seconds):
            found = await sources.read(local, policy=asked.policy, state_file=asked.state_file)
    except TimeoutError:
        why = f"reading files took more than {asked.timeout_seconds:.0f} s; the disk of one may hang"
        return not_checked([why], node=node, time=datetime.now(UTC))
    if found.policy_problem:
        return not_checked([found.policy_problem], node=node, time=datetime.now(UTC))
    read = await reading.read(local, found, asked.expected, until=until)
    problems = [problem for problem in (found.state_problem, found.hardware_problem if read.auto else "") if problem]
    return conclude(read, chosen=asked.device, problems=problems, node=node, time=datetime.now(UTC))
