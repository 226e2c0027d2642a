"""What a chaos run has done so far, as it is planned: values alone, so that a seed gives the same sequence on every
machine however fast it is. What really came of it is observed, and is in no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from chaos.machines import NODES


class Action:
    """One thing that is done to the cluster."""

    def __str__(self) -> str:
        said = [f"{getattr(self, each.name)}" for each in fields(self) if getattr(self, each.name)]  # type: ignore[arg-type]
        return " ".join([type(self).__name__, *said])


@dataclass(frozen=True)
class Part:
    """A container of a pod: `kind` is main, init or sidecar. `claims`: it uses the pod's claim."""

    name: str
    kind: str
    limits: tuple[tuple[str, int], ...] = ()
    claims: bool = False

    def __str__(self) -> str:
        wants = [f"{count} {resource}" for resource, count in self.limits] + ["the claim"] * self.claims
        return f"{self.name}({', '.join(wants) or 'nothing'})"


@dataclass(frozen=True)
class Claim:
    """A ResourceClaim, which several pods may use: so many devices of the class of this resource, of each an amount
    where there is one."""

    name: str
    resource: str
    count: int
    amount: tuple[str, str] = ("", "")  # a capacity, a quantity

    def __str__(self) -> str:
        of_each = f" with {self.amount[0]} {self.amount[1]}" if self.amount[0] else ""
        return f"{self.name}({self.count} {self.resource}{of_each})"


@dataclass(frozen=True)
class CreatePod(Action):
    name: str
    node: str
    parts: tuple[Part, ...]
    cores: int = 0  # percent of a device's computing power, for each container; 0: not said
    extender: bool = False  # placed by the scheduler that calls the extender
    claim: Claim | None = None

    def __str__(self) -> str:
        said = f"CreatePod {self.name} on {self.node}: {' '.join(map(str, self.parts))}"
        if self.claim:
            said += f" claim {self.claim}"
        return said + (f" cores={self.cores}" if self.cores else "") + (" by the extender" if self.extender else "")


@dataclass(frozen=True)
class DeletePod(Action):
    name: str


@dataclass(frozen=True)
class SetPolicy(Action):
    """A section of a node's policies; no choice: the policy is deleted."""

    node: str
    section: str
    choice: str


@dataclass(frozen=True)
class Strike(Action):
    node: str
    index: int
    kind: str
    event: str

    def __str__(self) -> str:
        return f"Strike {self.node} device {self.index}: {self.kind}"


@dataclass(frozen=True)
class Cure(Action):
    node: str
    index: int

    def __str__(self) -> str:
        return f"Cure {self.node} device {self.index}"


@dataclass(frozen=True)
class Cut(Action):
    """A GPU is cut into MIG devices; no layout: it is whole again."""

    node: str
    index: int
    layout: str

    def __str__(self) -> str:
        return f"Cut {self.node} device {self.index}: {self.layout or 'whole'}"


@dataclass(frozen=True)
class Cordon(Action):
    """Exactly these devices of a node are out of service by hand."""

    node: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Kill(Action):
    """SIGKILL of agent, probe, operator (the one that leads) or extender."""

    part: str
    node: str = ""


@dataclass(frozen=True)
class Freeze(Action):
    """SIGSTOP, and SIGCONT after so many seconds; what is killed meanwhile for not answering stays killed."""

    part: str
    node: str
    seconds: float


@dataclass(frozen=True)
class Silence(Action):
    """The probe writes no more lines; `over`: it does again."""

    node: str
    over: bool = False


@dataclass(frozen=True)
class RestartKubelet(Action):
    node: str


@dataclass(frozen=True)
class StopKubelet(Action):
    node: str


@dataclass(frozen=True)
class StartKubelet(Action):
    node: str


@dataclass(frozen=True)
class StopApiServer(Action):
    pass


@dataclass(frozen=True)
class StartApiServer(Action):
    pass


@dataclass(frozen=True)
class FillDisk(Action):
    """No byte is left where the agent's state file and the kubelet's checkpoint are."""

    node: str


@dataclass(frozen=True)
class FreeDisk(Action):
    node: str


@dataclass(frozen=True)
class SpoilState(Action):
    """The agent is killed, and its state file is torn or lost before the next one starts."""

    node: str
    how: str


@dataclass(frozen=True)
class Settle(Action):
    """Everything that is away comes back, and everything that must hold in the end is waited for."""


@dataclass(frozen=True)
class Step:
    action: Action
    pause_seconds: float


