"""Parts of a raw JSON object that anybody may have written: what has another type reads as absent. Nothing raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]


def mapping(value: object) -> Raw:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Raw]:
    """Return the objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""
