"""YAML (and so JSON) as people write it, to plain values, read with bounds: no object of Python's, no key that is there
twice (YAML readers keep the last), and never more work than its size allows.

The events come from libyaml where PyYAML has it; the tree is composed here, so that a text is given up as soon as it
has too many values, is nested too deeply or multiplies itself by aliases. Composing in Python also means that a long
text read on a worker thread lets the event loop run in between, which yaml.CSafeLoader, holding the interpreter for the
whole text, does not. Size is for the caller to bound before.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

if TYPE_CHECKING:
    _Events: Any = object
else:
    try:
        from yaml.cyaml import CParser as _Events
    except ImportError:
        from yaml.parser import Parser
        from yaml.reader import Reader
        from yaml.scanner import Scanner

        class _Events(Reader, Scanner, Parser):
            def __init__(self, raw: bytes | str) -> None:
                Reader.__init__(self, raw)
                Scanner.__init__(self)
                Parser.__init__(self)


from nodedevices_common.errors import InputError

MAX_ALIASES = 16  # aliases multiply: sixteen are plenty for people and too few for a bomb
MAX_DEPTH = 32
MAX_INT_BITS = 64


class YamlError(InputError):
    """Raised with what is wrong, and its line where there is one."""


class _CheckedScalars(SafeConstructor):
    """A word that PyYAML's own tags do not take (`!!bool maybe`) raises whatever it happens to there, and an int of any
    length is made, which no message can show."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (yaml.YAMLError, InputError, RecursionError):
            raise
        except Exception as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{str(node.value)[:40]!r} is no {kind}", node.start_mark
            ) from error
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of more than {MAX_INT_BITS} bits", node.start_mark
            )
        return value


class _Loader(Composer, _Events, _CheckedScalars, Resolver):  # type: ignore[misc]  # _Events is one of two
    def __init__(self, raw: bytes | str, max_values: int, max_aliases: int | None) -> None:
        _Events.__init__(self, raw)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._values_left = max_values
        self._max_aliases = max_aliases
        self._aliases = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            self._aliases += 1
            if self._max_aliases is not None and self._aliases > self._max_aliases:
                more = f"more than {self._max_aliases} YAML aliases" if self._max_aliases else "an alias (*name)"
                line = self.peek_event().start_mark.line + 1
                raise YamlError(f"line {line}: {more}: not allowed; write the value again")
        self._values_left -= 1
        if self._values_left < 0:
            raise YamlError("there are too many values in it")
        if self._depth >= MAX_DEPTH:
            raise YamlError(f"it is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key in seen:
                raise YamlError(f"line {key_node.start_mark.line + 1}: {key[:60]}: is there twice; keep one")
            seen.add(str(key))
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def load(raw: bytes | str, *, max_values: int, max_aliases: int | None = MAX_ALIASES) -> Any:
    """The one document in it; None where there is none. Raises YamlError, whatever the bytes are. `max_aliases` None:
    for a reader that bounds what they stand for itself."""
    try:
        return _Loader(raw, max_values, max_aliases).get_single_data()
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        what = getattr(error, "problem", None) or str(error).partition("\n")[0][:200]
        raise YamlError(f"{where}not YAML: {what}") from error
