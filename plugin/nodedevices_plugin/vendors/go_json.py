"""Keys of files that other device plugins read with Go's encoding/json.

It takes a key in any case, and writes a field that has no name for JSON as it is called in Go: `IsRdma`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GoKeys:
    """Of one object. found: the values of keys that are known, under their usual names. repeated: usual names that are
    there twice, in two spellings."""

    found: Mapping[str, object]
    unknown: tuple[str, ...]
    repeated: tuple[str, ...]


def usual_key(key: str, known: Collection[str]) -> str | None:
    """How a known key is usually written; None: it is not known."""
    if key in known:
        return key
    return next((each for each in known if key.isascii() and each.lower() == key.lower()), None)


def go_keys(value: Mapping[str, object], known: Collection[str]) -> GoKeys:
    found: dict[str, object] = {}
    unknown, repeated = list[str](), list[str]()
    for key, item in value.items():
        usual = usual_key(key, known)
        if usual is None:
            unknown.append(key)
        elif usual in found:
            repeated.append(usual)
        else:
            found[usual] = item
    return GoKeys(found, tuple(unknown), tuple(repeated))
