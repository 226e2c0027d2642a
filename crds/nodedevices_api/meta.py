"""The parts of Kubernetes' object metadata and label selectors that we read. The API server checks metadata itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from nodedevices_api.base import Loose, Rule, Strict
from nodedevices_api.fields import AtomicList, Flag, Generation, LabelKey, LabelValue, ListType, Time, listed, optional


class OwnerReference(Loose):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: Flag | None = None
    block_owner_deletion: Flag | None = None


class ObjectMeta(Loose):
    name: str
    uid: str = ""
    generation: Generation = 0
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default={})
    annotations: dict[str, str] = Field(default={})
    owner_references: tuple[OwnerReference, ...] = ()


class LabelSelectorRequirement(Strict):
    """One requirement on one label."""

    key: LabelKey = Field(description="Name of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How the label relates to values.")
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64), ListType("set")] | None = optional(
        "Required for In and NotIn, refused for the others."
    )

    cel_rules = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values, Exists and DoesNotExist have none",
            lambda it: (it.operator in {"In", "NotIn"}) == bool(it.values),
            found="self.key + ': ' + self.operator + "
            "(has(self.values) && size(self.values) > 0 ? ' with ' : ' without ') + 'values'",
        ),
    )


class LabelSelector(Strict):
    """Which nodes, by their labels: all requirements must hold; empty selects every node."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels with exactly these values."
    )
    match_expressions: AtomicList[LabelSelectorRequirement] = listed(32, "Requirements on labels.")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True when an object with these labels is selected (the semantics of metav1.LabelSelector)."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(_holds(requirement, labels) for requirement in self.match_expressions)


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in (requirement.values or ())
        case "NotIn":  # an object without the label is selected
            return value is None or value not in (requirement.values or ())
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
