"""The ids of a resource that are not reported to the kubelet as Healthy, by reason: for the report and the metrics."""

from __future__ import annotations

from msgspec import Struct
from nodedevices_api.withheld import MEANINGS, SERVED_BY_ANOTHER

from nodedevices_plugin.model import Blocked, OfferedResource, SchedulableId

_ORDER = {reason: number for number, reason in enumerate(MEANINGS)}
_SERVED_BY_ANOTHER = Blocked(reason=SERVED_BY_ANOTHER, message="another device plugin serves this resource")


class Withheld(Struct, frozen=True, kw_only=True):
    """The ids that one reason withholds, with each id's own message."""

    reason: str
    ids: tuple[tuple[SchedulableId, Blocked], ...]

    @property
    def count(self) -> int:
        return len(self.ids)


def capacity(resource: OfferedResource) -> int:
    """Return the number of ids, whether or not the kubelet has been shown them."""
    return len(resource.ids) + len(resource.unlisted)


def withheld(resource: OfferedResource, *, mine: bool) -> tuple[Withheld, ...]:
    """Return the withheld ids by reason, in the order of the reference. Together with the Healthy ones they are the
    capacity. `mine`: this agent serves it to the kubelet."""
    found: dict[str, list[tuple[SchedulableId, Blocked]]] = {}
    for schedulable in (*resource.ids, *resource.unlisted):
        blocked = schedulable.blocked if mine else _SERVED_BY_ANOTHER
        if blocked is not None:
            found.setdefault(blocked.reason, []).append((schedulable, blocked))
    order = sorted(found, key=lambda reason: _ORDER.get(reason, len(_ORDER)))
    return tuple(Withheld(reason=reason, ids=tuple(found[reason])) for reason in order)
