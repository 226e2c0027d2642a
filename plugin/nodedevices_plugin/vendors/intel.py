"""Intel as a vendor. Names and device nodes are those of Intel's GPU plugin (intel-device-plugins-for-kubernetes):
`gpu.intel.com/i915` and `gpu.intel.com/xe`, by the driver."""

from __future__ import annotations

from collections.abc import Sequence, Set

from nodedevices_probe.intel import DRIVER, DRIVERS, FUNCTIONS, VENDOR
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import InventoryDevice, Unit
from nodedevices_plugin.vendors.base import Naming, Vendor, text
from nodedevices_plugin.vendors.faults import FaultCondition, hot, node_missing

DEFAULT_PREFIX = "gpu.intel.com"


class Intel(Vendor):
    name = VENDOR
    types = frozenset({"gpu"})

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Not a physical function that has virtual ones: what it has is theirs."""
        return [Unit(device) for device in devices if FUNCTIONS not in device.fact.extra]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        """By the driver: i915 where another program's probe does not report it."""
        driver = text(unit.device.fact, DRIVER)
        return f"{naming.prefix or DEFAULT_PREFIX}/{driver if driver in DRIVERS else DRIVERS[0]}"

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return (node_missing(readings), hot(readings))
