"""The configuration in effect, and its status: the condition ConfigApplied, and the same as fields.

Other parts act by the fields; messages are for people only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.sections import SECTION_NAMES
from nodedevices_common.text import listing

from nodedevices_plugin.model import Holder, Inventory, Plan, Refused, Unmatched
from nodedevices_plugin.model.resource_names import device_names
from nodedevices_plugin.offering.changes import pods_named
from nodedevices_plugin.offering.occupancy import HeldId
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.settings.effective import Effective
from nodedevices_plugin.sharing.mps import MpsDaemon


class ConfigStatus(Struct, frozen=True, kw_only=True):
    """The state of the configuration: the condition ConfigApplied and what else the status says of it."""

    reason: str = names.APPLIED  # one of nodedevices_api.conditions
    message: str = ""
    applied_hash: str | None = None  # spec.configHash in effect
    generation: int | None = None  # metadata.generation last seen
    sources: tuple[str, ...] = ()  # where it comes from, strongest first
    refused: Refused | None = None
    others: tuple[Refused, ...] = ()  # everything that is refused, also beside what is in effect
    unmatched: tuple[Unmatched, ...] = ()  # entries that are applied and match nothing here (offering.unmatched)
    waiting_for: tuple[str, ...] = ()  # pods that a change waits for, namespace/name
    cdi_problem: str = ""  # what is wrong with the source of CDI specifications
    pods_problem: str = ""  # why the pods of this node are not known, or not as they are now, where that matters


class ConfigProblem(Struct, frozen=True, kw_only=True):
    """Why the wanted configuration is not in effect, or the one in effect does not do what it says."""

    # As Configured.refused; holders: it waits for pods; operator: for its configuration; state: to be saved;
    # dra: for the kubelet and the API server.
    source: str
    message: str
    field: str = ""  # of the sections, where one is at fault
    waiting_for: tuple[Holder, ...] = ()
    waits: bool = False  # nothing is refused: it takes effect by itself
    awaits: int = 0  # of so many resources the MPS daemon is not ready
    coming: tuple[MpsDaemon, ...] | None = None  # MPS daemons that the wanted configuration waits for
    to_save: Effective | None = None  # it waits for nothing but the state file
    takes_away: Plan | None = None  # the plan that it waits for: what that does not have goes to no new pod


def refusal(field: str, message: str) -> Refused:
    """Return a refusal, with the section that the field is in, if it is in one."""
    section = re.split(r"[.:\[]", field, maxsplit=1)[0]
    return Refused(section=section if section in SECTION_NAMES else "", field=field, message=message)


def of_problem(status: ConfigStatus, problem: ConfigProblem, *, applied_once: bool) -> ConfigStatus:
    """applied_once: there is a configuration in effect."""
    if problem.source == "operator":
        return replace(status, reason=names.NO_CONFIG, message=problem.message)
    return replace(
        status,
        reason=_reason(problem),
        message=_message(problem, applied_once=applied_once),
        refused=refusal(problem.field, problem.message) if not problem.waits else None,
        waiting_for=tuple(sorted({f"{holder.namespace}/{holder.pod}" for holder in problem.waiting_for})),
    )


def of_holders(status: ConfigStatus, held: Sequence[HeldId], inventory: Inventory, plan: Plan) -> ConfigStatus:
    """All is in effect, but for devices that pods hold in another shape. `plan`: as the kubelet has it."""
    return replace(
        status,
        reason=names.WAITING_FOR_HOLDERS,
        message="; ".join([_withheld(held, inventory), *_other_units(held, plan)]),
        waiting_for=tuple(sorted({held_id.holder for held_id in held if held_id.holder})),
    )


def _reason(problem: ConfigProblem) -> str:
    if not problem.waits:
        return names.CONFIG_INVALID
    if problem.source == "state":
        return names.STATE_NOT_SAVED
    if problem.source == "dra":
        return names.WAITING_FOR_KUBELET
    return names.WAITING_FOR_DAEMON if problem.awaits and not problem.waiting_for else names.WAITING_FOR_HOLDERS


def _withheld(ours: Sequence[HeldId], inventory: Inventory) -> str:
    """Return a text for people about withheld devices."""
    held = {held_id.device_id for held_id in ours}
    called = device_names(inventory)
    devices = listing(called[device.fact.id] for device in inventory.devices if device.fact.id in held)
    pods = pods_named([held_id.holder for held_id in ours if held_id.holder])
    who = f"these pods have ended: {pods}" if pods else "their pods, which the kubelet does not list yet, have ended"
    what = "held under another resource or id, and not offered to new pods until"
    return f"{devices}: {what} {who}; everything else is applied"


def _other_units(held: Sequence[HeldId], plan: Plan) -> list[str]:
    """Return a text for people: names of which pods hold shares of another unit. The scheduler knows no units, and
    subtracts them as if they were of the current unit: a node can have a free device and room for no pod."""
    found = []
    for resource in (resource for resource in plan.resources if resource.sharing.memory is not None):
        old = sum(held_id.resource == resource.name for held_id in held)
        now = sum(schedulable.healthy for schedulable in resource.ids)
        if old:
            shares = f"{old} earlier shares from the {now} present shares of {resource.name}"
            right = "give the other unit another name (rename), which is counted separately"
            found.append(f"the scheduler subtracts these pods' {shares}, so new pods may find no room; {right}")
    return found


def _message(problem: ConfigProblem, *, applied_once: bool) -> str:
    """Return for people what is wrong, and which configuration holds meanwhile."""
    if problem.source in {"holders", "state"}:
        return problem.message
    if problem.awaits and problem.coming is None:
        meanwhile = "its shares are not offered until it answers"
    elif not applied_once:
        meanwhile = "nothing is offered until " + ("it answers" if problem.awaits else "there is a valid configuration")
    else:
        meanwhile = "the previous configuration stays in effect" + (" until it answers" if problem.awaits else "")
    return f"{problem.message}; {meanwhile}"


class ActiveConfig(Struct, frozen=True, kw_only=True):
    """The configuration in effect. `applied_once`: its plan was made, in this run or before the last restart.

    Until then it is the node's own settings without the file: devices are judged by it, and nothing is offered.
    """

    effective: Effective
    applied_hash: str | None = None
    applied_once: bool = False

    @property
    def needs_offers(self) -> bool:
        """True when other plugins' offers matter: for foreign.observe, take_over and awaiting.may_begin."""
        return self.effective.observing or not self.applied_once

    @property
    def excluded(self) -> tuple[str, ...]:
        """`resources.exclude`; nothing is kept back from what other plugins offer."""
        resources = self.effective.sections.resources
        return tuple(resources.exclude) if self.applied_once and not self.effective.observing and resources else ()


def plan_settings(effective: Effective) -> PlanSettings:
    """Return what of a configuration decides which ids are offered."""
    return PlanSettings.from_sections(
        effective.sections,
        resource_prefix=effective.resource_prefix,
        modes=effective.node.sharing_modes,
        vendors=effective.values,
        sharing_modes=effective.modes,
    )
