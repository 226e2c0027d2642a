"""What the readings of a NIC mean.

An unused port is no fault of the node: most cards have one that was never cabled. So what is wrong with a link
or a driver is Unhealthy only while a resource offers the NIC, and shown as Degraded else.
"""

from __future__ import annotations

from msgspec.structs import replace
from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition, hot, node_missing
from nodedevices_plugin.vendors.nic import onload


def read(readings: Readings) -> tuple[FaultCondition, ...]:
    return (
        FaultCondition(
            reason="DriverUnbound",
            state=HealthState.UNHEALTHY,
            unused=HealthState.DEGRADED,
            message="no driver is bound to the NIC",
            evident=attributes.DRIVER_UNBOUND in readings.conditions,
            action="Inspect",
            ends_by_itself=True,
        ),
        FaultCondition(
            reason="LinkDown",
            state=HealthState.UNHEALTHY,
            unused=HealthState.DEGRADED,
            message="the NIC has lost its link: the cable, the transceiver or the switch's port",
            evident=attributes.LINK_DOWN in readings.conditions,
            action="Inspect",
            ends_by_itself=True,
        ),
        replace(node_missing(readings), unused=HealthState.DEGRADED),
        onload.condition(readings),
        FaultCondition(
            reason="NoLink",
            state=HealthState.DEGRADED,
            message="the NIC has had no link since the machine was booted",
            evident=attributes.NO_LINK in readings.conditions,
            action="Inspect",
            ends_by_itself=True,
        ),
        FaultCondition(
            reason="FewerPorts",
            state=HealthState.DEGRADED,
            message="the card has fewer ports than the others of its model on this node",
            evident=attributes.FEWER_PORTS in readings.conditions,
            action="Inspect",
            ends_by_itself=True,
        ),
        hot(readings),
    )


REASONS = tuple(condition.reason for condition in read(Readings()))
