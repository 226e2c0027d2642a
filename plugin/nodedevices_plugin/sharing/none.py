"""No sharing: every device goes to one container. There are no rules to carry out, since `none` has none."""

from __future__ import annotations

from nodedevices_plugin.model import NOT_SHARED
from nodedevices_plugin.sharing.base import SharingMode, Split, SplitRequest

NAME = NOT_SHARED.name


class NoSharing(SharingMode, frozen=True):
    name = NAME

    def split(self, request: SplitRequest) -> Split:
        return Split(counts=(1,) * len(request.units), sharing=NOT_SHARED)
