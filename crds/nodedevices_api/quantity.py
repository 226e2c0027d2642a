"""Kubernetes quantities for memory: `80Gi` <-> bytes. Exact: whole bytes in, whole bytes out.

Only what a device's memory can be: not negative, at most nine decimal places, no exponents.
Anything else raises ValueError with what would be right.
"""

from __future__ import annotations

import re

QUANTITY_PATTERN = r"^[0-9]{1,19}([.][0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"
MEBIBYTE = 1 << 20

_FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}
_BINARY = tuple(reversed([(suffix, factor) for suffix, factor in _FACTORS.items() if suffix.endswith("i")]))
_SHAPE = re.compile(QUANTITY_PATTERN)


def to_bytes(text: str) -> int:
    """Bytes that a quantity stands for, rounded up to a whole byte as Kubernetes does. ValueError if it is none."""
    if _SHAPE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a quantity; write bytes or a number with a unit, such as 80Gi or 81559Mi")
    number = text.rstrip("KMGTPEki")
    whole, _, decimals = number.partition(".")
    scale: int = 10 ** len(decimals)
    return -(-int(whole + decimals) * _FACTORS[text[len(number) :]] // scale)


def from_bytes(count: int) -> str:
    """The shortest exact form with a binary unit: 85899345920 -> `80Gi`; bytes where no unit divides the number."""
    if count < 0:
        raise ValueError(f"{count} bytes: a quantity of memory is not negative")
    for suffix, factor in _BINARY:
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)
