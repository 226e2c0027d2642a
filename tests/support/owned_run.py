"""A run of pytest ends what it has started, however it ends, and removes what a killed one has left.

cluster/rig/runs.py knows how. The run is the process that a person started: of pytest-xdist the controller. Ctrl-C,
SIGTERM and the end of its terminal interrupt it. Then it kills its workers and all else at once: xdist waits 10 seconds
for a worker and kills it, whatever its fixtures have not yet ended. Without workers the fixtures end first. What is
there after all that, and after a second Ctrl-C, is killed when the interpreter exits.
"""

from __future__ import annotations

import atexit
import signal

import pytest
from cluster.rig import runs


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # a worker is part of the controller's run
    runs.begin()
    atexit.register(runs.end)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup: it is ignored
            signal.signal(number, signal.default_int_handler)
    if not session.config.option.collectonly:
        runs.remove_left(session.config.get_terminal_writer().line)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    if exitstatus != pytest.ExitCode.INTERRUPTED or not session.config.pluginmanager.hasplugin("dsession"):
        return
    if ended := runs.end():
        session.config.get_terminal_writer().line(f"\nended what this run had started: {ended}")
