"""What the kubelet and the agent will do with a pod: each container's shares are of one device. Pure.

The kubelet (devicemanager/manager.go, Allocate and devicesToAllocate, v1.36) goes through the init containers and then
the others. What init containers had, the next ones get first, and the agent adds to it on the same device; a sidecar
and a main container keep what they get. What is free of a reused device and not enough is a refusal, as is a container
for which no device has room. Where nothing is reused, the agent chooses: nodedevices_common.packing, here as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodedevices_common.packing import choose

from nodedevices_operator.extender.requests import INIT, Steps


@dataclass(frozen=True, slots=True)
class Placement:
    """`devices` has one for each container up to the first for which there is no room."""

    devices: tuple[str, ...]
    unused: int = 0  # shares that init containers had, that no later one reuses and that the pod keeps
    unused_of: str = ""  # their device

    def complete(self, steps: Steps) -> bool:
        return len(self.devices) == len(steps)


def place(free: dict[str, int], steps: Steps, *, spread: bool) -> Placement:
    """Where the containers will be. Takes from `free` what they get, up to the first for which there is no room."""
    devices: list[str] = []
    reused, reused_of = 0, ""  # shares that the next container gets first, and their device
    for kind, size in steps:
        missing, device = size - reused, reused_of
        if missing > 0:
            chosen = choose(free, missing, spread=spread, among=reused_of.__eq__ if reused else None)
            if chosen is None:
                break
            device = chosen
            free[device] -= missing
        devices.append(device)
        if kind == INIT:
            reused, reused_of = max(reused, size), device
        else:
            reused = max(0, reused - size)
    return Placement(tuple(devices), reused, reused_of if reused else "")
