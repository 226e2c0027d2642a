"""Changes of objects that carry a person's word about a device (cordon, confirm), and the text about each.

Each function is given the object as it was just read and returns the change that makes it so, or none where it is so
already. A change of a list names the resourceVersion that it was made of: of two people who write at the same time the
second one reads again, and nobody's entry is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from nodedevices_common.confirming import (
    ACTIONS_RESUMED,
    CONFIG_ACCEPTED,
    CONFIRM,
    EVERY,
    RECOVERED,
    REMOVED,
    ROLLOUT_RESUMED,
    says,
    with_entries,
)
from nodedevices_common.errors import InputError
from nodedevices_common.observing import observes
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_common.text import clip, some
from nodedevices_common.times import rfc3339, zoned_time

from nodedevices_kubectl.views import facts, find

POLICY, ACTIONS = "policy/", "actions"  # how they are named beside nodes and devices
NO_NODES = ("policy", "actions")  # as a rule
OUTCOMES: Final = {  # of what each can be said
    RECOVERED.answer: ("NODE/DEVICE",),
    REMOVED.answer: ("NODE/DEVICE",),
    CONFIG_ACCEPTED.answer: ("NODE",),
    ROLLOUT_RESUMED.answer: ("policy/NAME", "actions"),
}
MISSING: Final = "Missing"
NO_REASON: Final = "taken out of service by hand"
MAX_REASON, MAX_BY = 256, 253  # as the CRD has them
MOST_PODS = 4  # named
OFFERED_BY_ANOTHER: Final = (
    "but is still offered: another plugin serves the kubelet there (serving.mode Observe), and may give it to a new "
    "pod. Remove it from that plugin's list, or keep new pods from the node: kubectl cordon"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """`patch`: a merge patch; None: nothing is to be written. `said`: sentences for the person."""

    patch: Mapping[str, Any] | None
    said: Sequence[str]


def cordon(item: Raw, devices: Sequence[str], *, reason: str, until: str, by: str, now: datetime) -> Edit:
    """Take the devices of one node out of service. `reason` empty: as it was, or NO_REASON; `until` empty: until it is
    taken back."""
    node = facts.name_of(item)
    entries = [dict(each) for each in mappings(mapping(item.get("spec")).get("unschedulable"))]
    said, observed = [], observes(facts.status_of(item))
    for name in devices:
        unit = find.device(item, name)
        shown = f"{node}/{unit.name}"
        known = next((each for each in entries if each.get("id") == unit.id), {})
        why = reason or text(known.get("reason")) or NO_REASON
        before, after = _terms(known.get("reason"), known.get("until")), _terms(why, until)
        if known and before == after:
            who = f" by {known['by']}" if known.get("by") else ""
            said.append(f"{shown} is out of service already{who} ({before}): nothing to do.")
            continue
        entry = {"id": unit.id, "reason": why, "since": text(known.get("since")) or rfc3339(now)}
        entry |= {key: given for key, given in (("by", clip(by, MAX_BY)), ("until", until)) if given}
        entries = [each for each in entries if each is not known] + [entry]
        out = f"{shown} is out of service ({after}{f'; before: {before}' if known else ''})"
        said.append(f"{out}, {OFFERED_BY_ANOTHER} {node}" if observed else f"{out}: no new pod gets it.")
        if pods := facts.pods_of(unit.holders):
            keeps = "keeps" if len(pods) == 1 else "keep"
            said.append(f"It is held by {some(pods, MOST_PODS)}, which {keeps} running.")
        said.append(f"To take it back: kubectl nodedevices uncordon {shown}")
    return Edit(_unschedulable(item, entries), said)


def _terms(reason: Any, until: Any) -> str:
    return text(reason) + (f", until {text(until)}" if text(until) else "")


def uncordon(item: Raw, devices: Sequence[str]) -> Edit:
    """Take the devices of one node back into service. One that the node no longer has is named by its id, or by the
    beginning of it; or, where it is the only such one, by the name of the device that has its place."""
    node = facts.name_of(item)
    entries = mappings(mapping(item.get("spec")).get("unschedulable"))
    listed = {unit.id for unit in facts.units(item)}
    said = []
    for name in devices:
        gone = {id_: entry for entry in entries if (id_ := text(entry.get("id"))) not in listed}
        unit = _in_service_again(item, name, entries, gone)
        if isinstance(unit, str):
            said.append(f"{_with_reason(gone, unit)}, which {node} no longer has, is no longer out of service.")
            entries = [entry for entry in entries if entry.get("id") != unit]
            continue
        shown = f"{node}/{unit.name}"
        kept = [entry for entry in entries if text(entry.get("id")) != unit.id]
        if len(kept) == len(entries):
            said.append(f"{shown} is not out of service: nothing to do.")
            if gone:
                several = ", ".join(_with_reason(gone, id_) for id_ in gone)
                said.append(f"Devices that {node} no longer has are out of service: {several}; name one by its id")
            parent = text(unit.device.get("id")) if unit.is_partition else ""
            if any(entry.get("id") == parent for entry in entries):
                said.append(f"Its device is: uncordon {node}/{text(unit.device.get('name')) or parent}")
            continue
        entries = kept
        state = text(unit.health.get("state"))
        held_back = "" if observes(facts.status_of(item)) else ", and no new pod gets it until it is healthy"
        rest = f"; it is {state}{held_back}" if state == facts.UNHEALTHY else ""
        said.append(f"{shown} is back in service{rest}.")
    return Edit(_unschedulable(item, entries), said)


def _in_service_again(item: Raw, name: str, entries: Sequence[Raw], gone: Mapping[str, Raw]) -> facts.Unit | str:
    """Return the device that is meant, or the id of one that the node no longer has: one of `gone`."""
    meant = find.by_beginning(name, gone)
    if len(meant) > 1:
        several = f"{len(meant)} devices: {', '.join(meant)}"
        raise InputError(f"{facts.name_of(item)}/{name}: this matches {several}; give the whole id")
    if meant:
        return meant[0]
    unit = find.device(item, name)
    in_its_place = len(gone) == 1 and all(entry.get("id") != unit.id for entry in entries)
    return next(iter(gone)) if in_its_place else unit


def _with_reason(gone: Mapping[str, Raw], id_: str) -> str:
    return f"{id_} ({text(gone[id_].get('reason'))})"


def _unschedulable(item: Raw, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the patch that makes these the object's entries; None: they are."""
    if entries == mappings(mapping(item.get("spec")).get("unschedulable")):
        return None
    return {"metadata": {"resourceVersion": facts.version_of(item)}, "spec": {"unschedulable": list(entries) or None}}


