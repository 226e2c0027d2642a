"""IMEX channels: memory shared between GPUs of several nodes needs one in the container. Channel 0 is all there is.

NVIDIA's plugin takes [] or [0] and gives the channel to every container, if its node exists.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from nodedevices_plugin.model import PlanError

VARIABLE = "NVIDIA_IMEX_CHANNELS"
_FOLDER = "/dev/nvidia-caps-imex-channels"


def node(channel: int) -> str:
    """`/dev/nvidia-caps-imex-channels/channel0`."""
    return f"{_FOLDER}/channel{channel}"


def channel_ids(values: Sequence[str | int]) -> tuple[int, ...]:
    """Return the channels that `imex.channelIDs` selects. Raises PlanError for anything but [] and [0]."""
    requested = tuple(dict.fromkeys(str(value).strip() for value in values))
    if requested not in {(), ("0",)}:
        shown = ", ".join(channel[:32] for channel in requested[:4])
        raise PlanError("imex.channelIDs", shown, "only channel 0 can be requested; give [0] or []")
    return tuple(int(channel) for channel in requested)


def present(requested: Sequence[int], existing: Set[str], *, required: bool) -> tuple[int, ...]:
    """The channels that containers get here. Raises PlanError where a required one does not exist on the node."""
    found = tuple(channel for channel in requested if node(channel) in existing)
    for channel in requested:
        if required and channel not in found:
            hint = f"{node(channel)} does not exist on this node; start nvidia-imex, or set imex.required to false"
            raise PlanError("imex.channelIDs", channel, hint)
    return found
