"""Equal values kept once: what thousands of nodes have in common, such as an empty set of 216 bytes, or a
configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import orjson

REMEMBERED = 4096  # different sets; a fleet has far fewer


def shared(items: Iterable[str]) -> frozenset[str]:
    """Return the set of these; equal ones are the same object."""
    return _one(frozenset(items))


@lru_cache(REMEMBERED)
def _one(value: frozenset[str]) -> frozenset[str]:
    return value


class _Config(dict[str, Any]):
    """A configuration as it is remembered: a dict, of which there can be weak references."""

    __slots__ = ("__weakref__",)


_configs: WeakValueDictionary[bytes, _Config] = WeakValueDictionary()


def one_of_equals(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same object for all nodes with that configuration; it goes with the last record that has it."""
    try:
        key = sha256(orjson.dumps(config, option=orjson.OPT_SORT_KEYS)).digest()
    except TypeError:  # an integer of more than 64 bits, which no schema of ours allows
        return config
    known = _configs.get(key)
    if known is None:
        known = _configs[key] = _Config(config)
    return known
