"""What lines of mlx5 and of PCIe's error reporting in the kernel's log mean for a NIC.

Sources: the kernel's drivers/net/ethernet/mellanox/mlx5/core (health.c, events.c, cmd.c); which of them are fatal as
NVSentinel has them. A NIC whose firmware is dead or has failed serves no traffic until it is reset: Unhealthy. The
driver resets it itself as a rule, and says so: that is the evidence, beside a new boot and a person.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_probe import kmsg as kinds

from nodedevices_plugin.vendors.faults import Effect, Meaning, pcie_meanings

RESET = "ResetDevice"
MEANINGS: Mapping[str, Meaning] = {
    kinds.MLX5_STALLED: Meaning(
        reason="FirmwareStalled",
        effect=Effect.UNHEALTHY,
        message="the NIC's firmware has stopped (mlx5: health compromised, reached miss count)",
        action=RESET,
    ),
    kinds.MLX5_FATAL: Meaning(
        reason="FirmwareFatal",
        effect=Effect.UNHEALTHY,
        message="the NIC's firmware or hardware reports a fatal error (mlx5)",
        action=RESET,
    ),
    kinds.MLX5_RECOVERED: Meaning(
        reason="FirmwareRecovered",
        effect=Effect.REPAIRED,
        message="the NIC's driver has recovered it (mlx5: health recovery succeeded)",
        repairs=frozenset({"FirmwareStalled", "FirmwareFatal"}),
    ),
    kinds.MLX5_COMMAND_TIMEOUT: Meaning(
        reason="FirmwareTimeout",
        effect=Effect.DEGRADED,
        message="the NIC's firmware did not answer a command of its driver (mlx5)",
        repair=RESET,
    ),
    kinds.MLX5_MODULE_HOT: Meaning(
        reason="ModuleHot", effect=Effect.DEGRADED, message="the transceiver of the NIC is too hot (mlx5)"
    ),
    kinds.MLX5_SLOT_POWER: Meaning(
        reason="SlotPower", effect=Effect.NOTICE, message="the NIC's PCIe slot has too little power for it (mlx5)"
    ),
    **pcie_meanings(),
}
REASONS = tuple(meaning.reason for meaning in MEANINGS.values() if meaning.effect is not Effect.REPAIRED)
