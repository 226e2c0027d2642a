"""Whether the kubelet has accepted the resources of the configuration in effect.

A configuration is applied when the kubelet has every resource name of it; until then the report keeps the hash of the
earlier one. When the kubelet refuses a name, the configuration is refused with the section that gave the name, so that
its policy counts as failed. Once a configuration was accepted, a restart of the kubelet does not change that. A name
that another plugin serves waits for that plugin to leave; the condition Ready says so, not ConfigApplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.sections import Sections

from nodedevices_plugin.model import Plan, Refused, Registration, RegistrationState
from nodedevices_plugin.pipeline.config_status import ConfigStatus

_OVER = {names.APPLIED, names.NO_CONFIG, names.WAITING_FOR_HOLDERS, names.WAITING_FOR_DAEMON}
_THERE = {RegistrationState.REGISTERED, RegistrationState.SERVED_BY_ANOTHER}


class Taken(Struct, frozen=True, kw_only=True):
    """The state of one configuration with the kubelet."""

    config_hash: str | None = None  # of the configuration in effect
    done: bool = False  # the kubelet has had all its names
    shown: str | None = None  # the hash that is reported


def follow(before: Taken, config: ConfigStatus, plan: Plan | None, registrations: Sequence[Registration]) -> Taken:
    """Return the next state. `plan` None: nothing is planned yet; an empty one: the kubelet has nothing to accept."""
    same = before.done and before.config_hash == config.applied_hash
    done = same or (plan is not None and not _missing(plan, registrations))
    return Taken(config_hash=config.applied_hash, done=done, shown=config.applied_hash if done else before.shown)


def reported(
    config: ConfigStatus,
    taken: Taken,
    plan: Plan | None,
    registrations: Sequence[Registration],
    sections: Sections,
    *,
    was_applied: bool,
) -> ConfigStatus:
    """Return the configuration's status with the kubelet's part. `sections`: those in effect. `was_applied`: the last
    report said that it was applied, possibly the report of an earlier agent."""
    again = was_applied and taken.shown == config.applied_hash  # a restart of the agent does not change that, either
    config = replace(config, applied_hash=taken.shown)
    if plan is None:
        return config
    offered = {resource.name for resource in plan.resources}
    refused = [
        registration
        for registration in registrations
        if registration.resource in offered and registration.state is RegistrationState.REJECTED
    ]
    if refused and config.reason in _OVER:
        said = "; ".join(
            f"the kubelet refuses {registration.resource}: {registration.message}" for registration in refused
        )
        section, field = _named_by(refused[0].resource, sections)
        return replace(
            config,
            reason=names.REGISTRATION_REJECTED,
            message=said,
            refused=Refused(section=section, field=field, message=said),
        )
    missing = {} if taken.done or again or config.reason != names.APPLIED else _missing(plan, registrations)
    if missing:
        why = next(filter(None, missing.values()), "")
        message = f"the kubelet has not taken {', '.join(sorted(missing))} yet" + (f": {why}" if why else "")
        return replace(config, reason=names.WAITING_FOR_KUBELET, message=message)
    return config


def _missing(plan: Plan, registrations: Sequence[Registration]) -> dict[str, str]:
    """Return the names that the kubelet does not have yet, each with the reason. One without ids is not registered."""
    state = {registration.resource: registration for registration in registrations}
    return {
        resource.name: state[resource.name].message if resource.name in state else ""
        for resource in plan.resources
        if resource.ids and (resource.name not in state or state[resource.name].state not in _THERE)
    }


def _named_by(name: str, sections: Sections) -> tuple[str, str]:
    """Return the section and field that give the name; empty where it is a usual one."""
    for number, shared in enumerate(sections.sharing.resources if sections.sharing is not None else ()):
        if shared.rename == name:
            return "sharing", f"sharing.resources[{number}].rename"
    for number, rule in enumerate(sections.resources.devices if sections.resources is not None else ()):
        if rule.name == name:
            return "resources", f"resources.devices[{number}].name"
    return "", ""
