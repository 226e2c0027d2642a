"""DevicePolicy: how the devices of the selected nodes are offered, judged and reacted to.

Policies are sorted by priority (higher first), then age (older first), then name. For each section the first policy
that sets it supplies the whole section; sections never mix.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nodedevices_api import API_VERSION
from nodedevices_api.base import Loose, Root, Rule
from nodedevices_api.conditions import Condition
from nodedevices_api.fields import Atomic, Count, Generation, Listed, Whole, in_schema
from nodedevices_api.meta import LabelSelector, ObjectMeta
from nodedevices_api.sections import SECTION_NAMES, Sections

MAX_RECORD = 63 + 1 + 253  # a namespace and a name
_MPS_IS_WRONG = "MPS is not possible with partitions.strategy mixed; use timeSlicing, or another partitions.strategy"

_BY_MPS = (
    "has(self.sharing.strategy) && self.sharing.strategy == 'mps' || has(self.sharing.resources) && "
    "self.sharing.resources.exists(r, has(r.enforcement) && r.enforcement == 'mps')"
)


def _mps_with_mixed(it: DevicePolicySpec) -> bool:
    """What no node can do, as with NVIDIA's plugin: a policy that says both is a mistake."""
    observes = it.serving is not None and it.serving.mode == "Observe"  # then neither has an effect
    mps = it.sharing is not None and (
        it.sharing.strategy == "mps" or any(each.enforcement == "mps" for each in it.sharing.resources)
    )
    return mps and it.partitions is not None and it.partitions.strategy == "mixed" and not observes


class DevicePolicySpec(Sections):
    """Which nodes, how strongly, and the sections that the policy sets."""

    node_selector: Annotated[LabelSelector, Atomic()] = Field(
        description="Selects nodes by label; {} selects every node."
    )
    priority: Annotated[Whole, Field(ge=-1000, le=1000)] = Field(
        default=0,
        json_schema_extra=in_schema(0),
        description="Higher wins, section by section; of equal priorities the older policy wins.",
    )
    mode: Literal["Enforce", "DryRun"] = Field(
        default="Enforce",
        json_schema_extra=in_schema("Enforce"),
        description="DryRun computes and reports what Enforce would do, and changes nothing.",
    )

    cel_rules = (
        *Sections.cel_rules,
        Rule(
            " || ".join(f"has(self.{name})" for name in SECTION_NAMES),
            f"a policy sets at least one section: {', '.join(SECTION_NAMES)}",
            lambda it: any(getattr(it, name) is not None for name in SECTION_NAMES),
        ),
        Rule(
            f"!has(self.sharing) || !({_BY_MPS}) || "
            "!has(self.partitions) || !has(self.partitions.strategy) || self.partitions.strategy != 'mixed' || "
            "has(self.serving) && has(self.serving.mode) && self.serving.mode == 'Observe'",
            _MPS_IS_WRONG,
            lambda it: not _mps_with_mixed(it),
            found="(has(self.sharing.strategy) && self.sharing.strategy == 'mps' ? 'sharing.strategy' : "
            "'enforcement of sharing.resources') + ' is mps, and partitions.strategy is mixed'",
        ),
    )

    def sections(self) -> Sections:
        """Only the sections, as they were set."""
        return Sections.model_construct(
            **{name: value for name in SECTION_NAMES if (value := getattr(self, name)) is not None}
        )


class NodeCounts(Loose):
    """How many nodes; never which, so that the object stays small."""

    selected: Count = Field(description="Nodes that the selector matches.")
    applied: Count = Field(description="Nodes on which every section that it supplies is applied.")
    overridden: Count = Field(description="Nodes on which a policy of higher precedence supplies one of its sections.")
    failed: Count = Field(description="Nodes that cannot apply it; the reason is in their NodeDevices.")


class DevicePolicyStatus(Loose):
    """The observed state of the policy."""

    observed_generation: Generation | None = Field(default=None, description="metadata.generation that was resolved.")
    nodes: Annotated[NodeCounts, Atomic()] | None = Field(
        default=None, description="On how many nodes the policy is selected, applied, overridden or failed."
    )
    actions_record: Annotated[str, Field(max_length=MAX_RECORD)] = Field(
        default="",
        description="Namespace and name of the ConfigMap that records what was done about faults, where the policy "
        "taints Nodes or evicts pods. An operator in another namespace does nothing about faults without that record.",
    )
    conditions: Annotated[tuple[Annotated[Condition, Atomic()], ...], Field(max_length=8), Listed("map", "type")] = (
        Field(default=(), description="Accepted, Applied, Conflicted, ActionsStopped.")
    )


class DevicePolicy(Root):
    """How the devices of the selected nodes are offered, how their health is judged, and what follows a fault."""

    api_version: Literal["nodedevices.io/v1alpha1"] = Field(default=API_VERSION)
    kind: Literal["DevicePolicy"] = "DevicePolicy"
    metadata: ObjectMeta
    spec: DevicePolicySpec = Field(description="The sections that the policy sets, and the nodes that it selects.")
    status: DevicePolicyStatus = Field(default=DevicePolicyStatus(), description="The observed state of the policy.")
