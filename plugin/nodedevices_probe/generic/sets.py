"""Devices from the matches of a group's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nodedevices_probe.generic.config import BY_MATCH, DeviceGroup, needed
from nodedevices_probe.generic.glob import is_pattern


class Match(NamedTuple):
    """One thing that a part of a group means. `key`: what the wildcards stand for."""

    id: str
    key: str = ""


Member = tuple[int, int]  # number of the part, and of its match
Set = tuple[Member, ...]


def sets(group: DeviceGroup, found: Sequence[Sequence[Match]]) -> list[Set]:
    """The devices of a group; `found`: the matches of each of its parts, in order. A device has a match of every path
    that is not optional, and of those the same one only where the path has a limit; where all are optional, of those
    that are there. USB parts are alternatives: what one of them means is a device."""
    wanted = needed(group)
    if any(not found[number] for number in wanted) or not any(found):
        return []
    if group.usb:
        first = {match.id: (number, at) for number, at, match in reversed(_numbered(found))}
        members = sorted(first.values())
        return [tuple(members)] if group.together else [(member,) for member in members]
    if group.together:
        return [tuple((number, at) for number, at, _ in _numbered(found))]
    if group.pair == BY_MATCH:
        return _by_match(group, found)
    room = {number: len(found[number]) * part.limit for number, part in enumerate(group.paths)}
    count = min([max(map(len, found)), *(room[number] for number in wanted)])
    return [tuple((number, at % len(found[number])) for number in room if at < room[number]) for at in range(count)]


def _numbered(found: Sequence[Sequence[Match]]) -> list[tuple[int, int, Match]]:
    return [(number, at, match) for number, some in enumerate(found) for at, match in enumerate(some)]


def _by_match(group: DeviceGroup, found: Sequence[Sequence[Match]]) -> list[Set]:
    wild = [number for number, part in enumerate(group.paths) if is_pattern(part.path)]
    by_key = {number: {match.key: at for at, match in enumerate(found[number])} for number in wild}
    leading = next(number for number in wild if not group.paths[number].optional)
    result: list[Set] = []
    for key in by_key[leading]:
        members = list[Member]()
        for number, part in enumerate(group.paths):
            if number in by_key:
                at = by_key[number].get(key)
            else:  # without a wildcard: one file, in as many devices as its limit says
                at = 0 if found[number] and len(result) < part.limit else None
            if at is not None:
                members.append((number, at))
            elif not part.optional:
                break
        else:
            result.append(tuple(members))
    return result
