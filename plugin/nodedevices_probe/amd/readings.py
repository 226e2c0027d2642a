"""Readings for the health of an AMD GPU, and its telemetry: RAS counters, retired pages, sensors, device nodes.

Sources: amdgpu_ras.c and amdgpu_pm.c of the Linux kernel, and its hwmon interface (millidegrees, microwatts, Hz).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodedevices_probe.node import drm
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.protocol import MAX_INTEGER, MAX_SMALL, Readings, within

MAX_BAD_PAGES_BYTES = 1 << 16
_ERRORS = re.compile(r"^ue: ([0-9]{1,18})$", re.MULTILINE)  # ras/*_err_count: uncorrectable
_BAD_PAGE = re.compile(r": ([RPF])$", re.MULTILINE)  # ras/gpu_vram_bad_pages: retired, pending, cannot be retired


@dataclass(frozen=True, slots=True, kw_only=True)
class _Telemetry:
    fan_percent: int | None = None
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


def read(roots: Roots, at: str, device_nodes: Sequence[str], *, telemetry: bool) -> Readings:
    """Read the GPU whose folder is `at`; `device_nodes` are those that its containers need."""
    hwmon = drm.hwmon(roots, at)
    sensors = drm.sensors(roots, hwmon, shown="junction")
    bad_pages = roots.said(f"{at}/ras/gpu_vram_bad_pages", MAX_BAD_PAGES_BYTES)
    pages = None if bad_pages is None else _BAD_PAGE.findall(bad_pages)
    measured = _telemetry(roots, at, hwmon) if telemetry else _Telemetry()
    return Readings(
        remap_pending=None if pages is None else "P" in pages,
        remap_failure=None if pages is None else "F" in pages,
        remapped_uncorrectable=None if pages is None else pages.count("R"),
        ecc_uncorrectable_volatile=_uncorrectable(roots, f"{at}/ras"),
        thermal_slowdown=sensors.hot,
        temperature_celsius=sensors.celsius,
        power_milliwatts=sensors.milliwatts,
        fan_percent=measured.fan_percent,
        utilization_percent=measured.utilization_percent,
        memory_used_bytes=measured.memory_used_bytes,
        sm_clock_mhz=measured.clock_mhz,
        memory_clock_mhz=measured.memory_clock_mhz,
        conditions=drm.missing(roots, device_nodes),
    )


def _uncorrectable(roots: Roots, ras: str) -> int | None:
    """Return how many errors all blocks had. None: none says so, or those that do have none and another does not."""
    files = [name for name in roots.names(ras) if name.endswith("_err_count")]
    counts = [_ERRORS.findall(roots.read(f"{ras}/{name}")) for name in files]
    total = sum(int(number) for count in counts for number in count)
    return min(total, MAX_INTEGER) if total or (counts and all(counts)) else None


def with_use(readings: Readings, roots: Roots, at: str, held: Sequence[int] | None) -> Readings:
    """The same with who uses the GPU. `held`: memory of each process that has some (kfd); None: not known."""
    return replace(
        readings,
        processes=None if held is None else min(len(held), MAX_SMALL),
        memory_allocated_bytes=None if held is None else min(sum(held), MAX_INTEGER),
        utilization_percent=_busy(roots, at),
    )


def _busy(roots: Roots, at: str) -> int | None:
    return within(roots.number(f"{at}/gpu_busy_percent"), 0, 100)


def _telemetry(roots: Roots, at: str, hwmon: str) -> _Telemetry:
    pwm = roots.number(f"{hwmon}/pwm1") if hwmon else None  # 0 to 255
    clocks = [roots.number(f"{hwmon}/freq{number}_input") if hwmon else None for number in (1, 2)]
    return _Telemetry(
        fan_percent=within(pwm * 100 // 255, 0, 100) if pwm is not None else None,
        utilization_percent=_busy(roots, at),
        memory_used_bytes=within(roots.number(f"{at}/mem_info_vram_used"), 0, MAX_INTEGER),
        clock_mhz=_per(clocks[0], 1_000_000, MAX_SMALL),
        memory_clock_mhz=_per(clocks[1], 1_000_000, MAX_SMALL),
    )


def _per(value: int | None, unit: int, high: int) -> int | None:
    return None if value is None else within(value // unit, 0, high)
