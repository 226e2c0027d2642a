"""What composes a text of YAML within the bounds of safe_yaml, which loads this with the first text."""

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
from nodedevices_common.safe_yaml import YamlError

MAX_DEPTH = 32
MAX_INT_BITS = 64


class Loader(Composer, _Events, SafeConstructor, Resolver):  # type: ignore[misc]  # _Events is one of two
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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuse a word that PyYAML's own tags do not take (`!!bool maybe`), which raises whatever happens there,
        and an int of any length, which no message can show."""
        try:
            value = super().construct_object(node, deep)
        except (yaml.YAMLError, InputError, RecursionError):
            raise
        except Exception as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{str(node.value)[:40]!r} is not a valid {kind}", node.start_mark
            ) from error
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of more than {MAX_INT_BITS} bits", node.start_mark
            )
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key in seen:
                raise YamlError(f"line {key_node.start_mark.line + 1}: {key[:60]}: is given twice; keep one")
            seen.add(str(key))
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found