@dataclass(frozen=True)
class NodePlan:
    name: str
    chosen: Mapping[str, str] = field(default_factory=dict)  # section -> choice
    faults: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # device -> kind, event
    cut: Mapping[int, str] = field(default_factory=dict)
    cordoned: tuple[int, ...] = ()
    kubelet_away: bool = False
    disk_full: bool = False
    silent: bool = False
    # Absent devices whose memory went with the state file, or was never written because the disk was full; and what
    # has gone since, as the next agent may have begun after it.
    forgotten: frozenset[int] = frozenset()
    forgets: bool = False
    # Once it was so: partitions that a cut took from under their pods may be known by a condition alone from then on.
    has_forgotten: bool = False
    # Partitions went, perhaps from under their pods (drivers refuse that): the state file alone has what they were of.
    cut_again: bool = False

    @property
    def absent(self) -> frozenset[int]:
        return frozenset(index for index, (kind, _) in self.faults.items() if kind == "absent")


@dataclass(frozen=True)
class Plan:
    nodes: Mapping[str, NodePlan] = field(default_factory=lambda: {each: NodePlan(each) for each in NODES})
    pods: Mapping[str, CreatePod] = field(default_factory=dict)
    api_away: bool = False

    @property
    def claims(self) -> frozenset[str]:
        """Claims that a pod uses."""
        return frozenset(each.claim.name for each in self.pods.values() if each.claim)

    def node(self, name: str, **changes: object) -> Plan:
        """The plan with these changes of a node."""
        return replace(self, nodes={**self.nodes, name: replace(self.nodes[name], **changes)})  # type: ignore[arg-type]


def after(plan: Plan, action: Action) -> Plan:
    """The plan once the action was carried out."""
    match action:
        case CreatePod():
            return replace(plan, pods={**plan.pods, action.name: action})
        case DeletePod():
            return replace(plan, pods={name: each for name, each in plan.pods.items() if name != action.name})
        case SetPolicy():
            chosen = {**plan.nodes[action.node].chosen, action.section: action.choice}
            return plan.node(action.node, chosen={key: value for key, value in chosen.items() if value})
        case Strike():
            node = plan.nodes[action.node]
            struck = replace(node, faults={**node.faults, action.index: (action.kind, action.event)})
            # One that is out of service and drained leaves the node with the word of its driver.
            leaves = node.forgets or action.index in node.cordoned
            unknown = struck.absent & {action.index} if leaves else frozenset()
            return plan.node(action.node, faults=struck.faults, forgotten=node.forgotten | unknown)
        case Cure():
            faults = {key: each for key, each in plan.nodes[action.node].faults.items() if key != action.index}
            forgotten = plan.nodes[action.node].forgotten - {action.index}
            return plan.node(action.node, faults=faults, forgotten=forgotten)
        case SpoilState():
            return _forgets(plan, action.node)
        case Kill("agent") if plan.nodes[action.node].disk_full:
            return _forgets(plan, action.node)
        case Cut():
            node = plan.nodes[action.node]
            cut = {key: each for key, each in {**node.cut, action.index: action.layout}.items() if each}
            return plan.node(action.node, cut=cut, cut_again=node.cut_again or action.index in node.cut)
        case Cordon():
            return plan.node(action.node, cordoned=action.indices)
        case Silence():
            return plan.node(action.node, silent=not action.over)
        case StopKubelet():
            return plan.node(action.node, kubelet_away=True)
        case StartKubelet():
            return plan.node(action.node, kubelet_away=False)
        case StopApiServer():
            return replace(plan, api_away=True)
        case StartApiServer():
            return replace(plan, api_away=False)
        case FillDisk():
            return plan.node(action.node, disk_full=True)
        case FreeDisk():
            return plan.node(action.node, disk_full=False)
        case Settle():
            for each in ends(plan):
                plan = after(plan, each)
            for name in plan.nodes:
                plan = plan.node(name, forgets=False)
            return plan
        case _:
            return plan


def _forgets(plan: Plan, name: str) -> Plan:
    node = plan.nodes[name]
    return plan.node(name, forgotten=node.forgotten | node.absent, forgets=True, has_forgotten=True)


def ends(plan: Plan) -> list[Action]:
    """What brings back all that is away."""
    found: list[Action] = [StartApiServer()] if plan.api_away else []
    for name, node in plan.nodes.items():
        if node.disk_full:
            found.append(FreeDisk(name))
        if node.kubelet_away:
            found.append(StartKubelet(name))
        if node.silent:
            found.append(Silence(name, over=True))
    return found
