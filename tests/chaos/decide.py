"""What to do next: a pure function of the seed, the step's number and the plan so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from chaos.machines import (
    CUTS,
    DEVICES,
    EXTRA_NIC,
    FAULTS,
    MEMORY,
    MIB,
    NODES,
    SECTIONS,
    VCUDA_CORE,
    VCUDA_MEMORY,
    names,
)
from chaos.model import (
    Action,
    Cordon,
    CreatePod,
    Cure,
    Cut,
    DeletePod,
    FillDisk,
    FreeDisk,
    Freeze,
    Kill,
    NodePlan,
    Part,
    Plan,
    RestartKubelet,
    SetPolicy,
    Settle,
    Silence,
    SpoilState,
    StartApiServer,
    StartKubelet,
    Step,
    StopApiServer,
    StopKubelet,
    Strike,
    after,
)

SETTLE_EVERY = 12
MOST_PODS = 9  # on a node
MOST_FAULTS = 3
PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)
FREEZE_SECONDS = (1.0, 4.0, 9.0)
CUTTABLE = (2, 3)

Choice = tuple[float, Callable[[], Action]]


def decide(seed: int, step: int, plan: Plan, *, calm: bool = False) -> Step:
    """Steps count from 1. `calm`: only what users do and what happens to devices; nothing is killed or away."""
    if step % SETTLE_EVERY == 0:
        return Step(Settle(), 0.0)
    draw = Random(f"{seed}/{step}")
    choices = list(_calm(draw, step, plan) if calm else _choices(draw, step, plan))
    [(_, make)] = draw.choices(choices, weights=[weight for weight, _ in choices])
    return Step(make(), draw.choice(PAUSES))


def sequence(seed: int, steps: int) -> list[Step]:
    """The first steps of a seed."""
    plan, found = Plan(), []
    for number in range(1, steps + 1):
        found.append(decide(seed, number, plan))
        plan = after(plan, found[-1].action)
    return found


def _choices(draw: Random, step: int, plan: Plan) -> Iterator[Choice]:
    """What can be done now, each with its weight. What needs the API server is not tried while it is away."""
    if plan.api_away:
        yield 6, StartApiServer
    else:
        yield from _wishes(draw, step, plan)
        yield 0.6, StopApiServer
        yield 1.5, lambda: Kill("operator")
        yield 0.7, lambda: Freeze("operator", "", draw.choice((4.0, 14.0)))
    yield 0.7, lambda: Kill("extender")
    for name in NODES:
        yield from _of_node(draw, step, plan.nodes[name])


def _calm(draw: Random, step: int, plan: Plan) -> Iterator[Choice]:
    yield from _wishes(draw, step, plan)
    for name in NODES:
        yield from _of_devices(draw, step, plan.nodes[name])


def _wishes(draw: Random, step: int, plan: Plan) -> Iterator[Choice]:
    """What users do by the API server."""
    for name in NODES:
        node = plan.nodes[name]
        if sum(each.node == name for each in plan.pods.values()) < MOST_PODS:
            yield 7, lambda node=node: _pod(draw, step, node)  # type: ignore[misc]
        yield 4, lambda node=node: _policy(draw, node)  # type: ignore[misc]
        yield 0.8, lambda name=name: Cordon(name, _some(draw, len(DEVICES[name])))  # type: ignore[misc]
    if plan.pods:
        weight = 1.1 * len(plan.pods)
        yield weight, lambda: DeletePod(draw.choice(sorted(plan.pods)))


def _of_node(draw: Random, step: int, node: NodePlan) -> Iterator[Choice]:
    """What happens on a machine."""
    name = node.name
    if node.kubelet_away:
        yield 6, lambda: StartKubelet(name)
    else:
        yield 1.5, lambda: RestartKubelet(name)
        yield 0.5, lambda: StopKubelet(name)
    if node.disk_full:
        yield 4, lambda: FreeDisk(name)
    else:
        yield 0.7, lambda: FillDisk(name)
    if node.silent:
        yield 4, lambda: Silence(name, over=True)
    else:
        yield 0.3, lambda: Silence(name)
    yield 1.8, lambda: Kill("agent", name)
    yield 0.7, lambda: Freeze("agent", name, draw.choice(FREEZE_SECONDS))
    yield 0.8, lambda: Kill("probe", name)
    yield 0.5, lambda: Freeze("probe", name, draw.choice(FREEZE_SECONDS))
    # Without a state file and with a configuration that does not fit, nothing is offered until one does.
    if node.chosen.get("partitions") != "single":
        yield 0.6, lambda: SpoilState(name, draw.choice(("torn", "lost")))
    yield from _of_devices(draw, step, node)


def _of_devices(draw: Random, step: int, node: NodePlan) -> Iterator[Choice]:
    """Faults, cures, and what MIG devices there are."""
    name = node.name
    well = [index for index in range(len(DEVICES[name])) if index not in node.faults]
    if len(node.faults) < MOST_FAULTS:
        yield 2.5, lambda: _strike(draw, step, name, draw.choice(well))
    if node.faults:
        yield 1.2 * len(node.faults), lambda: Cure(name, draw.choice(sorted(node.faults)))
    if name == "n1":
        cuts = ("", *CUTS)
        yield 1.5, lambda: Cut(name, draw.choice(CUTTABLE), draw.choice(cuts))


def _strike(draw: Random, step: int, node: str, index: int) -> Strike:
    return Strike(node, index, draw.choice(FAULTS[DEVICES[node][index]]), f"chaos-{step}")


def _policy(draw: Random, node: NodePlan) -> SetPolicy:
    section = draw.choices(tuple(SECTIONS), weights=(5, 3, 1.5, 1.5, 1.5, 1))[0]
    others = [each for each in ("", *SECTIONS[section]) if each != node.chosen.get(section, "")]
    return SetPolicy(node.name, section, draw.choice(others))


def _some(draw: Random, count: int) -> tuple[int, ...]:
    return tuple(sorted(draw.sample(range(count), draw.choice((0, 0, 1, 2)))))


def _pod(draw: Random, step: int, node: NodePlan) -> CreatePod:
    offered = names(node.name, node.chosen, node.cut.values())
    if node.chosen.get("capacity"):
        offered[MIB] = 20000

    def limits() -> tuple[tuple[str, int], ...]:
        resource = draw.choice(sorted(offered))
        found = {resource: draw.randint(1, offered[resource])}
        if resource == VCUDA_MEMORY:
            found[VCUDA_CORE] = draw.choice((10, 30, 50))
        if draw.random() < 0.2 and EXTRA_NIC in offered:
            found[EXTRA_NIC] = 1
        return tuple(sorted(found.items()))

    first = limits()
    parts = [Part("main", "main", first)]
    match draw.choices(("one", "two", "init", "sidecar", "none"), weights=(8, 2, 2, 1.5, 0.5))[0]:
        case "two":
            parts.append(Part("second", "main", limits()))
        case "init":
            parts.insert(0, Part("fetch", "init", first))
        case "sidecar":
            parts.insert(0, Part("helper", "sidecar", limits()))
        case "none":
            parts = [Part("main", "main")]
    by_memory = any(resource == MEMORY for part in parts for resource, _ in part.limits)
    cores = draw.choice((0, 20, 60)) if node.chosen.get("sharing") == "cores" and by_memory else 0
    return CreatePod(f"p{step}", node.name, tuple(parts), cores, by_memory and draw.random() < 0.5)
