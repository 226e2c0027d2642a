"""The node's effective configuration in NodeDevices.spec, from all DevicePolicies; decided in desired/configuration.py,
and when a change comes to this node in desired/rollout.py.

The first of the concerns: the others act by what it resolves, and on the Node only once it is stored.
"""

from __future__ import annotations

import structlog
from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Concern, Info, Outcome, Tools, View
from nodedevices_operator.desired.configuration import Configuration, resolve, understood
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.rollout import (
    RolloutWatch,
    held_back,
    next_change,
    pause_of,
    resumed,
    standing,
    watch,
)
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import ChangeRecord, NodeDevicesRecord, PolicyRef

log = structlog.get_logger()


class ConfigurationConcern(Concern[RolloutWatch]):
    info = Info("configuration", condition=names.POLICY_RESOLVED)

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._told: dict[str, str] = {}  # node -> the change of which an Event is there

    async def reconcile(self, view: View) -> Outcome:
        if view.node is None:
            return Outcome()  # its labels are not known
        record, watched = view.record, view.record.change.policies if view.record.change is not None else ()
        desired = resolve(view.node.labels, list(view.cache.policies.values()), record.config, record.policies)
        pause = max((pause_of(view.cache.policies.get(name)) for name in watched), default=0)
        clock = self._tools.clock()
        if (seen := watch(record, self._nodes.pop(record.name, None), clock)) is not None:
            self._nodes[record.name] = seen
        settle = 0.0 if seen is None else seen.remaining(clock)
        now = standing(record, view.node, desired, pause_seconds=pause, settle_seconds=settle, now=view.now)
        rollouts = self._tools.rollouts
        held = rollouts.ask(record.name, now)
        if held and record.config is None and not rollouts.begun:
            return Outcome()  # an agent without a resolved configuration waits; it would take a part for all
        change = next_change(record, now, held, view.now)
        if held:
            desired = held_back(desired, record, held, rollouts.why(record.name))
        view.configuration, view.understood = desired, understood(desired.config)
        view.stored = in_spec(record, desired)
        verdict = (desired.status, desired.reason, desired.message)
        if not view.stored or change != record.change:
            try:
                raw = await self._writer.config(record, desired, change)
            except KubeError as error:
                return Outcome(verdict, problems=(error,))
            log.info("configuration set", node=record.name, hash=desired.config_hash, watched=change is not None)
            view.wrote(Kind.NODE_DEVICES, raw)
            view.stored = True
        elif now.worse_off and record.change is not None:
            self._tell(view, record.change, now.worse_off)
        return Outcome(verdict, requeue_after=now.again)

    def _tell(self, view: View, change: ChangeRecord, why: str) -> None:
        """Write an Event about the node, once for each change, where other nodes wait for it: no annotation says that
        they go on."""
        name = view.record.name
        go_on = all(resumed(view.cache.policies.get(policy)) for policy in change.policies)
        if go_on or self._told.get(name) == change.time:
            return
        since = f"since a change of {', '.join(change.policies)}"
        message = f"{why}, {since}; no other node gets this change until a person resumes the roll-out"
        self._tools.events.write(
            Event(names.EVENT_ROLLOUT, ObjectRef.record(view.record), message, name, since=change.time)
        )
        self._told[name] = change.time
        log.warning("roll-out stopped", node=name, policies=",".join(change.policies), why=why)

    def forget(self, node: str) -> None:
        super().forget(node)
        self._tools.rollouts.forget(node)
        self._told.pop(node, None)


def in_spec(record: NodeDevicesRecord, configuration: Configuration) -> bool:
    """True when the object says so already."""
    return (
        record.config is not None
        and record.config == configuration.config
        and record.config_name == configuration.config_name
        and record.config_hash == configuration.config_hash
        and _by_name(record.policies) == _by_name(configuration.policies)
    )


def _by_name(refs: tuple[PolicyRef, ...]) -> dict[str, tuple[int, int, frozenset[str]]]:
    """Server-side apply keeps the members of a map-like list, not always their order."""
    return {ref.name: (ref.generation, ref.priority, frozenset(ref.sections)) for ref in refs}
