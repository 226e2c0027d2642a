"""The policies as they are, and as they would be: some given anew, some deleted.

A policy that is given stands for the object as the API server would have it: of one that is there already it keeps
name, age and uid, and is a generation newer; another one would be the youngest. What the operator refuses in it is
found as the operator finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from msgspec import Struct
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_common.errors import InputError
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.times import rfc3339
from nodedevices_operator.records.kinds import policy_record
from nodedevices_operator.records.objects import PolicyRecord

CREATED, CHANGED, DELETED, UNCHANGED = "created", "changed", "deleted", "unchanged"
_GIVEN = ("apiVersion", "kind", "metadata", "spec")  # of a file; a status is not the person's to write


class PolicyChange(Struct, frozen=True):
    """`refusal`: why the API server or the operator would refuse it; then nothing changes by it."""

    name: str
    how: str
    record: PolicyRecord | None = None  # as it would be
    refusal: str = ""
    would_only_report: bool = False  # its mode is DryRun: shown is what Enforce would do


class Policies(Struct, frozen=True):
    before: tuple[PolicyRecord, ...]
    after: tuple[PolicyRecord, ...]
    changes: tuple[PolicyChange, ...]


def changed(existing: Iterable[Raw], given: Sequence[Raw], deleted: Sequence[str], now: datetime) -> Policies:
    """`given`: whole objects, as in files. InputError for a name that is given twice, or deleted and not there."""
    there = {text(mapping(raw.get("metadata")).get("name")): raw for raw in existing}
    before = {name: policy_record(raw) for name, raw in there.items()}
    after, changes = dict(before), []
    for name in dict.fromkeys(deleted):
        if name not in there:
            known = ", ".join(sorted(there)) or "none"
            raise InputError(f"--delete {name}: there is no such policy; there are: {known}")
        del after[name]
        changes.append(PolicyChange(name, DELETED))
    for raw in given:
        name = text(mapping(raw.get("metadata")).get("name"))
        if any(change.name == name for change in changes):
            raise InputError(f"policy {name}: it is given twice; give each policy once")
        change = _change(name, raw, there.get(name), before.get(name), now)
        changes.append(change)
        if change.record is not None:
            after[name] = change.record
    return Policies(tuple(before.values()), tuple(after.values()), tuple(changes))


def _change(name: str, raw: Raw, there: Raw | None, before: PolicyRecord | None, now: datetime) -> PolicyChange:
    how = CREATED if before is None else CHANGED
    try:
        parse(DevicePolicy, {key: raw[key] for key in _GIVEN if key in raw})
    except InputError as error:
        return PolicyChange(name, how, refusal=str(error))
    record = policy_record({**raw, "metadata": _metadata(name, raw, there, now)})
    if record.refusal:
        return PolicyChange(name, how, refusal=record.problem)
    if before is not None and before.sections == record.sections and _beside(before) == _beside(record):
        how = UNCHANGED
    return PolicyChange(name, how, replace(record, dry_run=False), would_only_report=record.dry_run)


def _beside(policy: PolicyRecord) -> tuple[object, ...]:
    return policy.selector, policy.priority, policy.dry_run, policy.paused


def _metadata(name: str, raw: Raw, there: Raw | None, now: datetime) -> Mapping[str, Any]:
    own = {"name": name, "annotations": mapping(mapping(raw.get("metadata")).get("annotations"))}
    if there is None:
        return {**own, "uid": "", "generation": 1, "creationTimestamp": rfc3339(now)}
    known = mapping(there.get("metadata"))
    generation = known.get("generation")
    newer = generation + 1 if isinstance(generation, int) else 1
    return {**own, "generation": newer, **{key: known[key] for key in ("uid", "creationTimestamp") if key in known}}
