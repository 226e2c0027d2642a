"""Several cases of one test: all of them run, and each that fails is named.

For cases that are data. What needs a fresh fixture for each, or takes seconds, has `pytest.mark.parametrize`, which
makes a test of each case: as many again to be collected by every worker.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

Test = Callable[..., Any]


def cases(
    names: str | tuple[str, ...], *values: Any, ids: Iterable[str] | Callable[[Any], str] = ()
) -> Callable[[Test], Test]:
    """`names` of arguments, and their values in each case: one, or a tuple with one for each name."""
    if len(values) == 1 and isinstance(values[0], list):
        raise TypeError("a list is one case: give the cases one after another, or *list")
    keys = (names,) if isinstance(names, str) else names
    named = [*map(ids, values)] if callable(ids) else [*ids]
    rows = [row(keys, value, named[at] if named else "") for at, value in enumerate(values)]

    def decorate(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(*others: Any, **fixtures: Any) -> None:
                failed: list[BaseException] = []
                for case, given in rows:
                    with noted(case, failed):
                        await test(*others, **fixtures, **given)
                raised(failed)

        else:

            @functools.wraps(test)
            def run(*others: Any, **fixtures: Any) -> None:
                failed: list[BaseException] = []
                for case, given in rows:
                    with noted(case, failed):
                        test(*others, **fixtures, **given)
                raised(failed)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def row(keys: tuple[str, ...], value: Any, name: str) -> tuple[str, dict[str, Any]]:
    """A case: what it is called, and its arguments."""
    if isinstance(value, ParameterSet):
        given, name = value.values, str(value.id or "")
    else:
        given = (value,) if len(keys) == 1 else tuple(value)
    arguments = dict(zip(keys, given, strict=True))
    return name or ", ".join(f"{key}={reprlib.repr(each)}" for key, each in arguments.items()), arguments


@contextmanager
def noted(case: str, failed: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        error.add_note(f"in the case {case}")
        failed.append(error)


def raised(failed: list[BaseException]) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} cases", failed)
