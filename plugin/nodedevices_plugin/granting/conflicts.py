"""Containers of which two resources set one variable to different values.

The kubelet calls Allocate for each resource, and does not say for which container. Where two answers to one container
set the same variable, it keeps one of them, whichever (kubelet devicemanager, deviceRunContainerOptions). So who has
MIG devices of two profiles by NVIDIA_VISIBLE_DEVICES sees those of one, and holds both. No Allocate can know: it is
found once the kubelet lists the container, and said there. Devices that are given by CDI names are seen all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from nodedevices_common.text import some

from nodedevices_plugin.granting.containers import NodeContainers, edits
from nodedevices_plugin.model import (
    AllocationError,
    ContainerEdits,
    Grant,
    HealthState,
    Holder,
    OfferedResource,
    Plan,
    Verdict,
)

REASON = "EnvironmentConflict"
NAMED = 4  # resources, and variables, in a message
Conflicts = Mapping[tuple[str, str, str, str], Verdict]  # by namespace, pod, container and resource


def conflicts(plan: Plan | None, holders: Sequence[Holder], node: NodeContainers) -> Conflicts:
    """Return the containers, with each of their resources that is concerned. `holders`: by our own ids. What containers
    were given before another way of injection took effect is not known: it counts as the one of now."""
    offered = {resource.name: resource for resource in (plan or Plan()).resources}
    containers: dict[tuple[str, str, str], dict[str, Holder]] = defaultdict(dict)
    for holder in holders:
        if holder.resource is not None and holder.resource in offered:
            containers[holder.namespace, holder.pod, holder.container][holder.resource] = holder
    found: dict[tuple[str, str, str, str], Verdict] = {}
    for container, held in containers.items():
        if len(held) > 1:
            given = {name: _given(offered[name], holder, node) for name, holder in held.items()}
            since = max(holder.since for holder in held.values())
            found |= {(*container, name): verdict for name, verdict in _conflicting(given, since).items()}
    return found


def _given(resource: OfferedResource, holder: Holder, node: NodeContainers) -> ContainerEdits:
    ids = tuple(offered for offered in resource.ids if offered.id in holder.ids)
    try:
        return edits(Grant(resource=resource, ids=ids), node) if ids else ContainerEdits()
    except AllocationError:  # a device that left
        return ContainerEdits()


def _conflicting(given: Mapping[str, ContainerEdits], since: datetime) -> dict[str, Verdict]:
    values: dict[str, dict[str, str]] = defaultdict(dict)  # variable -> resource -> value
    for name, made in given.items():
        if not made.cdi_devices and not made.annotations:
            for variable, value in made.envs.items():
                values[variable][name] = value
    variables = sorted(variable for variable, by_name in values.items() if len(set(by_name.values())) > 1)
    names = sorted({name for variable in variables for name in values[variable]})
    if not variables:
        return {}
    text = (
        f"{some(names, NAMED)} each set {some(variables, NAMED)}, but the kubelet keeps only one value: the "
        "container may see the devices of only one resource; request only one of them in a container, or inject "
        "devices in another way (docs/injection.md)"
    )
    verdict = Verdict(
        state=HealthState.DEGRADED,
        reason=REASON,
        message=text,
        since=since,
        offered=True,
        fault_domain="Application",
    )
    return dict.fromkeys(names, verdict)
