"""Finds probes that see none of the devices that the node has: the agent is not ready then, and no device is faulty
(health.machine's `blind`).

A roll-out that loses the driver (a library that is not mounted, a forgotten RuntimeClass, another probe than before) is
to stop at the first node, and a DaemonSet stops only at a pod that is not Ready. What the node has is known from the
state file, which remembers the devices of every probe, and from the hardware that the kernel shows.

A node that never had a device lacks none. Neither does one whose devices are all out of service by hand, were
confirmed as removed or were forgotten (`health.forgetMissingSeconds`): a person has said so. A device that is present
and faulty is not lost: that is what health is for, and a new version of the agent would change nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from nodedevices_common.text import NAMED, listing
from nodedevices_probe.protocol import DriverState

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.model.device_names import device_names


def lost_devices(
    parts: Mapping[str, Inventory],
    *,
    hardware: Set[str],
    given_up: Set[str],
    left: Mapping[str, int],
) -> dict[str, str]:
    """Return why each of these probes counts as having lost its devices, for people; empty: none has.

    `parts`: each running probe's devices, reported or remembered, by name. `hardware`: the names of the built-in probes
    with hardware that the kernel shows. `given_up`: ids of devices that people took out of service, or confirmed as
    removed. `left`: by probe that no longer runs, how many devices the state file had at the start of this agent.
    """
    found = {name: why for name, part in parts.items() if (why := _why(part, name in hardware, given_up))}
    return found | {
        name: f"its {count} devices were offered before this agent started, and no probe that runs now sees any;"
        " if the probe was taken away on purpose, delete this pod once more"
        for name, count in left_behind(parts, left).items()
    }


def left_behind(parts: Mapping[str, Inventory], left: Mapping[str, int]) -> Mapping[str, int]:
    """Return how many devices the probes had that no longer run, where no probe that runs sees any device."""
    return {} if any(_seen(part) for part in parts.values()) else left


def is_blind(part: Inventory, given_up: Set[str]) -> bool:
    """True when the probe sees none of the devices that it had: then it knows nothing about any of them."""
    return not _seen(part) and any(device.fact.id not in given_up for device in part.devices)


def _seen(part: Inventory) -> bool:
    loaded = part.driver is not None and part.driver.state is DriverState.LOADED
    return loaded and any(device.present for device in part.devices)


def _why(part: Inventory, hardware: bool, given_up: Set[str]) -> str:
    if _seen(part):
        return ""
    if is_blind(part, given_up):
        known = [device for device in part.devices if device.fact.id not in given_up]
        names = device_names(part)
        listed = listing([names[device.fact.id] for device in known])
        return f"{len(known)} devices were here ({listed}), and none is seen now: {_said(part)}"
    if part.driver is not None and part.driver.state is not DriverState.LOADED and hardware and not part.devices:
        return f"its hardware is on this node, and its driver is not loaded: {_said(part)}"
    return ""


def _said(part: Inventory) -> str:
    """Return the probe's own report of it."""
    if part.line_monotonic is None:
        return "it has not reported yet"
    problems = "; ".join(f"{problem.code}: {problem.message}" for problem in part.problems[:NAMED])
    return problems or "it reports no device"
