"""What to do next: a pure function of the seed, the step's number and the plan so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from chaos import machines, model

SETTLE_EVERY = 12
MOST_PODS = 9  # on a node
MOST_FAULTS = 3
PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)
FREEZE_SECONDS = (1.0, 4.0, 9.0)
CUTTABLE = (2, 3)

Choice = tuple[float, Callable[[], model.Action]]


def decide(seed: int, step: int, plan: model.Plan, *, calm: bool = False) -> model.Step:
    """Steps count from 1. `calm`: only what users do and what happens to devices; nothing is killed or away."""
    if step % SETTLE_EVERY == 0:
        return model.Step(model.Settle(), 0.0)
    draw = Random(f"{seed}/{step}")
    choices = list(_calm(draw, step, plan) if calm else _choices(draw, step, plan))
    [(_, make)] = draw.choices(choices, weights=[weight for weight, _ in choices])
    return model.Step(make(), draw.choice(PAUSES))


def sequence(seed: int, steps: int) -> list[model.Step]:
    """The first steps of a seed."""
    plan, found = model.Plan(), []
    for number in range(1, steps + 1):
        found.append(decide(seed, number, plan))
        plan = model.after(plan, found[-1].action)
    return found


def _choices(draw: Random, step: int, plan: model.Plan) -> Iterator[Choice]:
    """What can be done now, each with its weight. What needs the API server is not tried while it is away."""
    if plan.api_away:
        yield 6, model.StartApiServer
    else:
        yield from _wishes(draw, step, plan)
        yield 0.6, model.StopApiServer
        yield 1.5, lambda: model.Kill("operator")
        yield 0.7, lambda: model.Freeze("operator", "", draw.choice((4.0, 14.0)))
    yield 0.7, lambda: model.Kill("extender")
    for name in machines.NODES:
        yield from _of_node(draw, step, plan.nodes[name])


def _calm(draw: Random, step: int, plan: model.Plan) -> Iterator[Choice]:
    yield from _wishes(draw, step, plan)
    for name in machines.NODES:
        yield from _of_devices(draw, step, plan.nodes[name])


def _wishes(draw: Random, step: int, plan: model.Plan) -> Iterator[Choice]:
    """What users do by the API server."""
    for name in machines.NODES:
        node = plan.nodes[name]
        if sum(each.node == name for each in plan.pods.values()) < MOST_PODS:
            yield 7, lambda node=node: _pod(draw, step, node, plan)  # type: ignore[misc]
        yield 4, lambda node=node: _policy(draw, node)  # type: ignore[misc]
        yield 0.8, lambda name=name: model.Cordon(name, _some(draw, len(machines.DEVICES[name])))  # type: ignore[misc]
    if plan.pods:
        weight = 1.1 * len(plan.pods)
        yield weight, lambda: model.DeletePod(draw.choice(sorted(plan.pods)))


def _of_node(draw: Random, step: int, node: model.NodePlan) -> Iterator[Choice]:
    """What happens on a machine."""
    name = node.name
    if node.kubelet_away:
        yield 6, lambda: model.StartKubelet(name)
    else:
        yield 1.5, lambda: model.RestartKubelet(name)
        yield 0.5, lambda: model.StopKubelet(name)
    if node.disk_full:
        yield 4, lambda: model.FreeDisk(name)
    elif not node.cut_again:
        yield 0.7, lambda: model.FillDisk(name)
    if node.silent:
        yield 4, lambda: model.Silence(name, over=True)
    else:
        yield 0.3, lambda: model.Silence(name)
    yield 1.8, lambda: model.Kill("agent", name)
    yield 0.7, lambda: model.Freeze("agent", name, draw.choice(FREEZE_SECONDS))
    yield 0.8, lambda: model.Kill("probe", name)
    yield 0.5, lambda: model.Freeze("probe", name, draw.choice(FREEZE_SECONDS))
    # Without a state file and with a configuration that does not fit, nothing is offered until one does.
    if node.chosen.get("partitions") != "single" and not node.cut_again:
        yield 0.6, lambda: model.SpoilState(name, draw.choice(("torn", "lost")))
    yield from _of_devices(draw, step, node)


def _of_devices(draw: Random, step: int, node: model.NodePlan) -> Iterator[Choice]:
    """Faults, cures, and what MIG devices there are."""
    name = node.name
    well = [index for index in range(len(machines.DEVICES[name])) if index not in node.faults]
    if len(node.faults) < MOST_FAULTS:
        yield 2.5, lambda: _strike(draw, step, name, draw.choice(well))
    if node.faults:
        yield 1.2 * len(node.faults), lambda: model.Cure(name, draw.choice(sorted(node.faults)))
    if name == "n1" and not node.disk_full:
        cuts = ("", *machines.CUTS)
        yield 1.5, lambda: model.Cut(name, draw.choice(CUTTABLE), draw.choice(cuts))


def _strike(draw: Random, step: int, node: str, index: int) -> model.Strike:
    return model.Strike(node, index, draw.choice(machines.FAULTS[machines.DEVICES[node][index]]), f"chaos-{step}")


def _policy(draw: Random, node: model.NodePlan) -> model.SetPolicy:
    section = draw.choices(tuple(machines.SECTIONS), weights=(5, 3, 1.5, 1.5, 1.5, 1, 6))[0]
    others = [each for each in ("", *machines.SECTIONS[section]) if each != node.chosen.get(section, "")]
    return model.SetPolicy(node.name, section, draw.choice(others))


def _some(draw: Random, count: int) -> tuple[int, ...]:
    return tuple(sorted(draw.sample(range(count), draw.choice((0, 0, 1, 2)))))


def _pod(draw: Random, step: int, node: model.NodePlan, plan: model.Plan) -> model.CreatePod:
    offered = machines.names(node.name, node.chosen, node.cut.values())
    if node.chosen.get("capacity"):
        offered[machines.MIB] = 20000

    def limits() -> tuple[tuple[str, int], ...]:
        resource = draw.choice(sorted(offered))
        found = {resource: draw.randint(1, offered[resource])}
        if resource == machines.VCUDA_MEMORY:
            found[machines.VCUDA_CORE] = draw.choice((10, 30, 50))
        if draw.random() < 0.2 and machines.EXTRA_NIC in offered:
            found[machines.EXTRA_NIC] = 1
        return tuple(sorted(found.items()))

    first = limits()
    parts = [model.Part("main", "main", first)]
    match draw.choices(("one", "two", "init", "sidecar", "none"), weights=(8, 2, 2, 1.5, 0.5))[0]:
        case "two":
            parts.append(model.Part("second", "main", limits()))
        case "init":
            parts.insert(0, model.Part("fetch", "init", first))
        case "sidecar":
            parts.insert(0, model.Part("helper", "sidecar", limits()))
        case "none":
            parts = [model.Part("main", "main")]
    claim = _claim(draw, step, node, plan, offered)
    if claim is not None:
        parts = _by_claim(draw, parts)
    by_memory = any(resource == machines.MEMORY for part in parts for resource, _ in part.limits)
    cores = draw.choice((0, 20, 60)) if node.chosen.get("sharing") == "cores" and by_memory else 0
    return model.CreatePod(f"p{step}", node.name, tuple(parts), cores, by_memory and draw.random() < 0.5, claim)


def _claim(
    draw: Random, step: int, node: model.NodePlan, plan: model.Plan, offered: Mapping[str, int]
) -> model.Claim | None:
    """A claim of its own, that of another pod, or none. Where the device plugin serves, a claim waits."""
    if draw.random() > (0.5 if node.chosen.get("serving") == "dra" else 0.05):
        return None
    others = [each.claim for each in plan.pods.values() if each.node == node.name and each.claim]
    if others and draw.random() < 0.25:
        return draw.choice(others)
    resource = draw.choice(sorted(offered))
    unit = machines.UNITS.get(node.chosen.get("sharing", ""), 0)
    if unit and resource in (machines.MEMORY, machines.MEMORY_3):
        return model.Claim(f"c{step}", resource, 1, ("memory", f"{unit * draw.randint(1, offered[resource])}Gi"))
    count = draw.randint(1, min(offered[resource], 3))
    if "replicas" in str(machines.SHARING.get(node.chosen.get("sharing", ""))) and resource in machines.REPLICATED:
        return model.Claim(f"c{step}", resource, 1, ("shares", str(count)))
    return model.Claim(f"c{step}", resource, count)


def _by_claim(draw: Random, parts: Sequence[model.Part]) -> list[model.Part]:
    """Some or all of these containers use the pod's claim, and in a fifth of all pods another API's devices as well."""
    using = [draw.random() < 0.7 for _ in parts]
    using[-1] = using[-1] or not any(using)
    both = draw.random() < 0.2
    return [
        replace(part, claims=uses, limits=part.limits if both or not uses else ())
        for part, uses in zip(parts, using, strict=True)
    ]
