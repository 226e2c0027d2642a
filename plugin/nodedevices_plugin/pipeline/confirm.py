"""Confirmations by people on the object, the annotation nodedevices.io/confirm: `<id>=recovered|removed[@time][,...]`.

Each entry is acted on once: entries that the value had before stay as they are, so that whoever adds one keeps those of
others, and need not know which of them were acted on. A time makes an entry another one than before.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from msgspec import Struct
from nodedevices_api.conditions import MISSING

from nodedevices_plugin.model import Verdict
from nodedevices_plugin.model.resource_names import device_names
from nodedevices_plugin.pipeline.world import Inputs, World

_GIVE = "give <device id>=recovered or <device id>=removed"
MAX_CONFIRM = 128  # entries of the annotation
CONFIRM_VALUES = ("recovered", "removed")
ALL_REMOVED = "*=removed"  # all that is not here, also what the node remembers of earlier (pipeline.most_seen)


class Confirm(Struct, frozen=True, kw_only=True):
    value: str
    recovered: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    all_removed: bool = False
    problems: tuple[str, ...] = ()

    @property
    def understood(self) -> tuple[str, ...]:
        confirmed = {"recovered": self.recovered, "removed": self.removed}
        every = (ALL_REMOVED,) if self.all_removed else ()
        return (*every, *(f"{device}={value}" for value, devices in confirmed.items() for device in sorted(devices)))


def read_confirm(world: World, inputs: Inputs) -> Confirm:
    """Return what the entries say that are new since the value that was acted on last."""
    done = world.state.confirmed
    ready = inputs.snapshot is not None or world.inventory.line_monotonic is not None
    if inputs.seen is None or not inputs.seen.exists or inputs.seen.confirm == done or not ready:
        return Confirm(value=done, problems=world.confirm_problems)
    value = inputs.seen.confirm
    known = {device.fact.id for device in world.inventory.devices}
    known |= {part.id for device in world.inventory.devices for part in device.fact.partitions}
    by_name = {name: id_ for id_, name in device_names(world.inventory).items()}
    confirmed: dict[str, set[str]] = {outcome: set() for outcome in CONFIRM_VALUES}
    problems, all_removed = [], False
    before = set(_entries(done))
    for entry in _entries(value):
        said = entry.partition("@")[0]
        device, _, outcome = said.partition("=")
        if entry in before:
            continue
        if said == ALL_REMOVED and world.lost:
            problems.append(f"{entry}: no device is seen, so it is unknown which devices were removed: {_GIVE}")
        elif said == ALL_REMOVED:
            all_removed = True
            confirmed["removed"].update(missing.fact.id for missing in world.inventory.devices if not missing.present)
        elif outcome not in confirmed or not device:
            problems.append(f"{entry[:120]}: {_GIVE}")
        elif device not in known:
            hint = f"give its id, {by_name[device]}" if device in by_name else "this node has no such device"
            problems.append(f"{device[:96]}: {hint}")
        else:
            confirmed[outcome].add(device)
    return Confirm(
        value=value,
        recovered=frozenset(confirmed["recovered"]),
        removed=frozenset(confirmed["removed"]),
        all_removed=all_removed,
        problems=tuple(problems),
    )


def spent_entries(
    value: str, verdicts: Mapping[str, Verdict], removals: Set[str], *, lacking: bool = False
) -> tuple[str, ...]:
    """Return a warning for each entry that was acted on already although its device has a fault again: to confirm once
    more, a person must change the annotation first. `removals`: ids of devices that still wait for their removal.
    `lacking`: the node has fewer devices than it had since."""
    spent = []
    for entry in _entries(value):
        said = entry.partition("@")[0]
        if said == ALL_REMOVED and lacking:
            spent.append(f"{entry}: already acted on once; to confirm again, remove the annotation first")
        device, _, outcome = said.partition("=")
        verdict = verdicts.get(device)
        if verdict is None:
            continue
        if outcome == "removed" and device in removals:
            continue
        missing = verdict.reason == MISSING
        if missing if outcome == "removed" else any(not fault.confirmed for fault in verdict.faults):
            why = f"already acted on once; the device still has or again has a fault ({verdict.reason})"
            spent.append(f"{entry}: {why}; to confirm again, remove the annotation first")
    return tuple(spent)


def _entries(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()][:MAX_CONFIRM]
