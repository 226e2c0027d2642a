"""The faults of a NIC: by its readings, by lines of the kernel's log, and by error counters that rise too fast.

An unused port is no fault of the node: most cards have one that was never cabled. So what is wrong with a link
or a driver is Unhealthy only while a resource offers the NIC, and shown as Degraded else.

Lines of mlx5 and of PCIe's error reporting: the kernel's drivers/net/ethernet/mellanox/mlx5/core (health.c, events.c,
cmd.c); which of them are fatal as NVSentinel has them. A NIC whose firmware is dead or has failed serves no traffic
until it is reset: Unhealthy. The driver resets it itself as a rule, and says so: that is the evidence, beside a new
boot and a person.

Counters and numbers are those of NVSentinel's NIC monitor (docs/configuration/nic-health-monitor.md of 1.31), with a
rate per second as one per minute. Where we differ:
- A link that was down is Degraded, and Unhealthy when it was lost three times within three hours (as in defaults.yaml
  of Azure's cyclecloud-healthagent): `LinkDown` takes the NIC out of service while it is down, and a switch that was
  restarted leaves nothing to repair. An interface loses its carrier also when it is set down, for another MTU or for a
  pod: more than five times are Degraded, as there.
- More than 120 symbol errors in an hour (a bit error rate above InfiniBand's limit) are Degraded: the link works.
- `rnr_nak_retry_err`, `local_ack_timeout_err` and `roce_slow_restart` rise when a program at the other end is slow
  or was killed. They count once they have risen for five minutes, and are Degraded.
- A fault ends when the window no longer has more than the limit; theirs lasts until the counter is cleared.

Those of Amazon's EFA are from the efa monitor of eks-node-monitoring-agent (efa.go): a bucket of 100 that fills by one
a second, an Event there. Here: more than 100 in a minute, for five minutes, since a job that is killed leaves its peers
with such errors. What is sent again (`retrans_pkts`, `retrans_bytes`) is no error of its own and is not read.

`most`: the kernel gives as many bits as InfiniBand's PortCounters have (drivers/infiniband/core/sysfs.c); these stop
at their greatest value.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace
from nodedevices_probe import kmsg, nic as attributes
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import (
    PCIE_MEANINGS,
    CounterLimit,
    Effect,
    FaultCondition,
    FaultSource,
    Meaning,
    hot,
    node_missing,
)

MEANINGS: Mapping[str, Meaning] = {
    kmsg.MLX5_STALLED: Meaning(
        reason="FirmwareStalled",
        effect=Effect.UNHEALTHY,
        message="the NIC's firmware has stopped (mlx5: health compromised, reached miss count)",
        action="ResetDevice",
    ),
    kmsg.MLX5_FATAL: Meaning(
        reason="FirmwareFatal",
        effect=Effect.UNHEALTHY,
        message="the NIC's firmware or hardware reports a fatal error (mlx5)",
        action="ResetDevice",
    ),
    kmsg.MLX5_RECOVERED: Meaning(
        reason="FirmwareRecovered",
        effect=Effect.REPAIRED,
        message="the NIC's driver has recovered it (mlx5: health recovery succeeded)",
        repairs=frozenset({"FirmwareStalled", "FirmwareFatal"}),
    ),
    kmsg.MLX5_COMMAND_TIMEOUT: Meaning(
        reason="FirmwareTimeout",
        effect=Effect.DEGRADED,
        message="the NIC's firmware did not answer a command of its driver (mlx5)",
        repair="ResetDevice",
    ),
    kmsg.MLX5_MODULE_HOT: Meaning(
        reason="ModuleHot", effect=Effect.DEGRADED, message="the transceiver of the NIC is too hot (mlx5)"
    ),
    kmsg.MLX5_SLOT_POWER: Meaning(
        reason="SlotPower", effect=Effect.NOTICE, message="the NIC's PCIe slot has too little power for it (mlx5)"
    ),
    **PCIE_MEANINGS,
}


MINUTE, HOUR = 60.0, 3600.0
LASTING = 5 * MINUTE
_4_BITS, _8_BITS, _16_BITS = 15, 255, 65535

_FLAPPING = CounterLimit(
    counter="linkDowned",
    limit=2,
    window_seconds=3 * HOUR,
    most=_8_BITS,
    reason="LinkFlapping",
    state=HealthState.UNHEALTHY,
    unused=HealthState.DEGRADED,
    message="the NIC has lost its link three times or more within three hours: the cable, the transceiver or the"
    " switch's port",
    action="Inspect",
)
_EFA = CounterLimit(
    counter="retransTimeoutEvents",
    limit=100,
    window_seconds=MINUTE,
    for_seconds=LASTING,
    reason="EfaRetransmitTimeouts",
    message="more than 100 timeouts a minute of EFA's connections, which took another path, for 5 minutes",
)
LIMITS = (
    _FLAPPING,
    replace(
        _FLAPPING,
        counter=attributes.CARRIER_DOWN_COUNT,
        limit=5,
        most=None,
        state=HealthState.DEGRADED,
        message="the interface has lost its carrier six times or more within three hours, or was set down so often: the"
        " cable, the transceiver or the switch's port",
    ),
    CounterLimit(
        counter="localLinkIntegrityErrors",
        limit=0,
        window_seconds=10 * MINUTE,
        most=_4_BITS,
        reason="LinkIntegrityErrors",
        state=HealthState.UNHEALTHY,
        unused=HealthState.DEGRADED,
        message="the port had more errors of its link than its hardware allows: the cable or the transceiver",
        action="Inspect",
    ),
    CounterLimit(
        counter="excessiveBufferOverrunErrors",
        limit=0,
        window_seconds=10 * MINUTE,
        most=_4_BITS,
        reason="BufferOverruns",
        state=HealthState.UNHEALTHY,
        unused=HealthState.DEGRADED,
        message="the port's receive buffer has overrun: a wrong configuration of the fabric, or the hardware",
        action="Inspect",
    ),
    CounterLimit(
        counter="linkDowned",
        limit=0,
        window_seconds=HOUR,
        most=_8_BITS,
        reason="LinkWasDown",
        message="the NIC has lost its link within the last hour, and connections with it",
    ),
    CounterLimit(
        counter="symbolError",
        limit=120,
        window_seconds=HOUR,
        most=_16_BITS,
        reason="SymbolErrors",
        message="more than 120 symbol errors within an hour: a dirty or failing cable or transceiver",
        action="Inspect",
    ),
    CounterLimit(
        counter="linkErrorRecovery",
        limit=5,
        window_seconds=MINUTE,
        most=_8_BITS,
        reason="LinkErrorRecovery",
        message="the link was trained again more than 5 times within a minute: the cable or the transceiver",
        action="Inspect",
    ),
    CounterLimit(
        counter="portRcvErrors",
        limit=600,
        window_seconds=MINUTE,
        most=_16_BITS,
        reason="PortReceiveErrors",
        message="more than 10 packets with errors a second: the cable or the transceiver, here or on the way",
        action="Inspect",
    ),
    CounterLimit(
        counter="portXmitDiscards",
        limit=6000,
        window_seconds=MINUTE,
        most=_16_BITS,
        reason="PortTransmitDiscards",
        message="more than 100 packets a second were discarded before they were sent: congestion, or flow control",
    ),
    CounterLimit(
        counter="localAckTimeoutErr",
        limit=60,
        window_seconds=MINUTE,
        for_seconds=LASTING,
        reason="LocalAckTimeouts",
        message="more than one packet a second was not acknowledged, for 5 minutes: the fabric, or a peer",
    ),
    CounterLimit(
        counter="rnrNakRetryErr",
        limit=0,
        window_seconds=MINUTE,
        for_seconds=LASTING,
        reason="ReceiverNotReady",
        message="connections were given up for 5 minutes because a peer was not ready to receive",
    ),
    CounterLimit(
        counter="roceSlowRestart",
        limit=600,
        window_seconds=MINUTE,
        for_seconds=LASTING,
        reason="RoceSlowRestarts",
        message="more than 10 slow restarts of RoCE a second, for 5 minutes: packets are lost on the way",
    ),
    _EFA,
    replace(
        _EFA,
        counter="unresponsiveRemoteEvents",
        reason="EfaRemoteUnresponsive",
        message="a peer of EFA's connections did not respond more than 100 times a minute, for 5 minutes",
    ),
    replace(
        _EFA,
        counter="impairedRemoteConnEvents",
        reason="EfaConnectionsImpaired",
        message="more than 100 of EFA's connections a minute were slowed down as impaired, for 5 minutes",
    ),
    *(
        replace(
            _EFA,
            counter=counter,
            reason="EfaWorkRequestErrors",
            message="more than 100 reads or writes a minute over EFA ended with an error, for 5 minutes",
        )
        for counter in ("rdmaReadWrErr", "rdmaWriteWrErr")
    ),
    replace(
        _EFA,
        counter="rxDrops",
        reason="EfaReceiveDrops",
        message="more than 100 packets a minute were received by EFA and dropped, for 5 minutes",
    ),
)


class NicFaults(FaultSource):
    meanings = MEANINGS
    counter_limits = LIMITS

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
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
            FaultCondition(
                reason="OnloadMissing",
                state=HealthState.UNHEALTHY,
                unused=HealthState.DEGRADED,
                message="Onload's kernel modules are not loaded, or its device nodes are not there",
                evident=attributes.ONLOAD_MISSING in readings.conditions,
                action="Inspect",
                ends_by_itself=True,
            ),
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
