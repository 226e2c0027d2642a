"""Every error of ours stands in the one tree, and says what it is for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import nodedevices_api
import nodedevices_common
import nodedevices_operator
import nodedevices_plugin
from nodedevices_common.errors import (
    InputError,
    InputProblem,
    NodeDevicesError,
    OperationError,
    RefusedError,
    RequestError,
    retry_after_seconds,
)
from support.cases import cases

HALF = "\ud800"
BRANCHES = {InputError, RefusedError, OperationError, RequestError}
# Control flow, not an error; a mistake of a developer's that ends `make gen`.
OUTSIDE = {"RetryLater", "UnsupportedSchema"}
NOT_IMPORTED = ("__main__", ".generate")


def ours() -> list[type[BaseException]]:
    found: set[type[BaseException]] = set()
    for package in (nodedevices_api, nodedevices_common, nodedevices_operator, nodedevices_plugin):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(NOT_IMPORTED):
                continue
            members = vars(importlib.import_module(module.name)).values()
            found |= {each for each in members if inspect.isclass(each) and issubclass(each, BaseException)}
    return sorted((each for each in found if each.__module__.startswith("nodedevices_")), key=lambda it: it.__name__)


def test_an_error_of_ours_is_of_one_branch_and_documented() -> None:
    for error in ours():
        if error.__name__ not in OUTSIDE:
            assert issubclass(error, NodeDevicesError), f"{error.__module__}: derive it from nodedevices_common.errors"
            assert error is NodeDevicesError or BRANCHES & set(error.__mro__), error
            assert (error.__doc__ or "").strip(), error


def test_refused_input_has_a_line_for_each_problem() -> None:
    error = InputError(["a: 1 is not allowed; give 2 or more", "b: unknown key"])
    assert error.problems == ("a: 1 is not allowed; give 2 or more", "b: unknown key")
    assert str(error) == "a: 1 is not allowed; give 2 or more; b: unknown key"
    assert InputError("one sentence").problems == ("one sentence",)
    assert isinstance(error, ValueError), "what a validator may raise"


def test_a_refused_input_can_be_shown_and_sent_and_no_answer_has_status_0() -> None:
    assert RequestError("list nodes: no answer").status == 0
    assert RequestError("list nodes: 429", status=429, retry_after=3.0).retry_after == 3.0
    assert RequestError("list nodes: 503", status=503, retry_after=3600.0).retry_after == 60.0
    problems = [InputProblem.at(f"a{HALF}", "is wrong\x1b[2J"), f"{HALF}\u202e is not allowed", "é: fine"]
    error = InputError(problems)
    assert error.place == "a\\ud800"
    assert error.problems == ("a\\ud800: is wrong\\x1b[2J", "\\ud800\\u202e is not allowed", "é: fine")
    str(error).encode()


@cases(
    ("header", "seconds"),
    ("3", 3.0),
    ("0.5", 0.5),
    (None, None),
    ("", None),
    ("-1", None),
    ("120", 60.0),
    ("1e9", 60.0),
    ("nan", None),
    ("Sun", None),
)
def test_a_wait_that_the_server_requires_is_a_minute_at_most(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header) == seconds
