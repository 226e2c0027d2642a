"""Which matches of a group's parts are one device. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nodedevices_probe.generic.config import BY_MATCH, Group
from nodedevices_probe.generic.glob import is_pattern


class Match(NamedTuple):
    """One thing that a part of a group means. `key`: what the wildcards stand for."""

    id: str
    key: str = ""


Member = tuple[int, int]  # number of the part, and of its match
Set = tuple[Member, ...]


def sets(group: Group, found: Sequence[Sequence[Match]]) -> list[Set]:
    """The devices of a group; `found`: the matches of each of its parts, in order. A device has a match of every part
    that is not optional, and of those the same one only where the part has a limit."""
    parts = group.parts
    needed = [number for number, part in enumerate(parts) if not part.optional]
    if any(not found[number] for number in needed):
        return []
    if group.together:
        return [tuple((number, at) for number in range(len(parts)) for at in range(len(found[number])))]
    if group.pair == BY_MATCH:
        return _by_match(group, found)
    room = {number: len(found[number]) * _limit(group, number) for number in range(len(parts))}
    count = min(max(map(len, found)), *(room[number] for number in needed))
    return [
        tuple((number, at % len(found[number])) for number in range(len(parts)) if at < room[number])
        for at in range(count)
    ]


def _by_match(group: Group, found: Sequence[Sequence[Match]]) -> list[Set]:
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


def _limit(group: Group, number: int) -> int:
    return group.paths[number].limit if group.paths else 1
