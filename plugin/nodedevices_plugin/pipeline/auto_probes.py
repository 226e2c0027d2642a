"""Resolves `auto` to the probes of this node.

These are the probes whose hardware was found, those with devices that a file describes, and those that `auto` started
before: a probe is never removed automatically, so that hardware that vanished is Missing, and not forgotten. After a
restart that holds for probes with devices in the state file; another probe is started again with its hardware.

Without any of these `auto` is the probe that runs without `auto`: it knows hardware that no folder of the kernel shows,
and reports when there is none. It stays once it has devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from nodedevices_common.options import Value

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.settings.probes import (
    AUTO,
    AUTOMATIC,
    DEFAULT,
    ProbeSpec,
    configured,
    expanded,
    missing,
    name_of,
)


def after_restart(state: State, hardware: Set[str] | None) -> frozenset[str]:
    """Return the probes of the state file that ran before and still have to. `hardware`: the hardware that was found;
    None: not known."""
    if hardware is None:
        return frozenset(state.auto_probes)
    first = name_of(state.probes[0]) if state.probes else ""
    owners = {device.probe or first for device in state.devices if device.fact.id not in state.retired_devices}
    return frozenset(name for name in AUTOMATIC if name in owners and name in state.probes)


def started(texts: Sequence[str], before: Collection[str], parts: Mapping[str, Inventory]) -> frozenset[str]:
    """Return the probes that must not be removed automatically: those that `auto` started `before`, and of the running
    ones (`texts`) all with devices, whether `auto` started them or not."""
    return frozenset(before) | {name for name in AUTOMATIC if name in texts and name in parts and parts[name].devices}


def resolve(
    texts: Sequence[str], *, hardware: Set[str] | None, kept: Set[str], options: Mapping[str, Value]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the probes with `auto` resolved, and those of them that are to be remembered as started by it."""
    if AUTO not in texts:
        return tuple(texts), ()
    found = (hardware or frozenset()) | kept | configured(options)
    run = expanded(texts, [name for name in found if not missing([ProbeSpec(name)], options)])
    remembered = tuple(text for text in run if text not in texts)
    return (run, remembered) if run else (DEFAULT, ())
