"""The helpers that the sharing modes of a plan need: which are wanted, and whether they answer.

The same for all modes: each mode defines its helpers (sharing.base), and this module knows no mode.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set

from nodedevices_plugin.model import Inventory, OfferedResource, Plan
from nodedevices_plugin.sharing.base import NOT_QUERIED, READY, Announced, Helper, HelperAnswer, HelperKind, HelperState
from nodedevices_plugin.sharing.resources import helper_kind, runs

Answers = Mapping[Hashable, HelperAnswer]


def run_by(resource: OfferedResource) -> str:
    """Return the mode that has a helper to run the processes of containers with this resource; empty: none.

    Two plans may have the same ids; a pod that holds one goes on only where this is the same, too.
    """
    return runs(resource) if helper_kind(resource) is not None else ""


def requested_by(resource: OfferedResource) -> str:
    """The field of the configuration by which it has a helper."""
    return "sharing.strategy" if runs(resource) == resource.sharing.name else "sharing.resources"


def helpers(plan: Plan, inventory: Inventory) -> tuple[Helper, ...]:
    """The helpers that this plan needs, by resource name."""
    kinds = ((resource, helper_kind(resource)) for resource in plan.resources if resource.ids)
    return tuple(kind.wanted(resource, inventory) for resource, kind in kinds if kind is not None)


def silent(plan: Plan, answers: Answers) -> str:
    """Return why a resource of this plan cannot be offered: its helper is not ready. Empty: all of them are."""
    for resource in plan.resources:
        answer, kind = _answer(resource, answers), helper_kind(resource)
        if answer.state is not HelperState.READY and kind is not None:
            by = "sharing.strategy" if runs(resource) == resource.sharing.name else "sharing.resources: enforcement"
            return f"{by}: {runs(resource)}: the {kind.texts.program} of {resource.name} {answer.message}"
    return ""


def unanswered(plan: Plan, answers: Answers) -> tuple[OfferedResource, ...]:
    """The resources of this plan that need a helper which is not ready: one that may still have to be started."""
    return tuple(each for each in plan.resources if _answer(each, answers).state is not HelperState.READY)


def starting(plan: Plan, answers: Answers) -> bool:
    """True when the helpers that are not ready are only being started: nothing has to be corrected yet."""
    return all(_answer(each, answers).state is not HelperState.SILENT for each in plan.resources)


def exclusive(resource: OfferedResource) -> bool:
    """True when its helper admits only its clients to the devices."""
    kind = helper_kind(resource)
    return kind is not None and kind.exclusive


def shares(plan: Plan) -> frozenset[tuple[str, str]]:
    """Return resource and id of each share with pods that are a helper's clients."""
    return frozenset((each.name, one.id) for each in plan.resources if run_by(each) for one in each.ids)


def not_ready(resource: OfferedResource, answers: Answers) -> str:
    """Return why the helper that its shares need cannot be used; empty: it can, or there is none."""
    answer, kind = _answer(resource, answers), helper_kind(resource)
    return "" if answer.state is HelperState.READY or kind is None else f"{_title(kind)} {answer.message}"


def still_used(
    running: Sequence[Helper], wanted: Sequence[Helper], used: Callable[[Helper], bool]
) -> tuple[Helper, ...]:
    """Return the running helpers that are no longer wanted, or with other limits, and that must stay because their end
    would end containers. `used`: whether containers hold, or may hold, shares of it."""
    keys = {each.key for each in wanted}
    return tuple(each for each in running if each.key not in keys and used(each))


def announced(coming: Sequence[Helper], taken: Set[str]) -> tuple[Helper, ...]:
    """Return the helpers, of which those only announce their devices that have not yet (`taken`)."""
    return tuple(
        each.announced() if isinstance(each, Announced) and not taken >= frozenset(each.device_ids) else each
        for each in coming
    )


def exclusive_devices(helpers: Sequence[Helper]) -> frozenset[str]:
    """Return the devices that these helpers reserve to their clients."""
    return frozenset(id_ for each in helpers if each.kind.exclusive for id_ in each.device_ids)


def kept_text(helpers: Sequence[Helper]) -> str:
    """Return why they still run, for people."""
    return (
        f"{described(helpers)} runs on until the pods that hold its shares have ended; its devices go to no other pods "
        "until then"
    )


def described(helpers: Sequence[Helper]) -> str:
    """Return what they are, for people."""
    return ", ".join(f"the {_title(each.kind)} of {each.resource}" for each in helpers)


def _title(kind: HelperKind) -> str:
    return f"{kind.texts.title} {kind.texts.program}"


def _answer(resource: OfferedResource, answers: Answers) -> HelperAnswer:
    kind = helper_kind(resource)
    return READY if kind is None or not resource.ids else answers.get(kind.key(resource), NOT_QUERIED)
