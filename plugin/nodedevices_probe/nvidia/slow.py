"""Facts of a GPU that change seldom: read once a minute, so that a poll is as short as it was without them.

Most are fields, which one call reads: limits of power and temperature, and of each NVLink its generation, speed and
error rate. What a driver or a card does not have is not known (None) and never an error of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from nodedevices_probe.nvidia.calls import NvmlCalls
from nodedevices_probe.protocol import MAX_INTEGER

SLOW_SECONDS = 60.0
TEMPERATURES = (-273, 300)  # degrees Celsius that a card can mean
# The fields that a GPU has once. Limits are in milliwatts; a margin is signed.
_POWER_DEFAULT = pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT
_POWER_LIMIT = pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT
_SLOWDOWN_MARGIN = pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
# Those that each of its NVLinks has.
_VERSION = pynvml.NVML_FI_DEV_NVLINK_GET_VERSION
_SPEED = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
_ERRORS = pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER
_GENERATIONS = {
    pynvml.NVML_NVLINK_VERSION_1_0: 1,
    pynvml.NVML_NVLINK_VERSION_2_0: 2,
    pynvml.NVML_NVLINK_VERSION_2_2: 2,
    pynvml.NVML_NVLINK_VERSION_3_0: 3,
    pynvml.NVML_NVLINK_VERSION_3_1: 3,
    pynvml.NVML_NVLINK_VERSION_4_0: 4,
    pynvml.NVML_NVLINK_VERSION_5_0: 5,
    pynvml.NVML_NVLINK_VERSION_6_0: 6,
}
_TYPES = {  # where a field's value is in its union
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}
EXABIT = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFacts:
    read_at: float = 0.0  # time.monotonic()
    persistence_mode: bool | None = None
    power_limit_milliwatts: int | None = None
    power_default_limit_milliwatts: int | None = None
    slowdown_margin_celsius: int | None = None
    nvlink_generation: int | None = None
    nvlink_megabytes_per_second: int | None = None
    nvlink_errors_per_exabit: int | None = None


def read_slow(nvml: NvmlCalls, handle: Any, links: Sequence[int], *, now: float) -> SlowFacts:
    """`links`: the NVLinks of the GPU that have been up."""
    fields = [_POWER_DEFAULT, _POWER_LIMIT, _SLOWDOWN_MARGIN]
    fields += [(field, link) for field in (_VERSION, _SPEED, _ERRORS) for link in links]
    found = nvml.call("nvmlDeviceGetFieldValues", handle, fields, telemetry=True)
    persistence = nvml.call("nvmlDeviceGetPersistenceMode", handle, telemetry=True)
    values = [value for value in found or () if value.nvmlReturn == pynvml.NVML_SUCCESS]
    speeds = [number for number in _numbers(values, _SPEED) if number > 0]  # a link that is down has none
    return SlowFacts(
        read_at=now,
        persistence_mode=None if persistence is None else bool(persistence),
        power_limit_milliwatts=_first(_numbers(values, _POWER_LIMIT)),
        power_default_limit_milliwatts=_first(_numbers(values, _POWER_DEFAULT)),
        slowdown_margin_celsius=_first(_numbers(values, _SLOWDOWN_MARGIN, *TEMPERATURES)),
        nvlink_generation=_GENERATIONS.get(min(_numbers(values, _VERSION), default=0)),
        nvlink_megabytes_per_second=min(speeds, default=None),
        nvlink_errors_per_exabit=max(map(errors_per_exabit, _numbers(values, _ERRORS)), default=None),
    )


def errors_per_exabit(rate: int) -> int:
    """Return an error rate as NVML has it, 4 bits of mantissa before 8 of a negative exponent of ten (nvml.h,
    NVML_NVLINK_BER_*), in errors per 10^18 bits, as many as a line can say."""
    mantissa, exponent = rate >> 8 & 0xF, rate & 0xFF
    return min(mantissa * EXABIT // int(10**exponent), MAX_INTEGER)


def _numbers(values: Iterable[Any], field: int, low: int = 0, high: int = MAX_INTEGER) -> list[int]:
    """Return what a field says, of each link, where it is a number that the hardware can mean."""
    found = (
        getattr(value.value, _TYPES[value.valueType])
        for value in values
        if value.fieldId == field and value.valueType in _TYPES
    )
    return [number for number in found if low <= number <= high]


def _first(values: Sequence[int]) -> int | None:
    return next(iter(values), None)
