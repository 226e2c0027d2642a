"""The configurations of nodes, each different one kept once.

A fleet has few different ones, each as large as its policies; one for each node took the operator over its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import orjson


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
