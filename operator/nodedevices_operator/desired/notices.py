"""Containers that held what a notice is about when it came: their pods get an Event.

A notice (NodeDevices `devices[].notices`) changed no state: a program's own error, or one that was contained in it. The
pod that failed with it wants to know whether it was its code or the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from msgspec import Struct
from nodedevices_common.times import seconds_between

from nodedevices_operator.desired.pods import Holding
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import HolderRecord, NodeDevicesRecord, NoticeRecord

CLOCKS = timedelta(seconds=1)  # a notice's time has whole seconds, a holder's has microseconds


class Noticed(Struct, frozen=True):
    """One notice, and one container that had the device then."""

    notice: NoticeRecord
    holding: Holding

    @property
    def key(self) -> tuple[HolderRecord, str, str, str]:
        """One Event for each: repeats of the notice give no other."""
        return (self.holding.holder, self.holding.device, self.notice.code, self.notice.since)

    @property
    def text(self) -> str:
        """`gpu-3 GPU-8d0a...: Xid31: GPU memory page fault (XID 31); restart the application. ...`, for people."""
        where = f"{self.holding.device_name} {self.notice.partition or self.holding.device}"
        times = "" if self.notice.count == 1 else f", {self.notice.count} times since {self.notice.since}"
        what = f"{where}: {self.notice.code}{times}: {self.notice.message.rstrip('.')}"
        return f"{what}. The device stays in service; further ones are counted in the NodeDevices of this node."


def noticed(record: NodeDevicesRecord) -> Iterator[Noticed]:
    """Every notice with every container that had the device, or the partition that it names, when it came last. An
    agent's claim: a name that no pod can have is ignored."""
    for device in record.devices:
        for notice in device.notices:
            parts = [part for part in device.parts if notice.partition in {"", part.id}]
            for part in parts:
                for holder in part.holders:
                    if not is_pod(holder.namespace, holder.pod) or not _before(holder.since, notice.time):
                        continue
                    ids = frozenset({part.id, device.name, *holder.ids})
                    yield Noticed(notice, Holding(holder, part.id, device.name, ids, part.health))


def _before(since: str, time: str) -> bool:
    ahead = seconds_between(time, since)
    return ahead is not None and ahead <= CLOCKS.total_seconds()
