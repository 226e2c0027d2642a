"""YAML from outside, read with bounds: no object of it, no duplicate key, and never more work than its size allows.

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
            def __init__(self, raw: bytes) -> None:
                Reader.__init__(self, raw)
                Scanner.__init__(self)
                Parser.__init__(self)


from nodedevices_common.errors import InputError
from nodedevices_probe.document import CheckedScalars

MAX_ALIASES = 16  # aliases multiply: sixteen are plenty for people and too few for a bomb
MAX_DEPTH = 32


class YamlError(InputError):
    """What is wrong, with its line where there is one."""


class _Loader(Composer, _Events, CheckedScalars, SafeConstructor, Resolver):  # type: ignore[misc]  # _Events is one of two
    def __init__(self, raw: bytes, max_values: int) -> None:
        _Events.__init__(self, raw)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._values_left = max_values
        self._aliases_left = MAX_ALIASES
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            self._aliases_left -= 1
            if self._aliases_left < 0:
                raise YamlError(f"more than {MAX_ALIASES} YAML aliases; write the values out")
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
                raise YamlError(f"line {key_node.start_mark.line + 1}: {key[:60]} is written twice")
            seen.add(str(key))
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def load(raw: bytes, *, max_values: int) -> Any:
    """The one document in it. Raises YamlError, whatever the bytes are."""
    try:
        return _Loader(raw, max_values).get_single_data()
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise YamlError(f"{where}not YAML: {getattr(error, 'problem', None) or str(error)[:200]}") from error
