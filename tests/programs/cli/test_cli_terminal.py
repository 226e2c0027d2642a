"""The command itself in a real terminal: colours, and progress that leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

from support.command_line import CommandLine, failed, gpu, node
from support.recorded_api import NODE_DEVICES, RecordedApi
from support.terminal import ESCAPE, on_a_terminal

COMMAND = str(Path(sys.executable).with_name("kubectl-nodedevices"))
CLEARED = f"\r{ESCAPE}K"


def test_a_terminal_is_shown_progress_that_goes_and_colours_that_stay(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, *(node(f"n{number}") for number in range(500)), node("n500", gpu(0, **failed())))
    shown = on_a_terminal(COMMAND, "devices", **kubectl.environment, TERM="xterm")
    before, _, after = shown.partition(CLEARED)
    assert before == "\r500 read \r501 read "
    assert f"{ESCAPE}31mUnhealthy{ESCAPE}0m" in after
    assert [line.split()[0].removeprefix(f"{ESCAPE}1m") for line in after.splitlines()] == ["NODE", "n500"]


def test_a_terminal_with_no_color_gets_the_same_words_alone(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, node("n1", gpu(0, **failed())))
    shown = on_a_terminal(COMMAND, "devices", **kubectl.environment, TERM="xterm", NO_COLOR="1")
    assert ESCAPE not in shown
    assert "Unhealthy" in shown
