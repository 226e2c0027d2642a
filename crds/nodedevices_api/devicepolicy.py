"""DevicePolicy: how the devices of the selected nodes are offered, judged and reacted to.

Policies are sorted by priority (higher first), then age (older first), then name. For each section the first policy
that sets it supplies the whole section; sections never mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nodedevices_api import API_VERSION
from nodedevices_api.base import Loose, Rule, Strict
from nodedevices_api.fields import Atomic, Count, Generation, ListType, Whole, in_schema, optional
from nodedevices_api.meta import Condition, LabelSelector, ObjectMeta
from nodedevices_api.sections import DAY_SECONDS, SECTION_NAMES, NodesOrPercent, Sections, nodes_or_percent

MAX_RECORD = 63 + 1 + 253  # a namespace and a name

_BY_MPS = (
    "has(self.sharing.strategy) && self.sharing.strategy == 'mps' || has(self.sharing.resources) && "
    "self.sharing.resources.exists(r, has(r.enforcement) && r.enforcement == 'mps')"
)


def _mps_with_mixed(it: DevicePolicySpec) -> bool:
    """True when a policy says what no node can do, as with NVIDIA's plugin: MPS together with strategy mixed."""
    observes = it.serving is not None and it.serving.mode == "Observe"  # then neither has an effect
    mps = it.sharing is not None and (
        it.sharing.strategy == "mps" or any(resource.enforcement == "mps" for resource in it.sharing.resources)
    )
    return mps and it.partitions is not None and it.partitions.strategy == "mixed" and not observes


_MAX_NODES, _MAX_NODES_RULE = nodes_or_percent("maxNodes", 1)


class Rollout(Strict):
    """How a change of this policy comes to its nodes: some at a time, and no further while one has lost devices."""

    max_nodes: Annotated[NodesOrPercent, _MAX_NODES] = Field(
        default="10%",
        description="Nodes that change at one time (default 10%): a number, or 1% to 100%, rounded up, of the nodes on "
        "which the policy supplies a section that agents act on. The next node follows when a node has applied the "
        "change and, 10 s later, offers as many devices as before.",
    )
    pause_seconds: Annotated[Whole, Field(ge=0, le=DAY_SECONDS)] = Field(
        default=0,
        description="Minimum seconds from a node's change until the next node follows. Each node is watched for at "
        "least 10 s after its agent has applied the change.",
    )

    cel_rules = (_MAX_NODES_RULE,)


class DevicePolicySpec(Sections):
    """Selection of nodes, priority, and the sections that the policy sets."""

    node_selector: Annotated[LabelSelector, Atomic()] = Field(
        description="Selects nodes by label; {} selects every node."
    )
    priority: Annotated[Whole, Field(ge=-1000, le=1000)] = Field(
        default=0,
        json_schema_extra=in_schema(0),
        description="Higher wins, for each section; at equal priority the older policy wins.",
    )
    mode: Literal["Enforce", "DryRun", "Paused"] = Field(
        default="Enforce",
        json_schema_extra=in_schema("Enforce"),
        description="Paused holds the roll-out: nodes that have the policy keep it, with all its actions, and no other "
        "node gets it. DryRun reports what Enforce would do and changes nothing. A change from Enforce or Paused to "
        "DryRun is refused, because it would remove what is in effect.",
    )
    rollout: Annotated[Rollout, Atomic()] | None = optional(
        "How a change of this policy reaches its nodes; absent: the defaults of its fields."
    )

    gone: ClassVar[Mapping[str, str]] = {"paused": "it is now mode: Paused"}

    cel_rules = (
        *Sections.cel_rules,
        Rule(
            " || ".join(f"has(self.{name})" for name in SECTION_NAMES),
            f"a policy sets at least one section: {', '.join(SECTION_NAMES)}",
            lambda it: any(getattr(it, name) is not None for name in SECTION_NAMES),
        ),
        Rule(
            "oldSelf.mode == 'DryRun' || self.mode != 'DryRun'",
            "DryRun would take away what the policy has in effect: set mode: Paused to hold it where it is, or give a "
            "copy with mode: DryRun another name to see what it would change",
            lambda _: True,  # between two versions of an object, which the API server alone sees
            found="'mode from ' + oldSelf.mode + ' to DryRun'",
        ),
        Rule(
            f"!has(self.sharing) || !({_BY_MPS}) || "
            "!has(self.partitions) || !has(self.partitions.strategy) || self.partitions.strategy != 'mixed' || "
            "has(self.serving) && has(self.serving.mode) && self.serving.mode == 'Observe'",
            "MPS is not possible with partitions.strategy mixed; use timeSlicing, or another partitions.strategy",
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
    """Numbers of nodes; no names, so that the object stays small."""

    selected: Count = Field(description="Nodes that the selector matches.")
    applied: Count = Field(description="Nodes on which every section that the policy supplies is applied.")
    overridden: Count = Field(description="Nodes on which a policy of higher precedence supplies one of its sections.")
    failed: Count = Field(description="Nodes that cannot apply it; their NodeDevices say why.")
    unmatched: Count = Field(
        default=0,
        description="Nodes on which an entry has no effect, such as a misspelt name; condition Applied names the "
        "entry.",
    )
    waiting: Count = Field(default=0, description="Nodes whose turn in the roll-out has not come.")


class DevicePolicyStatus(Loose):
    """The observed state of the policy."""

    observed_generation: Generation | None = optional("metadata.generation that this status describes.")
    nodes: Annotated[NodeCounts, Atomic()] | None = optional("Numbers of nodes, by result.")
    actions_record: Annotated[str, Field(max_length=MAX_RECORD)] = Field(
        default="",
        description="ConfigMap (namespace/name) that records the policy's taints and evictions. An operator in another "
        "namespace takes no action on faults without this record.",
    )
    resume_record: Annotated[str, Field(max_length=MAX_RECORD)] = Field(
        default="",
        description="ConfigMap (namespace/name) whose annotation nodedevices.io/confirm resumes taints and "
        "evictions; set only while they are stopped. Not actionsRecord if the operator has moved.",
    )
    conditions: Annotated[tuple[Annotated[Condition, Atomic()], ...], Field(max_length=8), ListType("map", "type")] = (
        Field(default=(), description="Accepted, Applied, Conflicted, RolledOut, ActionsStopped.")
    )


class DevicePolicy(Loose):
    """How the devices of selected nodes are offered, when they are unhealthy, and what follows a fault."""

    api_version: Literal["nodedevices.io/v1alpha1"] = Field(default=API_VERSION)
    kind: Literal["DevicePolicy"] = "DevicePolicy"
    metadata: ObjectMeta
    spec: DevicePolicySpec = Field(description="Selected nodes, and the sections that the policy sets.")
    status: DevicePolicyStatus = Field(default=DevicePolicyStatus(), description="Observed state of the policy.")
