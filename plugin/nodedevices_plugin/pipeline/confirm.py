"""Confirmations by people on the object (nodedevices_common.confirming): devices that were repaired or removed.

Each entry is acted on once: entries that the value had before stay as they are.
"""

from __future__ import annotations

from msgspec import Struct
from nodedevices_common.confirming import CONFIG_ACCEPTED, EVERY, OF_NODE, RECOVERED, REMOVED, read

from nodedevices_plugin.model.resource_names import device_names
from nodedevices_plugin.pipeline.world import Inputs, World


class Confirm(Struct, frozen=True, kw_only=True):
    value: str
    recovered: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    all_removed: bool = False  # all that is not here, also what the node remembers of earlier (pipeline.most_seen)
    understood: tuple[str, ...] = ()  # the entries that are acted on
    problems: tuple[str, ...] = ()


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
    confirmed: dict[str, set[str]] = {RECOVERED.answer: set(), REMOVED.answer: set()}
    entries, problems = read(value, OF_NODE, done=done)
    understood = []
    for entry in entries:
        device, outcome = entry.subject, entry.answer
        if outcome == CONFIG_ACCEPTED.answer:
            continue  # this is for the operator
        if device == EVERY and world.lost:
            problems.append(f"{entry}: no device is seen, so it is unknown which devices were removed: give {REMOVED}")
            continue
        if device == EVERY:
            confirmed[outcome].update(missing.fact.id for missing in world.inventory.devices if not missing.present)
        elif device not in known:
            hint = f"give its id, {by_name[device]}" if device in by_name else "this node has no such device"
            problems.append(f"{device[:96]}: {hint}")
            continue
        else:
            confirmed[outcome].add(device)
        understood.append(entry)
    return Confirm(
        value=value,
        recovered=frozenset(confirmed[RECOVERED.answer]),
        removed=frozenset(confirmed[REMOVED.answer]),
        all_removed=any(entry.subject == EVERY for entry in understood),
        understood=tuple(map(str, understood)),
        problems=tuple(problems),
    )
