"""Kubernetes quantities. Two grammars, since two kinds of writers:

- memory in our own objects, `80Gi` <-> bytes (`to_bytes`, `from_bytes`): exact, not negative, at most nine decimal
  places, no exponents. Anything else raises ValueError with what would be right.
- amounts in others' objects, such as what a pod requests (`whole_units`): all that the API server takes and hands out,
  exponents included (a pod that requests `1e4` reads `10e3`). What is read as 0 is never accounted for.
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
_SMALL = {"m": 3, "u": 6, "n": 9}  # decimal places
MAX_UNITS = (1 << 63) - 1  # an int64, as Kubernetes counts
_DIGITS = len(str(MAX_UNITS))
_BINARY = tuple(reversed([(suffix, factor) for suffix, factor in _FACTORS.items() if suffix.endswith("i")]))
_SHAPE = re.compile(QUANTITY_PATTERN)
# The API server writes at most 19 digits before the point and nine after it; a few more cost nothing.
_ANY = re.compile(
    r"(?P<sign>[+-]?)(?=[0-9.])(?P<whole>[0-9]{0,64})(?:[.](?P<decimals>[0-9]{0,64}))?"
    r"(?:(?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,9}))?",
    re.ASCII,
)
_MAX_EXPONENT = 128  # beyond it any digits that are taken are more than MAX_UNITS, or less than 1


def to_bytes(text: str) -> int:
    """Bytes that a quantity stands for, rounded up to a whole byte as Kubernetes does. ValueError if it is none."""
    if _SHAPE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a quantity; write bytes or a number with a unit, such as 80Gi or 81559Mi")
    number = text.rstrip("KMGTPEki")
    whole, _, decimals = number.partition(".")
    scale: int = 10 ** len(decimals)
    return -(-int(whole + decimals) * _FACTORS[text[len(number) :]] // scale)


def exact(value: object) -> tuple[int, int] | None:
    """The amount of any quantity as mantissa and power of ten, the same for all ways to write it (`1024Mi`, `1Gi`);
    None for what is no quantity."""
    found = _ANY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    mantissa, power = _digits(found)
    while mantissa and mantissa % 10 == 0:
        mantissa, power = mantissa // 10, power + 1
    return (-mantissa if found["sign"] == "-" else mantissa, power) if mantissa else (0, 0)


def whole_units(value: object) -> int:
    """Whole units of a quantity in anybody's object, rounded up and at most MAX_UNITS, as apimachinery's
    resource.Quantity counts; 0 for what is negative or no quantity."""
    if isinstance(value, str) and len(value) < _DIGITS and value.isascii() and value.isdecimal():
        return int(value)  # nearly all
    if isinstance(value, int):
        return min(max(0, int(value)), MAX_UNITS) if not isinstance(value, bool) else 0
    found = _ANY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found["sign"] == "-":
        return 0
    amount, power = _digits(found)
    power = max(-_MAX_EXPONENT, min(power, _MAX_EXPONENT))
    scale: int = 10 ** abs(power)
    return min(amount * scale if power >= 0 else -(-amount // scale), MAX_UNITS)


def _digits(found: re.Match[str]) -> tuple[int, int]:
    """Return the amount without its sign, as a whole number and a power of ten."""
    decimals, unit = found["decimals"] or "", found["unit"] or ""
    power = int(found["exponent"] or 0) - _SMALL.get(unit, 0) - len(decimals)
    return int((found["whole"] + decimals) or "0") * _FACTORS.get(unit, 1), power


def from_bytes(count: int) -> str:
    """The shortest exact form with a binary unit: 85899345920 -> `80Gi`; bytes where no unit divides the number."""
    if count < 0:
        raise ValueError(f"{count} bytes: a quantity of memory is not negative")
    for suffix, factor in _BINARY:
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)