def confirm(item: Raw, devices: Sequence[str], outcome: str, now: datetime) -> Edit:
    """Say for a person that devices were repaired, or taken out of the machine. Entries for other devices stay: the
    agent acts once on each entry, and the time makes this one new."""
    node = facts.name_of(item)
    ids, said = [], []
    for name in devices:
        if name == EVERY:
            said += _all_removed(item, node, outcome)
            ids.append(EVERY)
            continue
        unit = find.device(item, name)
        shown = f"{node}/{unit.name}"
        state = text(unit.health.get("state")) or facts.UNKNOWN
        reason = text(unit.health.get("reason"))
        if outcome == "removed" and reason != MISSING:
            raise InputError(
                f"{shown} is {state}{f' ({reason})' if reason else ''}: its removal can be confirmed once its driver "
                f"no longer lists it (reason Missing). To keep it from new pods: "
                + (
                    f"kubectl cordon {node}"
                    if observes(facts.status_of(item))
                    else f"kubectl nodedevices cordon {shown}"
                )
            )
        if outcome == "recovered" and state == facts.HEALTHY:
            said.append(f"{shown} is Healthy: nothing to confirm.")
            continue
        ids.append(unit.id)
        what = "forgotten once no pod holds it" if outcome == "removed" else "judged again without its earlier faults"
        said.append(f"{shown} is confirmed as {outcome}: it will be {what}.")
        if outcome == "recovered":
            said.append("While the driver still requires an action, or a reading is bad, it stays as it is.")
        said.append(f"To see the result: kubectl nodedevices describe {shown}")
    if not ids:
        return Edit(None, said)
    form = RECOVERED if outcome == RECOVERED.answer else REMOVED
    return Edit(_confirmed(item, *(form.entry(rfc3339(now), id_) for id_ in ids)), said)


def wrong_pair(target: str, outcome: str) -> str:
    """Return why this outcome is not of what this is as a rule, and what would be right; empty: it is."""
    shape = "actions" if target == ACTIONS else "NODE/DEVICE" if "/" in target else "NODE"
    shape = "policy/NAME" if target.startswith(POLICY) else shape
    if shape in OUTCOMES[outcome]:
        return ""
    its = " or ".join(word for word, shapes in OUTCOMES.items() if shape in shapes)
    return f"{target}: {outcome} is for {' or '.join(OUTCOMES[outcome])}; {shape} can be {its}"


def _annotation(item: Raw) -> str:
    return text(mapping(mapping(item.get("metadata")).get("annotations")).get(CONFIRM))


def _confirmed(item: Raw, *entries: str) -> dict[str, Any]:
    """A patch that adds entries to the annotation, and keeps those about other subjects."""
    value = with_entries(_annotation(item), *entries)
    return {"metadata": {"resourceVersion": facts.version_of(item), "annotations": {CONFIRM: value}}}


