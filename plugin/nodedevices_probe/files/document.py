"""Files that people write for a probe: YAML (and so JSON) of bounded length, to plain values."""

from __future__ import annotations

from typing import Any

from nodedevices_common import safe_yaml

from nodedevices_probe.files.check import CheckError

MAX_FILE_BYTES = 1 << 20  # what an object of Kubernetes can have
MAX_VALUES = 1 << 17


def load(content: str, *, aliases: bool = True) -> Any:
    """The value; None for a document without one. Raises CheckError, also for an alias where `aliases` is false: a few
    lines of them stand for a value without end."""
    try:
        return safe_yaml.load(content, max_values=MAX_VALUES, max_aliases=None if aliases else 0)
    except safe_yaml.YamlError as error:
        raise CheckError(str(error)) from None


def decode(raw: bytes) -> str:
    """The text of a file. Raises CheckError where it is longer than MAX_FILE_BYTES."""
    if len(raw) > MAX_FILE_BYTES:
        raise CheckError(f"more than {MAX_FILE_BYTES} bytes are too many")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckError(f"byte {error.start}: not UTF-8 text") from None
