"""Readings of devices as metrics, where telemetry is on. Only readings that the hardware gives are shown."""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_common.metrics import MetricRow, Sample, gauge, rows
from nodedevices_probe.protocol import memory_bytes
from prometheus_client import Gauge

from nodedevices_plugin.model import InventoryDevice
from nodedevices_plugin.status.samples import DEVICE, labels


def _gauge(name: str, text: str) -> MetricRow[Gauge]:
    return gauge(f"nodedevices_device_{name}", text, DEVICE)


# The reading's name, what it is multiplied by, and the metric.
_READINGS = (
    ("temperature_celsius", 1, _gauge("temperature_celsius", "Temperature of the device.")),
    (
        "temperature_margin_celsius",
        1,
        _gauge("temperature_margin_celsius", "Temperature left to the maximum at which the device may work."),
    ),
    ("power_milliwatts", 0.001, _gauge("power_watts", "Power drawn by the device.")),
    ("power_limit_milliwatts", 0.001, _gauge("power_limit_watts", "Maximum power of the device.")),
    ("fan_percent", 0.01, _gauge("fan_speed_ratio", "Fan speed as a share of its maximum, 0 to 1.")),
    (
        "utilization_percent",
        0.01,
        _gauge("utilization_ratio", "Share of time in which the device computed, 0 to 1."),
    ),
    ("memory_used_bytes", 1, _gauge("memory_used_bytes", "Used memory of the device.")),
    ("sm_clock_mhz", 1e6, _gauge("sm_clock_hertz", "Clock of the multiprocessors.")),
    ("memory_clock_mhz", 1e6, _gauge("memory_clock_hertz", "Clock of the memory.")),
    (
        "ecc_uncorrectable_volatile",
        1,
        _gauge("ecc_uncorrectable_volatile", "Total uncorrected ECC errors since the last reset."),
    ),
    (
        "ecc_uncorrectable_aggregate",
        1,
        _gauge("ecc_uncorrectable_aggregate", "Total uncorrected ECC errors of the device."),
    ),
    ("remapped_correctable", 1, _gauge("remapped_rows_correctable", "Number of rows remapped for correctable errors.")),
    (
        "remapped_uncorrectable",
        1,
        _gauge("remapped_rows_uncorrectable", "Number of rows remapped for uncorrectable errors."),
    ),
    ("remap_pending", 1, _gauge("remap_pending", "Whether a row remap waits for a reset.")),
    ("remap_failure", 1, _gauge("remap_failure", "Whether a row could not be remapped.")),
    ("nvlinks_inactive", 1, _gauge("nvlinks_inactive", "Number of NVLinks that are down.")),
    ("pcie_replays", 1, _gauge("pcie_replays", "Total PCIe replays.")),
    ("thermal_slowdown", 1, _gauge("thermal_slowdown", "Whether clocks are lowered because of the temperature.")),
    ("hw_slowdown", 1, _gauge("hw_slowdown", "Whether the hardware lowers the clocks, for any reason.")),
    ("power_brake", 1, _gauge("power_brake", "Whether clocks are lowered because the power supply asks for it.")),
)
_MEMORY = _gauge("memory_bytes", "Memory of the device.")
_ERRORS = gauge(
    "nodedevices_device_errors",
    "Total errors by the driver's counters, such as a NIC's `symbolError`; may restart at 0.",
    f"{DEVICE} counter",
)
ROWS = rows((_MEMORY, _ERRORS, *(row for _, _, row in _READINGS)))  # for docs/metrics.md


def samples(devices: tuple[InventoryDevice, ...]) -> Iterator[Sample]:
    for device in devices:
        for reading, factor, row in _READINGS if device.present else ():
            value = getattr(device.fact.readings, reading)
            if value is not None:
                yield row, labels(device), float(value) * factor
        for name, counted in device.fact.readings.counters.items() if device.present else ():
            yield _ERRORS, (*labels(device), name), counted
        if total := memory_bytes(device.fact.capacity):
            yield _MEMORY, labels(device), total
