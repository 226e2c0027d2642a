"""Pods that hold devices and do not use them: what their condition DeviceIdle and the Event of that name say.

The agent says so of a container (NodeDevices `holders[].idle`); nothing is ever ended for it, and others may act on the
condition. A pod with several such devices has one condition, about all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_common import conditions
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.text import some

from nodedevices_operator.desired.conditions import Staleness
from nodedevices_operator.desired.events import ObjectRef
from nodedevices_operator.desired.pods import Holding, finished, leaving, own_condition
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import NodeDevicesRecord

_NAMED = 8  # devices, in one message
_WORDS = {
    "NeverUsed": "no process has been seen on it since the pod got it",
    "Idle": "nothing was computed on it",
    "MemoryOnly": "nothing was computed on it; its memory is in use, but no process is seen",
}


class IdleHolding(Struct, frozen=True):
    """A container that holds a device and does not use it."""

    holding: Holding
    word: str
    since: str

    @property
    def text(self) -> str:
        """`gpu-3 GPU-8d0a... since 2026-11-21T10:00:00Z: nothing was computed on it`, for people."""
        return f"{self.holding.device_name} {self.holding.device} since {self.since}: {_WORDS[self.word]}"


Pods = Mapping[tuple[str, str], tuple[IdleHolding, ...]]  # by namespace and name


def idle_pods(record: NodeDevicesRecord) -> Pods:
    """Return the pods with what they do not use, the longest first. An agent's claim: a name that no pod can have, and
    a word that is none of the three, are ignored."""
    found: dict[tuple[str, str], list[IdleHolding]] = {}
    for device in record.devices:
        for idle in device.idle:
            holder = idle.holder
            if idle.word in _WORDS and is_pod(holder.namespace, holder.pod):
                held = IdleHolding(Holding.for_part(device, device, holder), idle.word, idle.since)
                found.setdefault((holder.namespace, holder.pod), []).append(held)
    return {pod: tuple(sorted(held, key=lambda it: (it.since, it.holding.device))) for pod, held in found.items()}


def idle_condition(
    idle: Sequence[IdleHolding], previous: ConditionRecord | None, now: str, *, stale: Staleness | None = None
) -> dict[str, Any] | None:
    """Return the condition of a pod; its reason is the word of what has been unused the longest.

    `stale`: why the record is out of date. Then nothing new is said (None), and what is shown becomes Unknown: the pod
    may use its devices by now.
    """
    text = some((holding.text for holding in idle), _NAMED)
    if stale is not None:
        if previous is None or previous.status == "False":
            return None
        text = f"{stale.message}; last known: {text}"
        return conditions.build(names.POD_DEVICE_IDLE, "Unknown", stale.reason, text, shown=previous, now=now)
    return conditions.build(names.POD_DEVICE_IDLE, "True", idle[0].word, text, shown=previous, now=now)


def in_use_condition(previous: ConditionRecord | None, now: str) -> dict[str, Any]:
    """Return the condition of a pod of which nothing is shown as unused any more."""
    text = "no device of this pod is shown as unused any more"
    return conditions.build(names.POD_DEVICE_IDLE, "False", names.IN_USE, text, shown=previous, now=now)


def marked(pods: Iterable[Mapping[str, Any]]) -> list[ObjectRef]:
    """Return those that show the condition, but for pods that end: theirs stays."""
    return [
        ObjectRef.pod(pod)
        for pod in pods
        if own_condition(pod, names.POD_DEVICE_IDLE) and not (finished(pod) or leaving(pod))
    ]
