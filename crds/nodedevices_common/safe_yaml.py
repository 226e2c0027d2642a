"""YAML (and so JSON) as people write it, to plain values, read with bounds: no object of Python's, no key that is there
twice (YAML readers keep the last), and never more work than its size allows.

The events come from libyaml where PyYAML has it; the tree is composed here, so that a text is given up as soon as it
has too many values, is nested too deeply or multiplies itself by aliases. Composing in Python also means that a long
text read on a worker thread lets the event loop run in between, which yaml.CSafeLoader, holding the interpreter for the
whole text, does not. Size is for the caller to bound before.

PyYAML, and what reads with it (`yaml_loader`), are loaded with the first text: most nodes have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodedevices_common.errors import InputError

MAX_ALIASES = 16  # aliases multiply: sixteen are plenty for people and too few for a bomb


class YamlError(InputError):
    """Raised with what is wrong, and its line where there is one."""


def load(raw: bytes | str, *, max_values: int, max_aliases: int | None = MAX_ALIASES) -> Any:
    """The one document in it; None where there is none. Raises YamlError, whatever the bytes are. `max_aliases` None:
    for a reader that bounds what they stand for itself."""
    return _read(raw, max_values, max_aliases, lambda loader: loader.get_single_data())


def load_all(raw: bytes | str, *, max_values: int, max_aliases: int | None = MAX_ALIASES) -> list[Any]:
    """The same for every document in it, of all of which there are no more values than that."""

    def documents(loader: Any) -> list[Any]:
        found = []
        while loader.check_data():
            found.append(loader.get_data())
        return found

    made: list[Any] = _read(raw, max_values, max_aliases, documents)
    return made


def _read(raw: bytes | str, max_values: int, max_aliases: int | None, read: Callable[[Any], Any]) -> Any:
    import yaml  # noqa: PLC0415  see above

    from nodedevices_common.yaml_loader import Loader  # noqa: PLC0415

    try:
        return read(Loader(raw, max_values, max_aliases))
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        what = getattr(error, "problem", None) or str(error).partition("\n")[0][:200]
        raise YamlError(f"{where}not YAML: {what}") from error
