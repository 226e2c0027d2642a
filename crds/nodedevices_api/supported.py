"""Which parts of a DevicePolicy are not implemented in this version: complete in shape, and refused by name.

All sections are implemented, but for sharing a device by its memory. The same is said in the CRDs and in their
reference pages (`remark`), so that nobody plans with a field that is refused.
"""

from __future__ import annotations

from nodedevices_api.sections import Sections

_STRATEGY, _MEMORY = "sharing.strategy", "memory"
_MEMORY_UNIT = "sharing.resources.memoryUnit"
_REFUSED = "a policy that sets it is refused with NotSupportedYet"

# Of a DevicePolicy's spec, as dotted wire names.
FIELDS_NOT_IMPLEMENTED = frozenset({_MEMORY_UNIT})


def remark(place: str) -> str:
    """What people have to know of a field of a spec besides its description; empty for one that is implemented.

    `place`: dotted wire names, without marks for lists: `sharing.resources.memoryUnit`, `config.partitions`.
    """
    place = place.removeprefix("config.")  # a node's configuration has the sections of policies
    if place in FIELDS_NOT_IMPLEMENTED:
        return f"Not implemented yet: {_REFUSED}."
    return f"{_MEMORY} is not implemented yet: {_REFUSED}." if place == _STRATEGY else ""


def unsupported_sections(sections: Sections) -> list[str]:
    """Dotted wire names of what a policy, or a node's `spec.config`, sets and this version does not implement, sorted;
    empty: all is implemented."""
    sharing = sections.sharing
    if sharing is None:
        return []
    found = [_MEMORY_UNIT] if any(shared.memory_unit is not None for shared in sharing.resources) else []
    return [*found, f"{_STRATEGY}: {_MEMORY}"] if sharing.strategy == _MEMORY else found
