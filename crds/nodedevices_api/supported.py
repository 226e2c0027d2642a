"""Which parts of a DevicePolicy are at work in this version. The rest is complete in shape, and refused by name.

Every section is at work, some only in part: there a field counts only when its value differs from the built-in default.
`faults.taint.effect: None` or `evict.mode: Never` ask for nothing that is not so already, and pass.
`sharing.strategy` is at work for all but memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodedevices_api.base import Strict, wire_name
from nodedevices_api.sections import SECTION_NAMES, Sections, Strategy

if TYPE_CHECKING:  # the agent has no use for policies
    from nodedevices_api.devicepolicy import DevicePolicySpec

_STRATEGIES: tuple[Strategy, ...] = ("none", "timeSlicing", "mps")

# Section -> its fields at work. Not here: `capacity`, a list, which is at work with every field of its entries.
_AT_WORK: dict[str, frozenset[str]] = {
    "serving": frozenset({"mode"}),
    "resources": frozenset({"devices", "exclude"}),
    "sharing": frozenset({"strategy", "rename_by_default", "fail_requests_greater_than_one", "resources"}),
    "mig": frozenset({"strategy"}),
    "injection": frozenset({"device_list_strategies", "device_id_strategy", "pass_device_specs"}),
    "health": frozenset({"hold_down_seconds", "ignore_xids", "fatal_xids"}),
    "faults": frozenset({"pod_condition", "event", "node_condition"}),
    "labels": frozenset({"feature_discovery", "extra"}),
}


def unsupported_fields(spec: DevicePolicySpec) -> list[str]:
    """Dotted wire names of what the policy asks for and this version does not do, sorted; empty: all is at work."""
    found = [] if spec.mode == "Enforce" else [f"mode: {spec.mode}"]
    return sorted(found + unsupported_sections(spec))


def unsupported_sections(sections: Sections) -> list[str]:
    """The same of sections alone: what an agent finds in `spec.config`."""
    found: list[str] = []
    for name in SECTION_NAMES:
        section = getattr(sections, name)
        if isinstance(section, Strict):
            found += _differing(section, name, _AT_WORK[name])
    if sections.sharing is not None:
        if sections.sharing.strategy not in _STRATEGIES:
            found.append(f"sharing.strategy: {sections.sharing.strategy}")
        if any(shared.memory_unit is not None for shared in sections.sharing.resources):
            found.append("sharing.resources.memoryUnit")
    return sorted(found)


def _differing(section: Strict, path: str, at_work: frozenset[str]) -> list[str]:
    """The fields of a section that are not at work and not at their default; sections within it are looked into."""
    found: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name in at_work or value == field.default:
            continue
        place = f"{path}.{wire_name(name)}"
        found += _differing(value, place, frozenset()) if isinstance(field.default, Strict) else [place]
    return found