def _all_removed(item: Raw, node: str, outcome: str) -> list[str]:
    if outcome != "removed":
        raise InputError(f"{node}/{EVERY} can only be confirmed as removed (all that is missing); name each device")
    missing = [unit.name for unit in facts.units(item) if text(unit.health.get("reason")) == MISSING]
    which = f", with {some(missing, MOST_PODS)}" if missing else ""
    return [
        f"{node}: all that is missing{which}, is confirmed as removed: the node should have only what is present.",
        f"To see the result: kubectl nodedevices describe {node}",
    ]


def stopped(policies: Sequence[Raw]) -> list[Raw]:
    """Return the policies whose actions about faults are stopped."""
    return [policy for policy in policies if facts.condition(policy, "ActionsStopped").get("status") == "True"]


def why_stopped(policies: Sequence[Raw]) -> list[str]:
    """Return why they are, by the policies' own words."""
    messages = (text(facts.condition(policy, "ActionsStopped").get("message")) for policy in policies)
    return list(dict.fromkeys(filter(None, messages)))


def resume_record(policies: Sequence[Raw]) -> str:
    """Return namespace/name of the ConfigMap by which a person lets them go on; empty: the operator does not say."""
    return next(filter(None, (text(facts.status_of(policy).get("resumeRecord")) for policy in policies)), "")


def resume_actions(record: Raw, now: datetime) -> Edit:
    return Edit(_confirmed(record, ACTIONS_RESUMED.entry(rfc3339(now))), ())


def resume_rollout(policy: Raw) -> Edit:
    """Let a stopped roll-out go on, for this generation of the policy and no later one."""
    name, about = facts.name_of(policy), facts.condition(policy, "RolledOut")
    generation = str(number(mapping(policy.get("metadata")).get("generation")) or "")
    if says(_annotation(policy), ROLLOUT_RESUMED, generation):
        return Edit(None, [f"The roll-out of {name} was resumed already for generation {generation}: nothing to do."])
    if about.get("reason") != "Stopped":
        state = text(about.get("reason")) or "no state yet"
        return Edit(None, [f"The roll-out of {name} is not stopped ({state}): nothing to do."])
    patch = _confirmed(policy, ROLLOUT_RESUMED.entry(generation))
    return Edit(patch, [f"The roll-out of {name} was stopped: {text(about.get('message'))}"])


def rollout_stopped(policy: Raw) -> str:
    """Return why its roll-out is stopped; empty: it is not."""
    about = facts.condition(policy, "RolledOut")
    return text(about.get("message")) or "no reason is given" if about.get("reason") == "Stopped" else ""


def accept(item: Raw) -> Edit:
    """Let roll-outs go on although this node is worse off since its change: with this configuration, and no later one,
    it is as it should be."""
    node, spec = facts.name_of(item), mapping(item.get("spec"))
    config_hash = text(spec.get("configHash"))
    if not mapping(spec.get("change")) or not config_hash:
        return Edit(None, [f"No roll-out waits for {node}: nothing to do."])
    if says(_annotation(item), CONFIG_ACCEPTED, config_hash):
        return Edit(None, [f"{node} was accepted already with this configuration: nothing to do."])
    said = f"{node} is accepted as it is, with its present configuration."
    return Edit(_confirmed(item, CONFIG_ACCEPTED.entry(config_hash)), [said])


def still_watched(item: Raw, before: Raw) -> str:
    """Return why roll-outs still wait for the change that the node had before; empty: they do not."""
    then, now = (mapping(mapping(each.get("spec")).get("change")) for each in (before, item))
    return f"{facts.name_of(item)} still has spec.change of {text(now.get('time'))}" if now and now == then else ""


# --- times that people give ------------------------------------------------------------------------------------------
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,6})([smhdw])")
RIGHT = "give a time with a zone, such as 2026-12-01T08:00:00Z, or a duration from now, such as 90m, 8h or 3d"


def moment(given: str, now: datetime) -> str:
    """Return the time as Kubernetes writes it. ValueError, with what would be right, for what is none or is past."""
    found = _DURATION.fullmatch(given)
    if found is not None:
        try:
            time = now + timedelta(seconds=int(found[1]) * _UNITS[found[2]])
        except OverflowError as error:
            raise ValueError(f"{given!r} is too long; {RIGHT}") from error
    else:
        known = zoned_time(given)
        if known is None:
            raise ValueError(f"{given!r} is not a time; {RIGHT}")
        time = known
    if time <= now:
        raise ValueError(f"{given!r} is past; {RIGHT}")
    return rfc3339(time)
