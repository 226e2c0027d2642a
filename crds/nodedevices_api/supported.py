"""Which parts of a DevicePolicy are implemented in this version. The rest is complete in shape, and refused by name.

Every section is implemented, some in part: there a field counts only when its value differs from the built-in default.
`health.probe.intervalSeconds: 5` changes nothing, and passes.
`sharing.strategy` is implemented for all but memory.

The same is said in the CRDs and in their reference pages (`remark`), so that nobody plans with a field that is refused.
"""

from __future__ import annotations

from nodedevices_api.base import Strict, wire_name
from nodedevices_api.defaults import with_defaults
from nodedevices_api.sections import SECTION_NAMES, Sections

# Section -> its implemented fields. Without `capacity`, a list, which is implemented with every field of its entries.
_IMPLEMENTED: dict[str, frozenset[str]] = {
    "serving": frozenset({"mode"}),
    "resources": frozenset({"devices", "exclude"}),
    "sharing": frozenset({"strategy", "rename_by_default", "fail_requests_greater_than_one", "resources"}),
    "partitions": frozenset({"strategy"}),
    "injection": frozenset({"device_list_strategies", "device_id_strategy", "pass_device_specs"}),
    "health": frozenset({"rules", "hold_down_seconds", "probe"}),
    "faults": frozenset({"pod_condition", "event", "node_condition", "taint", "evict", "rules", "budget", "breaker"}),
    "labels": frozenset({"feature_discovery", "extra"}),
}
_MEMORY_UNIT = "sharing.resources.memoryUnit"
# Implemented field -> its value that is not.
_VALUES_NOT_IMPLEMENTED = {"sharing.strategy": "memory"}
_REFUSED = "a policy that sets it is refused with NotSupportedYet"


def _fields_not_implemented() -> frozenset[str]:
    found = {_MEMORY_UNIT}
    sections = with_defaults(Sections())
    for name, implemented in _IMPLEMENTED.items():
        fields = type(getattr(sections, name)).model_fields
        found |= {f"{name}.{wire_name(field)}" for field in fields if field not in implemented}
    return frozenset(found)


# Of a DevicePolicy's spec, as dotted wire names; what is inside them is not implemented either.
FIELDS_NOT_IMPLEMENTED = _fields_not_implemented()


def remark(place: str) -> str:
    """What people have to know of a field of a spec besides its description; empty for one that is implemented.

    `place`: dotted wire names, without marks for lists: `health.degraded.signal`, `config.partitions`.
    """
    place = place.removeprefix("config.")  # a node's configuration has the sections of policies
    if place in FIELDS_NOT_IMPLEMENTED:
        return f"Not implemented yet: {_REFUSED}."
    if any(place.startswith(f"{field}.") for field in FIELDS_NOT_IMPLEMENTED):
        return "Not implemented yet."
    if place in _VALUES_NOT_IMPLEMENTED:
        return f"{_VALUES_NOT_IMPLEMENTED[place]} is not implemented yet: {_REFUSED}."
    return ""


def unsupported_sections(sections: Sections) -> list[str]:
    """Dotted wire names of what a policy, or a node's `spec.config`, sets and this version does not implement, sorted;
    empty: all is implemented."""
    found: list[str] = []
    for name in SECTION_NAMES:
        section = getattr(sections, name)
        if isinstance(section, Strict):
            found += _differing(section, name, _IMPLEMENTED[name])
    if sections.sharing is not None:
        if sections.sharing.strategy == _VALUES_NOT_IMPLEMENTED["sharing.strategy"]:
            found.append(f"sharing.strategy: {sections.sharing.strategy}")
        if any(shared.memory_unit is not None for shared in sections.sharing.resources):
            found.append(_MEMORY_UNIT)
    return sorted(found)


def _differing(section: Strict, path: str, implemented: frozenset[str]) -> list[str]:
    """The fields of a section that are not implemented and not at their default; sections within it included."""
    found: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name in implemented or value == field.default:
            continue
        place = f"{path}.{wire_name(name)}"
        found += _differing(value, place, frozenset()) if isinstance(field.default, Strict) else [place]
    return found
