"""Decides the ids of a container: a pure function of the request and the plan. No look-up, no I/O, no lock."""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_plugin.cores import ids as core_ids
from nodedevices_plugin.granting import packing
from nodedevices_plugin.model import AllocationError, Grant, OfferedResource


def grant(resource: OfferedResource, ids: Sequence[str]) -> Grant:
    """Grant these ids to one container. Raises AllocationError; its text is shown in the pod's status. Also for an
    id that was blocked since the kubelet chose it, so that the pod fails with a reason and another can be scheduled."""
    wanted = frozenset(ids)
    found = {schedulable.id: schedulable for schedulable in resource.ids if schedulable.id in wanted}
    for id_ in ids:
        if id_ not in found:
            raise AllocationError(
                f"{resource.name}: this node does not offer {id_[:128]} (any more). Delete the pod, so that it is "
                "scheduled again."
            )
        if (blocked := found[id_].blocked) is not None:
            raise AllocationError(
                f"{resource.name}: {id_} is not given to new containers ({blocked.reason}: {blocked.message}); see "
                "`kubectl describe nodedevices` for this node. Delete the pod, so that it is scheduled again."
            )
    shares = any(schedulable.replica is not None for schedulable in found.values())
    if resource.fail_requests_greater_than_one and shares and len(wanted) > 1:
        raise AllocationError(
            f"{resource.name}: {len(wanted)} shares requested; a container may have 1 on this node "
            "(failRequestsGreaterThanOne). Several shares do not give more of a device. Set the limit to 1."
        )
    if resource.sharing.packing is not None:
        packing.check(resource, found.values())
    if resource.per_device is not None:
        core_ids.check(resource, tuple(found.values()))
    return Grant(resource=resource, ids=tuple(found[id_] for id_ in dict.fromkeys(ids)))
