"""Logs and counts the changes of each step, each change once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from nodedevices_common.confirming import CONFIRM

from nodedevices_plugin.model import HealthState, Plan, Verdict, facts_by_id
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.pipeline.world import World
from nodedevices_plugin.status.facts import problems
from nodedevices_plugin.status.metrics import AgentMetrics

log = structlog.get_logger(__name__)

PROBLEMS_SECONDS = 5.0  # at least, between two log lines on the probe's problems: some of their texts have a count
PROBLEMS_SHOWN = 8
DEVICES_SHOWN = 16  # in one log line


def withdraws(before: Plan | None, after: Plan) -> bool:
    """True when an id that was reported Healthy no longer is."""
    healthy = {
        (resource.name, schedulable.id)
        for resource in (before or Plan()).resources
        for schedulable in resource.ids
        if schedulable.healthy
    }
    return any(
        not schedulable.healthy and (resource.name, schedulable.id) in healthy
        for resource in after.resources
        for schedulable in resource.ids
    )


class StepLog:
    """Logs each change once, and counts what is counted. clock: seconds, as time.monotonic() has them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._problems: tuple[str, ...] = ()
        self._problems_at: float | None = None

    def record(self, before: World, outcome: Step, metrics: AgentMetrics) -> None:
        after = outcome.world
        _verdicts(before.known.verdicts, after.known.verdicts)
        if after.plan != before.plan:
            _plan(before.plan, after.plan)
        _double_allocations(before, after)
        self._config(before, outcome, metrics)
        self._probe(problems(after.known.inventory))
        for logged in outcome.logged:
            if logged.xid is not None:
                log.info(
                    "xid noticed", device=logged.device_id, xid=logged.xid, count=logged.count, what=logged.message
                )
            else:
                said = {"address": logged.pci_bus_id, "reason": logged.reason}
                log.info("kernel log noticed", **said, count=logged.count, what=logged.message)
        for event in outcome.addressed:
            metrics.kernel_log_event(event)
        if outcome.xids:
            devices = facts_by_id(after.known.inventory)
            for event in outcome.xids:
                metrics.xid(event.xid or 0, event.count, devices.get(event.device_id or ""))
        if after.state.unschedulable != before.state.unschedulable:
            cordons = {cordon.id: cordon.reason for cordon in after.state.unschedulable[:DEVICES_SHOWN]}
            log.info("devices out of service by hand", devices=cordons)
        if after.confirm_problems != before.confirm_problems:
            for problem in after.confirm_problems:
                log.warning("invalid annotation", annotation=CONFIRM, problem=problem)
        for client, now in after.state.clients.clients.items():
            if now.reason and now.reason != getattr(before.state.clients.clients.get(client), "reason", ""):
                log.warning("MPS client without its daemon", client=client, reason=now.reason)
        if outcome.confirmed:
            log.info("confirmed by a person", annotation=CONFIRM, entries=outcome.confirmed)

    def _probe(self, now: tuple[str, ...]) -> None:
        """Log the probe's changes. Those that come faster than they may be logged wait for the end of the pause and a
        further line."""
        pausing = self._problems_at is not None and self._clock() - self._problems_at < PROBLEMS_SECONDS
        if now == self._problems or pausing:
            return
        self._problems, self._problems_at = now, self._clock()
        if now:
            log.warning("the probe reports problems", problems=now[:PROBLEMS_SHOWN], **_more(now, PROBLEMS_SHOWN))
        else:
            log.info("the probe reports no problems any more")

    def _config(self, before: World, outcome: Step, metrics: AgentMetrics) -> None:
        old, new = before.config, outcome.world.config
        if _said(old) != _said(new):
            level = log.warning if outcome.refused or new.cdi_problem else log.info
            message = "; ".join(text for text in _said(new)[1:] if text)
            level("configuration", condition=new.reason, message=message, hash=new.applied_hash)
            if outcome.refused:
                metrics.config_errors.labels(outcome.refused).inc()
        for note in new.unmatched:
            if note not in old.unmatched:
                log.warning("configuration entry matches nothing on this node", what=note.text)
        if before.active.effective != outcome.world.active.effective:
            log.info("active configuration changed", hash=outcome.world.active.applied_hash)


def _double_allocations(before: World, after: World) -> None:
    was, now = before.allocations.found or (), after.allocations.found or ()
    for double in now:
        if double not in was:
            log.error(
                "the kubelet has given a device to two pods", device=double.device_id, id=double.id, pods=double.pods
            )
    for double in was:
        if double.id not in {other.id for other in now}:
            log.info("no two pods hold the device any more", device=double.device_id, id=double.id)


def _verdicts(before: Mapping[str, Verdict], after: Mapping[str, Verdict]) -> None:
    """Each change once; devices to which the same happened (a silent probe, a start) are one line."""
    gone = [key for key in before if key not in after]
    well: dict[str, list[str]] = defaultdict(list)
    bad: dict[tuple[tuple[str, object], ...], list[str]] = defaultdict(list)
    for key, now in sorted(after.items()):
        was = before.get(key)
        if was is not None and (was.state, was.reason, was.offered) == (now.state, now.reason, now.offered):
            continue
        if now.state is HealthState.HEALTHY:
            if was is not None:
                well[was.reason].append(key)
            continue
        what = {"state": now.state.value, "reason": now.reason, "offered": now.offered}
        bad[tuple({**what, "action": now.recovery_action, "message": now.message}.items())].append(key)
    if gone:
        log.info("device gone", **_which(sorted(gone)))
    for reason, keys in well.items():
        log.info("device healthy", **_which(keys), was=reason)
    for said, keys in bad.items():
        log.warning("device not healthy", **_which(keys), **dict(said))


def _which(keys: Sequence[str]) -> dict[str, Any]:
    if len(keys) == 1:
        return {"device": keys[0]}
    return {"devices": list(keys[:DEVICES_SHOWN]), **_more(keys, DEVICES_SHOWN)}


def _more(items: Sequence[str], shown: int) -> dict[str, int]:
    return {"more": len(items) - shown} if len(items) > shown else {}


def _plan(before: Plan | None, after: Plan | None) -> None:
    old = {resource.name: len(resource.ids) for resource in (before or Plan()).resources}
    for resource in (after or Plan()).resources:
        healthy = sum(schedulable.healthy for schedulable in resource.ids)
        log.info(
            "offering", resource=resource.name, ids=len(resource.ids), healthy=healthy, sharing=resource.sharing.name
        )
        old.pop(resource.name, None)
    for name in old:
        log.info("no longer offering", resource=name)


def _said(config: ConfigStatus) -> tuple[str, str, str, str]:
    return config.reason, config.message, config.cdi_problem, config.pods_problem
