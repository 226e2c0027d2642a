"""Optional interfaces of vendors and sharing modes: what one of them may have besides, found by its methods.

`isinstance` with a runtime-checkable protocol compares every member each time, 20 microseconds on Python 3.11, and a
step of the agent asks some seventy times: two fifths of it. A class has the methods that it has, so it is looked at
once.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    _ProtocolMeta = ABCMeta
else:
    _ProtocolMeta = type(Protocol)

_KNOWN: dict[tuple[type, type], bool] = {}  # interface, class -> the class has it


class _OncePerClass(_ProtocolMeta):
    def __instancecheck__(self, instance: object) -> bool:
        key = (self, type(instance))
        known = _KNOWN.get(key)
        if known is None:
            known = _KNOWN[key] = super().__instancecheck__(instance)
        return known


class OptionalInterface(Protocol, metaclass=_OncePerClass):
    """Base of an optional interface, which is a protocol, too, and runtime-checkable. A member that not every object of
    a class has is not for these."""
