"""YAML (and so JSON) as people write it, to plain values: what readers usually let pass silently is refused.

A key that is there twice, of which YAML readers keep the last, is an error with its line. Aliases are, too, where
`aliases` is false: a few lines of them stand for a value without end.
"""

from __future__ import annotations

from typing import Any

import yaml
from nodedevices_common.errors import InputError

from nodedevices_probe.check import CheckError

MAX_FILE_BYTES = 1 << 20  # what an object of Kubernetes can have
MAX_INT_BITS = 64


class CheckedScalars:
    """Before a constructor of PyYAML: a word that its own tags do not take (`!!bool maybe`) raises whatever it happens
    to, and an int of any length is made, which no message can show."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)  # type: ignore[misc]  # of the constructor after it
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


class _Loader(CheckedScalars, yaml.SafeLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise CheckError(f"line {key.start_mark.line + 1}: {key.value}: is there twice; keep one")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


class _PlainLoader(_Loader):
    """Refuses aliases, too."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise CheckError(f"line {self.line + 1}: an alias (*name) is not allowed; write the value again")
        return super().compose_node(parent, index)


def load(content: str, *, aliases: bool = True) -> Any:
    """The value; None for a document without one. Raises CheckError."""
    try:
        return yaml.load(content, Loader=_Loader if aliases else _PlainLoader)  # noqa: S506  both are SafeLoaders
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise CheckError(f"line {line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, CheckError):
            raise
        raise CheckError(f"not YAML: {str(error).splitlines()[0] if str(error) else 'nested too deep'}") from None


def decode(raw: bytes) -> str:
    """The text of a file. Raises CheckError where it is longer than MAX_FILE_BYTES."""
    if len(raw) > MAX_FILE_BYTES:
        raise CheckError(f"more than {MAX_FILE_BYTES} bytes are too many")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckError(f"byte {error.start}: not UTF-8 text") from None
