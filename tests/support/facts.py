"""Literal facts for the pure stages, and a story: lines of a probe judged one after the other, on its own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from nodedevices_api.sections import HealthRule
from nodedevices_common.quantity import from_bytes
from nodedevices_plugin.health import levels, machine
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState, Inventory, Verdict
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.pipeline.state import State, to_save
from nodedevices_plugin.vendors.faults import FaultSources
from nodedevices_plugin.vendors.registry import VENDORS
from nodedevices_probe import nvidia
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, Partition, ProbeEvent, Readings, Snapshot

REGISTERED = VENDORS.fault_sources()
START = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
CONFIRMED = "2026-11-23T12:00:00Z"  # when a person confirmed something
GIB = 1 << 30


def gpu_id(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def mig_id(index: int, part: int) -> str:
    return f"MIG-00000000-0000-4000-8{part:03d}-{index:012d}"


def gpu(
    number: int,
    /,
    *,
    readings: Readings | None = None,
    memory_bytes: int = 80 * GIB,
    compute_capability: str = "",
    mig_enabled: bool | None = False,
    **facts: Any,
) -> DeviceFact:
    """A healthy H100 whose driver has field 230, unless said otherwise."""
    known: dict[str, Any] = {
        "id": gpu_id(number),
        "index": number,
        "minor": number,
        "product_name": "NVIDIA H100 80GB HBM3",
        "numa_node": number // 4,
        "type": "gpu",
        "vendor": "nvidia",
        "extra": nvidia.attributes(compute_capability=compute_capability, mig_enabled=mig_enabled),
        "capacity": {"memory": from_bytes(memory_bytes)} if memory_bytes else {},
        "readings": readings or well(),
    }
    return DeviceFact(**{**known, **facts})


def well(**readings: Any) -> Readings:
    """What a GPU in good order says, on a driver with field 230."""
    return Readings(**{"recovery_action": "None", "remap_pending": False, "remap_failure": False, **readings})


def old(**readings: Any) -> Readings:
    """The same on a driver without field 230."""
    return Readings(**{"recovery_action": None, "remap_pending": False, "remap_failure": False, **readings})


def silent_gpu(number: int, /, **readings: Any) -> DeviceFact:
    """A GPU that reports nothing but its id."""
    return DeviceFact(id=gpu_id(number), index=number, type="gpu", vendor="nvidia", readings=Readings(**readings))


def partition(number: int, part: int, /, *, profile: str = "1g.10gb", **facts: Any) -> Partition:
    known: dict[str, Any] = {
        "id": mig_id(number, part),
        "profile": profile,
        "index": part,
        "gi": part + 7,
        "ci": 0,
        "capacity": {"memory": "10Gi"},
    }
    return Partition(**{**known, **facts})


def snapshot(*devices: DeviceFact, **line: Any) -> Snapshot:
    known: dict[str, Any] = {
        "probe": "simulated",
        "probe_version": "1",
        "instance": "first",
        "sequence": 1,
        "time": START,
        "boot_id": "boot-1",
        "driver": Driver(state=DriverState.LOADED, name="nvidia", version="570.148.08"),
        "devices": devices,
    }
    return Snapshot(**{**known, **line})


def inventory_of(*devices: DeviceFact) -> Inventory:
    return stage.update(Inventory(), snapshot(*devices), now=START, monotonic=0.0)


def healthy(*devices: DeviceFact) -> dict[str, Verdict]:
    verdict = Verdict(state=HealthState.HEALTHY, reason="", message="", since=START, offered=True)
    return {device.id: verdict for device in devices}


def xid(number: int, device: int | None = 0, *, sequence: int = 0, after: float = 0.0, **event: Any) -> ProbeEvent:
    """An XID, `after` seconds from the start of the story."""
    return ProbeEvent(
        sequence=sequence,
        time=START + timedelta(seconds=after),
        kind="xid",
        device_id=None if device is None else gpu_id(device),
        xid=number,
        **event,
    )


def ruled(states: Mapping[str, Literal["Ignored", "Degraded", "Unhealthy"]], **rules: Any) -> HealthRules:
    """Health rules of one reason each."""
    made = tuple(HealthRule(reasons=(reason,), state=state) for reason, state in states.items())
    return HealthRules(rules=made, **rules)


class Story:
    """The agent's stages without the agent. Seconds are those since the start of the story."""

    def __init__(self, rules: HealthRules | None = None, vendors: FaultSources = REGISTERED, **line: Any) -> None:
        self.rules = rules or HealthRules()
        self.vendors = vendors
        self.line_facts = line
        self.clock = 0.0
        self.inventory = Inventory()
        self.verdicts: dict[str, Verdict] = {}
        self.held: frozenset[str] = frozenset()
        self.shown: levels.Lasting = {}
        self.counts: levels.Counts = {}
        self.blind = False  # the probe sees none of the devices that it had
        self._sequence = 0

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock)

    def line(
        self,
        *devices: DeviceFact,
        at: float | None = None,
        xids: Sequence[ProbeEvent] = (),
        confirmed: Sequence[int] = (),
        **line: Any,
    ) -> Story:
        """A line arrives and everything is judged."""
        self.clock = self.clock + 1 if at is None else at
        numbered = []
        for event in xids:
            self._sequence += 1
            numbered.append(replace(event, sequence=self._sequence))
        facts = {**self.line_facts, **line}
        self.inventory = stage.update(
            self.inventory,
            snapshot(*devices, **{"events": tuple(numbered), **facts}),
            now=self.now,
            monotonic=self.clock,
            held_partitions=self.held,
        )
        return self._judge(numbered, confirmed)

    def silence(self, *, until: float, xids: Sequence[ProbeEvent] = ()) -> Story:
        """Time passes without a line, then everything is judged, with what another probe reports."""
        self.clock = until
        return self._judge(xids, ())

    def restart(self) -> Story:
        """The agent ends and starts again with what the state file keeps."""
        self.verdicts = dict(to_save(State(), self.inventory, self.verdicts).verdicts)
        self.inventory = stage.restore(self.inventory.devices, boot_id=self.inventory.boot_id)
        self.shown, self.counts = {}, {}
        return self._judge((), ())

    def verdict(self, device: int = 0) -> Verdict:
        return self.verdicts[gpu_id(device)]

    def says(self, device: int = 0) -> tuple[str, str]:
        """State and reason, in words."""
        verdict = self.verdict(device)
        return verdict.state.value, verdict.reason

    def _judge(self, news: Sequence[ProbeEvent], confirmed: Sequence[int]) -> Story:
        self.shown = levels.follow(self.shown, self.inventory, self.rules, self.vendors, monotonic=self.clock)
        self.counts = levels.follow_counters(self.counts, self.inventory, self.vendors, monotonic=self.clock)
        self.verdicts = machine.judge_all(
            self.verdicts,
            self.inventory,
            news,
            self.rules,
            self.vendors,
            now=self.now,
            monotonic=self.clock,
            confirmed=frozenset(gpu_id(each) for each in confirmed),
            shown=self.shown,
            counts=self.counts,
            in_use=lambda _: True,
            blind=self.blind,
        )
        return self

    def deadline(self) -> float | None:
        return machine.next_deadline(
            self.verdicts, self.inventory, self.rules, now=self.now, monotonic=self.clock, shown=self.shown
        )
