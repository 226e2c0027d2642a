"""Runs tests against a changed module, each time in a fork of a process that has loaded already what it can.

There are two such processes. `collected` has our packages and all tests: a change within a function is made in the
function that is there, whoever has imported it, and then nothing but the tests runs. `bare` has others' packages only:
what runs when a module is loaded (a table, a default, a class's body) can be changed only before that. To load our
packages and to collect tests costs more processor time than most tests.

Orders come as lines of JSON, and each is answered by a line: "ok", "failed", or "no" where the function cannot be
changed in place. Tests that run on are ended, and count as failed: by their processor time, as a busy machine is no
reason, or where they wait for what does not come, by the pytest-timeout of each.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any

import pytest
from mutants import plugin

# Not ours: which of ours are changed is not known yet.
LOADED = (
    *("aiohttp.web", "coverage", "grpc.aio", "hypothesis.stateful", "kopf", "kubernetes.aio"),
    *("orjson", "prometheus_client", "pydantic", "pytest_asyncio.plugin", "pytest_timeout", "structlog.testing"),
    *("xdist.plugin", "yaml"),
)
# plain: what is loaded cannot be rewritten. The timeout is for tests that wait for what a change keeps from coming.
OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", "--assert=plain", "--timeout=900")
ANSWERS = ("ok", "failed", "no")  # by exit status of the fork


class Collected:
    """In place of running the collected tests: those of each order."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions: dict[str, list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                functions[each.__code__.co_filename].append(each)
        gc.freeze()

        def run(order: dict[str, Any]) -> int:
            if not _replace(functions[order["path"]], order["path"], order["text"], order["line"]):
                return ANSWERS.index("no")
            tests = [items[each] for each in order["tests"] if each in items]
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                if session.testsfailed:
                    return ANSWERS.index("failed")
            return ANSWERS.index("ok")

        serve(run, self._answers)
        return True


def _replace(functions: list[FunctionType], path: str, text: str, line: int) -> bool:
    """Give the loaded function around this line its new code. False where that is not possible."""
    found = next(_around(ast.parse(text), line, ""), None)
    if found is None:
        return False
    code = next(_codes(compile(text, path, "exec"), *found), None)
    old = [each for each in functions if (each.__code__.co_qualname, each.__code__.co_firstlineno) == found]
    made_already = any(each.__code__.co_qualname.startswith(f"{found[0]}.<locals>") for each in functions)
    if code is None or not old or made_already or any(each.__code__.co_freevars != code.co_freevars for each in old):
        return False
    for each in old:
        each.__code__ = code
    return True


def _around(node: ast.AST, line: int, within: str) -> Iterator[tuple[str, int]]:
    """The outermost function that has this line: its qualified name, and where it begins with its decorators."""
    for each in ast.iter_child_nodes(node):
        first = min((one.lineno for one in getattr(each, "decorator_list", ())), default=getattr(each, "lineno", 0))
        if not first <= line <= (getattr(each, "end_lineno", None) or 0):
            continue
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield within + each.name, first
        else:
            yield from _around(each, line, f"{within}{each.name}." if isinstance(each, ast.ClassDef) else within)


def _codes(code: CodeType, name: str, first: int) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if (each.co_qualname, each.co_firstlineno) == (name, first):
                yield each
            yield from _codes(each, name, first)


def serve(run: Callable[[dict[str, Any]], int], answers: IO[str]) -> None:
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_alone(run, order))
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have started
        ended = os.WIFSIGNALED(status)
        print("failed" if ended else ANSWERS[os.waitstatus_to_exitcode(status)], file=answers, flush=True)


def _alone(run: Callable[[dict[str, Any]], int], order: dict[str, Any]) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (order["seconds"], order["seconds"]))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    try:
        return run(order)
    except BaseException:
        return ANSWERS.index("failed")


def main(kind: str, *arguments: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        options = [*OPTIONS, f"--basetemp={Path(folder) / 'tests'}"]
        if kind == "collected":
            pytest.main([*options, *arguments], plugins=[Collected(answers)])
            return
        for name in LOADED:
            importlib.import_module(name)

        def run(order: dict[str, Any]) -> int:
            plugin.change(order["path"], order["text"])
            return ANSWERS.index("failed" if pytest.main([*options, "-x", *order["tests"]]) else "ok")

        serve(run, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
