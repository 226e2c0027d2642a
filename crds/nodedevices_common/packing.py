"""The choice of a device for the shares of one container.

The agent chooses by it where the kubelet allocates, and the scheduler extender where it foresees what the agent will
choose. Both call this function, so that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def choose(
    free: Mapping[str, int], size: int, *, spread: bool, among: Callable[[str], bool] | None = None
) -> str | None:
    """The device that gets `size` shares: of those with room the fullest (`spread`: the emptiest), of equals the first.

    `free` has the free shares of each device, by index. With `among`, only devices for which it is true. None: no
    device has room.
    """
    best: str | None = None
    for device, count in free.items():
        if count < size or (among is not None and not among(device)):
            continue
        if best is None or (count > free[best] if spread else count < free[best]):
            best = device
    return best
