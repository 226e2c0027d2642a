"""Time-slicing: the ids of a device are multiplied, and nothing else. The driver's scheduler switches between the
processes; nothing keeps their memory or their faults apart."""

from __future__ import annotations

from nodedevices_plugin.sharing.base import SharingMode, Split, SplitRequest, by_replicas

NAME = "timeSlicing"


class TimeSlicing(SharingMode, frozen=True):
    name = NAME

    def split(self, request: SplitRequest) -> Split:
        return by_replicas(self, request)
