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
        _gauge("temperature_margin_celsius", "Temperature left up to the highest at which the device may work."),
    ),
    ("power_milliwatts", 0.001, _gauge("power_watts", "Power drawn by the device.")),
    ("power_limit_milliwatts", 0.001, _gauge("power_limit_watts", "Power that the device may draw.")),
    ("fan_percent", 0.01, _gauge("fan_speed_ratio", "Speed of the fan, as a share of its highest: 0 to 1.")),
    (
        "utilization_percent",
        0.01,
        _gauge("utilization_ratio", "Share of the time in which the device computed: 0 to 1."),
    ),
    ("memory_used_bytes", 1, _gauge("memory_used_bytes", "Memory of the device in use.")),
    ("sm_clock_mhz", 1e6, _gauge("sm_clock_hertz", "Clock of the multiprocessors.")),
    ("memory_clock_mhz", 1e6, _gauge("memory_clock_hertz", "Clock of the memory.")),
    (
        "ecc_uncorrectable_volatile",
        1,
        _gauge("ecc_uncorrectable_volatile", "Uncorrected ECC errors since the last reset."),
    ),
    (
        "ecc_uncorrectable_aggregate",
        1,
        _gauge("ecc_uncorrectable_aggregate", "Uncorrected ECC errors over the device's lifetime."),
    ),
    ("remapped_correctable", 1, _gauge("remapped_rows_correctable", "Rows remapped for correctable errors.")),
    ("remapped_uncorrectable", 1, _gauge("remapped_rows_uncorrectable", "Rows remapped for uncorrectable errors.")),
    ("remap_pending", 1, _gauge("remap_pending", "1 if a row remap is pending until a reset, else 0.")),
    ("remap_failure", 1, _gauge("remap_failure", "1 if a row could not be remapped, else 0.")),
    ("nvlinks_inactive", 1, _gauge("nvlinks_inactive", "NVLinks that are down.")),
    ("pcie_replays", 1, _gauge("pcie_replays", "PCIe replays.")),
    ("thermal_slowdown", 1, _gauge("thermal_slowdown", "1 if clocks are lowered because of the temperature, else 0.")),
    ("hw_slowdown", 1, _gauge("hw_slowdown", "1 if the hardware lowers the clocks, whatever for, else 0.")),
    ("power_brake", 1, _gauge("power_brake", "1 if clocks are lowered because the power supply asks for it, else 0.")),
)
_MEMORY = _gauge("memory_bytes", "Memory of the device.")
_ERRORS = gauge(
    "nodedevices_device_errors",
    "Errors that the driver has counted, by its counters: of a NIC `symbolError`, ...; it may begin again at 0.",
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
