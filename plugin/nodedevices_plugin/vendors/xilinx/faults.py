"""What the readings of Xilinx' cards mean. Sources: XRT's firewall.c, and its documents on troubleshooting."""

from __future__ import annotations

from nodedevices_probe.fpga import FIREWALL, NO_SHELL
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition, hot, node_missing


def read(readings: Readings) -> tuple[FaultCondition, ...]:
    return (
        FaultCondition(
            reason="FirewallTripped",
            state=HealthState.UNHEALTHY,
            message="the card's AXI firewall has cut the FPGA off after an access that failed",
            evident=FIREWALL in readings.conditions,
            action="ResetDevice",
            ends_by_itself=True,
        ),
        node_missing(readings),
        FaultCondition(
            reason="NoShell",
            state=HealthState.DEGRADED,
            message="the card has only its golden image: program a shell (xbmgmt program --base), then reboot",
            evident=NO_SHELL in readings.conditions,
            action="Inspect",
            ends_by_itself=True,
        ),
        hot(readings),
    )


REASONS = tuple(condition.reason for condition in read(Readings()))
