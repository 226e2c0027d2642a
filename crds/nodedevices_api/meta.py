"""The parts of Kubernetes' objects that ours have: metadata, label selectors, conditions. The API server checks
metadata itself.

`condition` keeps lastTransitionTime while the status stays the same, so that an equal condition is an equal value and
costs no write.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from nodedevices_api.base import Loose, Rule, Strict
from nodedevices_api.conditions import Status
from nodedevices_api.fields import (
    AtomicList,
    ConditionMessage,
    Generation,
    LabelKey,
    LabelValue,
    ListType,
    Time,
    Word,
    listed,
    optional,
)


class ObjectMeta(Loose):
    """What people write of metadata."""

    name: str
    labels: dict[str, str] = Field(default={})
    annotations: dict[str, str] = Field(default={})


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
        return self.match_labels.items() <= labels.items() and all(
            _holds(requirement, labels) for requirement in self.match_expressions
        )


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or ()
    return {
        "In": value in values,
        "NotIn": value not in values,  # an object without the label is selected
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[requirement.operator]


class Condition(Loose):
    """A standard Kubernetes condition."""

    type: Word = Field(description="What the condition is about, such as Ready.")
    status: Status = Field(description="True, False or Unknown.")
    reason: Word = Field(description="Machine-readable reason, in CamelCase.")
    message: ConditionMessage = Field(description="Human-readable message; may be empty.")
    last_transition_time: Time = Field(description="When the status last changed.")
    observed_generation: Generation | None = optional("metadata.generation that the condition is based on.")


def condition(
    type: str,  # noqa: A002  Kubernetes calls it so
    status: Status,
    reason: str,
    message: str = "",
    *,
    previous: Condition | None,
    now: datetime,
    generation: int | None = None,
) -> Condition:
    """The next value of a condition: a new transition time only when the status is another than in `previous`."""
    unchanged = previous is not None and previous.type == type and previous.status == status
    return Condition(
        type=type,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=previous.last_transition_time if previous is not None and unchanged else now,
        observed_generation=generation,
    )


def find(conditions: tuple[Condition, ...], type: str) -> Condition | None:  # noqa: A002
    """Return the condition of that type, if there is one."""
    return next((item for item in conditions if item.type == type), None)
