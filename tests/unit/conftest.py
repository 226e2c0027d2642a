"""Nothing in this folder starts a process: a test that does fails there."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

STARTS = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})


class Guard:
    """An audit hook, which nobody can take out again: other folders' tests run in the same process."""

    on = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and event in STARTS:
            pytest.fail(f"{event} {arguments[:1]}: tests/unit starts no process; move this test to tests/programs")


GUARD = Guard()
sys.addaudithook(GUARD)


# Not at a teardown: the last test of a worker ends what tests of other folders have started, by programs.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from guarded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from guarded())


def guarded() -> Generator[None, object, object]:
    GUARD.on = True
    try:
        return (yield)
    finally:
        GUARD.on = False
