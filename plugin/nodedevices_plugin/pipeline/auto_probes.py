"""Which probes `auto` stands for on this node.

Those whose hardware was found, those whose devices a file describes, and those that it started before: one is never
taken away by itself, so that hardware that vanished is Missing, and not forgotten. After a restart that holds for the
probes whose devices the state file remembers; another one is started again with its hardware.

Where there is nothing of all this it stands for the probe that runs without `auto`, which knows hardware that no folder
of the kernel shows, and which says that there is none. That one stays once it has devices.
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
    """What ran before, and still has to: of the state file. `hardware`: what is there; None: not known."""
    if hardware is None:
        return frozenset(state.auto_probes)
    first = name_of(state.probes[0]) if state.probes else ""
    owners = {each.probe or first for each in state.devices if each.fact.id not in state.retired_devices}
    return frozenset(each for each in AUTOMATIC if each in owners and each in state.probes)


def started(texts: Sequence[str], before: Collection[str], parts: Mapping[str, Inventory]) -> frozenset[str]:
    """What must not be taken away by itself: what it started `before`, and of the probes that run now, by `texts`,
    those with devices, whoever started them."""
    return frozenset(before) | {each for each in AUTOMATIC if each in texts and each in parts and parts[each].devices}


def resolve(
    texts: Sequence[str], *, hardware: Set[str] | None, kept: Set[str], options: Mapping[str, Value]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The probes with those in the place of `auto` that it stands for, and which these are to be remembered."""
    if AUTO not in texts:
        return tuple(texts), ()
    found = (hardware or frozenset()) | kept | configured(options)
    run = expanded(texts, [each for each in found if not missing([ProbeSpec(each)], options)])
    remembered = tuple(each for each in run if each not in texts)
    return (run, remembered) if run else (DEFAULT, ())
