"""The placement of a pod by the kubelet and the agent: each container's shares are of one device.

The kubelet (devicemanager/manager.go, Allocate and devicesToAllocate, v1.36) goes through the init containers and then
the others. What init containers had, the next ones get first, and the agent adds to it on the same device; a sidecar
and a main container keep what they get. What is free of a reused device and not enough is a refusal, as is a container
for which no device has room. Where nothing is reused, the agent chooses: nodedevices_common.packing, here as there.

Where computing power is shared, too, a device has room only if that much of it is left. An init container's part is
that of those which reuse its shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from nodedevices_common.packing import choose
from nodedevices_common.pod_requests import INIT, WHOLE, Demand

from nodedevices_operator.extender.shares import Steps


class Placement(Struct, frozen=True):
    """`devices` has one for each container up to the first for which there is no room."""

    devices: tuple[str, ...]
    unused: int = 0  # shares that init containers had, that no later one reuses and that the pod keeps
    unused_of: str = ""  # their device

    def complete(self, steps: Steps) -> bool:
        return len(self.devices) == len(steps)


class Cores(Struct):
    """Computing power of devices that share it."""

    left: dict[str, int]  # in percent times the device's shares, as Demand.scaled
    totals: Mapping[str, int]  # shares of each device

    def has(self, device: str, demand: Demand) -> bool:
        return device not in self.left or demand.scaled(self.totals[device]) <= self.left[device]

    def take(self, device: str, demand: Demand) -> None:
        if device in self.left:
            self.left[device] -= demand.scaled(self.totals[device])

    def percent_left(self, device: str) -> int:
        """Rounded down; of a device that does not share it all."""
        return max(0, self.left[device]) // max(1, self.totals[device]) if device in self.left else WHOLE

    def copy(self) -> Cores:
        return Cores(dict(self.left), self.totals)


def place(
    free: dict[str, int], steps: Steps, *, spread: bool, cores: Cores | None = None, demands: Sequence[Demand] = ()
) -> Placement:
    """Return where the containers will be. Takes from `free` what they get, up to the first for which there is no room,
    and from `cores`; `demands` as a Request's."""
    devices: list[str] = []
    reused, reused_of = 0, ""  # shares that the next container gets first, and their device
    for at, (kind, size) in enumerate(steps):
        demand = demands[at] if demands else Demand(units=size)
        missing, device = size - reused, reused_of
        if missing > 0:
            chosen = choose(free, missing, spread=spread, among=_allowed(reused_of if reused else "", cores, demand))
            if chosen is None:
                break
            device = chosen
            free[device] -= missing
        elif cores is not None and not cores.has(device, demand):
            break
        if cores is not None and kind != INIT:
            cores.take(device, demand)
        devices.append(device)
        if kind == INIT:
            reused, reused_of = max(reused, size), device
        else:
            reused = max(0, reused - size)
    return Placement(tuple(devices), reused, reused_of if reused else "")


def _allowed(only: str, cores: Cores | None, demand: Demand) -> Callable[[str], bool] | None:
    """Return a test for the devices that come into question; None: all do."""
    if cores is None:
        return only.__eq__ if only else None
    return lambda device: (not only or device == only) and cores.has(device, demand)
