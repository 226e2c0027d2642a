"""What the readings of an AMD GPU mean. Sources: amdgpu_ras.c, and AMD's RAS documentation in the kernel's tree."""

from __future__ import annotations

from nodedevices_probe.amd import EXPORTER_UNHEALTHY
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition, hot, node_missing

RESET = "ResetDevice"


def read(readings: Readings) -> tuple[FaultCondition, ...]:
    errors = readings.ecc_uncorrectable_volatile
    return (
        FaultCondition(
            reason="PageRetirementFailure",
            state=HealthState.UNHEALTHY,
            message="GPU memory pages with errors can no longer be retired",
            evident=readings.remap_failure,
            action="Replace",
        ),
        FaultCondition(
            reason="EccUncorrectable",
            state=HealthState.UNHEALTHY,
            message="uncorrectable errors since the driver was loaded or the GPU reset",
            evident=None if errors is None else errors > 0,
            action=RESET,
            ends_by_itself=True,
        ),
        node_missing(readings),
        FaultCondition(
            reason="ExporterUnhealthy",
            state=HealthState.UNHEALTHY,
            message="AMD's device metrics exporter calls the GPU unhealthy; its metrics say why",
            evident=EXPORTER_UNHEALTHY in readings.conditions,
            action="Inspect",
            ends_by_itself=True,
        ),
        FaultCondition(
            reason="PageRetirementPending",
            state=HealthState.DEGRADED,
            message="GPU memory pages wait to be retired at the next reset",
            evident=readings.remap_pending,
            action=RESET,
            ends_by_itself=True,
        ),
        hot(readings),
    )


REASONS = tuple(condition.reason for condition in read(Readings()))
