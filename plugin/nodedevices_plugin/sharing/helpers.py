"""What the sharing modes of a plan await beside the kubelet: which helpers are wanted, and whether they answer. Pure.

The same for all modes: each says what its helpers are (sharing.base), and nothing here knows one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from nodedevices_plugin.model import Inventory, OfferedResource, Plan
from nodedevices_plugin.sharing.base import NOT_QUERIED, READY, Answer, Helper, HelperState
from nodedevices_plugin.sharing.registry import by_strategy, helper_kind, runs

Answers = Mapping[Hashable, Answer]


def run_by(resource: OfferedResource) -> str:
    """The mode whose helper runs the processes of the containers that hold this resource; empty: none does.

    Two plans may have the same ids; a pod that holds one goes on only where this is the same, too.
    """
    return runs(resource) if helper_kind(resource) is not None else ""


def requested_by(resource: OfferedResource) -> str:
    """The field of the configuration by which it has a helper."""
    return "sharing.strategy" if runs(resource) == resource.sharing else "sharing.resources"


def helpers(plan: Plan, inventory: Inventory) -> tuple[Helper, ...]:
    """The helpers that this plan needs, by resource name."""
    kinds = ((resource, helper_kind(resource)) for resource in plan.resources if resource.ids)
    return tuple(kind.wanted(resource, inventory) for resource, kind in kinds if kind is not None)


def silent(plan: Plan, answers: Answers) -> str:
    """Why a resource of this plan cannot be offered: its helper is not ready. Empty: all of them are."""
    for resource in plan.resources:
        answer, kind = _answer(resource, answers), helper_kind(resource)
        if answer.state is not HelperState.READY and kind is not None:
            by = "sharing.strategy" if runs(resource) == resource.sharing else "sharing.resources: enforcement"
            return f"{by}: {runs(resource)}: the {kind.texts.program} of {resource.name} {answer.message}"
    return ""


def unanswered(plan: Plan, answers: Answers) -> tuple[OfferedResource, ...]:
    """The resources of this plan that need a helper which is not ready: one that may still have to be started."""
    return tuple(each for each in plan.resources if _answer(each, answers).state is not HelperState.READY)


def starting(plan: Plan, answers: Answers) -> bool:
    """Whether the helpers that are not ready are only being started: nothing has to be corrected yet."""
    return all(_answer(each, answers).state is not HelperState.SILENT for each in plan.resources)


def exclusive(resource: OfferedResource) -> bool:
    """Whether its helper lets nobody but its clients use the devices."""
    kind = helper_kind(resource)
    return kind is not None and kind.exclusive


def shares(plan: Plan) -> frozenset[tuple[str, str]]:
    """Resource and id of each share whose pod is a helper's client."""
    return frozenset((each.name, one.id) for each in plan.resources if run_by(each) for one in each.ids)


def withheld(plan: Plan, shown: Plan | None, answers: Answers) -> Plan:
    """The plan without what cannot be used: shares whose helper is not ready.

    What the kubelet has been shown (`shown`: the plan before) stays listed, as unhealthy: it goes on showing an id that
    is dropped as healthy to the pods that have it. What it has not been shown yet is not registered.
    """
    listed = {each.name for each in (shown or Plan()).resources if each.ids}

    def now(resource: OfferedResource) -> OfferedResource:
        if _answer(resource, answers).state is HelperState.READY:
            return resource
        ids = tuple(replace(each, healthy=False) for each in resource.ids) if resource.name in listed else ()
        return replace(resource, ids=ids)

    return Plan(resources=tuple(now(each) for each in plan.resources))


def still_used(
    running: Sequence[Helper], wanted: Sequence[Helper], used: Callable[[Helper], bool]
) -> tuple[Helper, ...]:
    """Of the helpers that run those that are not wanted any more, or with other limits, and whose end would be the end
    of containers: they stay as they are. `used`: whether containers hold, or may hold, shares of it."""
    keys = {each.key for each in wanted}
    return tuple(each for each in running if each.key not in keys and used(each))


def beside(plan: Plan, helpers: Sequence[Helper], held: Collection[tuple[str | None, str]]) -> Plan:
    """The plan beside helpers that stay: devices that take nobody but their clients go to no new pod. `held`: resource
    and id of what containers have; those ids are not shown, as what is held in another shape (resources.occupancy)."""
    exclusive_modes = {each.mode for each in helpers if (kind := by_strategy(each.mode).helper) and kind.exclusive}
    theirs = {id_ for each in helpers if each.mode in exclusive_modes for id_ in each.device_ids}

    def now(resource: OfferedResource) -> OfferedResource:
        ours = [each for each in resource.ids if each.device_id in theirs and (resource.name, each.id) in held]
        ids = (
            replace(each, healthy=False) if each.device_id in theirs else each
            for each in resource.ids
            if each not in ours
        )
        return replace(resource, ids=tuple(ids), retained=(*resource.retained, *ours))

    return Plan(resources=tuple(map(now, plan.resources))) if theirs else plan


def kept_text(helpers: Sequence[Helper]) -> str:
    """Why they still run, for people."""
    kinds = [(each, by_strategy(each.mode).helper) for each in helpers]
    what = ", ".join(f"the {kind.texts.title} {kind.texts.program} of {each.resource}" for each, kind in kinds if kind)
    return f"{what} runs on until the pods that hold its shares have ended; its devices go to no other pods until then"


def _answer(resource: OfferedResource, answers: Answers) -> Answer:
    kind = helper_kind(resource)
    return READY if kind is None or not resource.ids else answers.get(kind.key(resource), NOT_QUERIED)
