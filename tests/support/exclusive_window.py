"""A sharing mode that the agent does not come with, as somebody else would write it: all of it is in this file.

`exclusiveWindow`: the containers of a device use it one after the other, each in the windows that a variable names.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_api.sections import SharedResource
from nodedevices_plugin.model import ContainerEdits, Grant, PlanError
from nodedevices_plugin.sharing.base import Settings, SharingMode, Split, SplitRequest, by_replicas

NAME = "exclusiveWindow"
MOST = 8


class ExclusiveWindow(SharingMode, frozen=True):
    name = NAME

    def check(self, settings: Settings, rules: Sequence[SharedResource], *, partition_strategy: str) -> None:
        if partition_strategy != "none":
            raise PlanError("sharing.strategy", NAME, "windows are of whole devices; use partitions.strategy none")

    def split(self, request: SplitRequest) -> Split:
        split = by_replicas(self, request)
        replicas = split.sharing.replicas or 0
        if replicas > MOST:
            raise PlanError(f"{request.place}.replicas", replicas, f"a device has {MOST} windows at most")
        return split

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        windows = ",".join(str(each.replica) for each in grant.ids)
        return ContainerEdits(envs={"EXCLUSIVE_WINDOW": f"{windows} of {grant.resource.sharing.replicas}"})
