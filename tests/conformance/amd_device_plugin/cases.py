"""What AMD's own tests ask, and expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.amd_device_plugin.machines import MI210, MI300X

# amdgpu_test.go: how many render nodes belong to each GPU of the MI308X; the number of entries is 32.
MI308X_GPUS = (
    *("0000:0a:00.0", "0000:80:00.0", "0000:a4:00.0", "0000:c8:00.0"),
    *("0001:0b:00.0", "0001:81:00.0", "0001:a5:00.0", "0001:c9:00.0"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Units as (GPU from 1 by PCI address, partition): that plugin orders equal sets by its ids, `test1`
    and so on in its tests, PCI addresses otherwise.
    """

    machine: str
    size: int
    expected: Sequence[tuple[int, int]]
    available: Sequence[tuple[int, int]] = ()  # empty: all but `without`
    without: Sequence[tuple[int, int]] = ()
    required: Sequence[tuple[int, int]] = ()


def parts(gpu: int, low: int, high: int) -> list[tuple[int, int]]:
    return [(gpu, part) for part in range(low, high + 1)]


def firsts(low: int, high: int) -> list[tuple[int, int]]:
    return [(gpu, 0) for gpu in range(low, high + 1)]


# besteffort_policy_test.go. Its MI308X cases expect a number of devices, and no certain ones.
CASES = (
    Case(MI210, 1, firsts(1, 1)),
    Case(MI210, 3, firsts(1, 3)),
    Case(MI210, 5, firsts(1, 5)),
    Case(MI210, 3, firsts(5, 7), available=firsts(3, 8)),
    Case(MI300X, 1, parts(8, 0, 0)),
    Case(MI300X, 3, parts(8, 0, 2)),
    Case(MI300X, 5, parts(8, 0, 4)),
    Case(MI300X, 3, firsts(5, 7), available=firsts(3, 8)),
    Case(MI300X, 3, firsts(5, 7), available=firsts(3, 8), required=firsts(5, 5)),
    Case(MI300X, 8, parts(1, 0, 7)),
    Case(MI300X, 7, parts(8, 0, 6)),
    Case(MI300X, 4, parts(8, 3, 6), without=parts(8, 0, 2)),
    Case(
        MI300X,
        10,
        [*parts(5, 0, 7), *parts(8, 2, 3)],
        without=[*firsts(1, 4), *parts(8, 0, 1)],
    ),
)
