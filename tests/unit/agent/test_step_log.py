"""What the probe complains of is in the agent's own log: each change once, and never a flood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodedevices_common.confirming import CONFIRM
from nodedevices_plugin.model import HoldersState, Holdings
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_plugin.status.step_log import PROBLEMS_SECONDS, StepLog
from nodedevices_probe.protocol import SWITCH, DeviceFact, Link, ProbeEvent, Problem
from structlog.testing import capture_logs
from support.facts import CONFIRMED, START, gpu, gpu_id, mig_id, partition, snapshot, well, xid
from support.steps import step

WRONG = Problem(code="FileInvalid", message="devices.yaml: profile: 'h9' is not known")
LOCAL = parse_flags(["--standalone"], {})


class Story:
    """Lines with these problems, and what is logged of them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.world: World = begin(State(), LOCAL, now=START, monotonic=self.now)
        self._step_log = StepLog(clock=lambda: self.now)
        self._metrics = AgentMetrics(facts=lambda: None, probes=dict)

    def line(self, *problems: Problem, after: float = 1.0) -> list[str]:
        self.now += after
        line = replace(snapshot(gpu(0)), problems=problems)
        inputs = Inputs(snapshot=line, arrived=self.now, holdings=Holdings(state=HoldersState.SYNCED, taken=1.0))
        return [
            "; ".join(entry.get("problems", ["none"]))
            for entry in self._logged(inputs)
            if "probe reports" in str(entry["event"])
        ]

    def events(self, *events: ProbeEvent) -> dict[tuple[str, str], float | None]:
        """The XIDs that have been counted by then."""
        self.now += 1
        cut = gpu(1, partitions=(partition(1, 1),), mig_enabled=True)
        line = snapshot(gpu(0), cut, events=events)
        self._logged(Inputs(snapshot=line, arrived=self.now, holdings=Holdings(state=HoldersState.SYNCED)))
        found = self._metrics.registry.get_sample_value
        return {
            (index, number): found("nodedevices_xids_total", {"index": index, "uuid": uuid, "xid": number})
            for index, uuid in (("0", gpu_id(0)), ("1", gpu_id(1)), ("", ""))
            for number in ("31", "79")
        }

    def devices(self, *facts: DeviceFact) -> list[tuple[str, str, Any]]:
        """What is logged of devices, each with how loud."""
        self.now += 1
        inputs = Inputs(snapshot=snapshot(*facts), arrived=self.now, holdings=Holdings(state=HoldersState.SYNCED))
        return self._of_devices(inputs)

    def restarted(self) -> list[tuple[str, str, Any]]:
        self.world = begin(self.world.state, LOCAL, now=START, monotonic=self.now)
        return self._of_devices(Inputs(holdings=Holdings(state=HoldersState.SYNCED)))

    def _of_devices(self, inputs: Inputs) -> list[tuple[str, str, Any]]:
        return [
            (entry["log_level"], entry.get("reason") or entry.get("was"), entry.get("device") or entry["devices"])
            for entry in self._logged(inputs)
            if str(entry["event"]).startswith("device ")
        ]

    def line_of(self, *facts: DeviceFact, events: tuple[ProbeEvent, ...]) -> list[Any]:
        """All that is logged of a line."""
        line = snapshot(*facts, events=events)
        return self._logged(Inputs(snapshot=line, arrived=self.now, holdings=Holdings(state=HoldersState.SYNCED)))

    def counted(self, metric: str, **labels: str) -> float | None:
        return self._metrics.registry.get_sample_value(metric, labels)

    def confirm(self, value: str) -> list[tuple[str, str]]:
        """What is logged of this value of the annotation."""
        seen = SeenObject(exists=True, config={}, confirm=value)
        logged = self._logged(Inputs(seen=seen, holdings=Holdings(state=HoldersState.SYNCED, taken=1.0)))
        return [
            (str(entry["event"]), entry.get("problem") or ",".join(entry["entries"]))
            for entry in logged
            if entry.get("annotation") == CONFIRM
        ]

    def _logged(self, inputs: Inputs) -> list[Any]:
        outcome = step(self.world, inputs, LOCAL, now=START, monotonic=self.now)
        before, self.world = self.world, outcome.world
        with capture_logs() as logged:
            self._step_log.record(before, outcome, self._metrics)
        return list(logged)


def test_what_happens_to_all_gpus_at_once_is_one_line_and_a_problem_that_counts_no_flood() -> None:
    eight, story = [gpu(number) for number in range(8)], Story()
    every = [gpu_id(number) for number in range(8)]
    assert story.devices(*eight) == []
    assert story.restarted() == [("warning", "Starting", every)]
    assert story.devices(*eight) == [("info", "Starting", every)]
    lost = gpu(3, readings=well(lost=True))
    assert story.devices(*eight[:3], lost, *eight[4:]) == [("warning", "FallenOffBus", gpu_id(3))]
    story = Story()
    lines = [
        story.line(Problem(code="EventsDropped", message=f"{number} events found no room"), after=0.1)
        for number in range(100)
    ]
    assert sum(map(len, lines)) == 2


def test_a_problem_and_its_end_are_reported_once_and_another_after_the_pause() -> None:
    story = Story()
    assert story.line(WRONG) == ["FileInvalid: devices.yaml: profile: 'h9' is not known"]
    assert story.line(WRONG, after=60) == []
    assert story.line(after=60) == ["none"]
    assert story.line(after=60) == []
    story, other = Story(), replace(WRONG, message="devices.yaml: profile: 'h8' is not known")
    assert story.line(WRONG)
    assert story.line(other) == []
    assert story.line(other, after=PROBLEMS_SECONDS) == ["FileInvalid: devices.yaml: profile: 'h8' is not known"]


def test_xids_are_counted_by_device_a_mig_devices_for_its_gpu() -> None:
    named = replace(xid(31, sequence=3), device_id=mig_id(1, 1))
    counted = Story().events(xid(31, sequence=1, count=5), xid(79, None, sequence=2), named, xid(31, 7, sequence=4))
    assert {key: value for key, value in counted.items() if value} == {
        ("0", "31"): 5.0,
        ("1", "31"): 1.0,
        ("", "79"): 1.0,
        ("", "31"): 1.0,
    }


def test_a_line_of_the_kernel_log_about_eight_gpus_is_logged_once_and_counted_by_its_address() -> None:
    story = Story()
    linked = [gpu(number, links=(Link(kind="NVLink", to=SWITCH, count=18),)) for number in range(8)]
    details = {"link": "28", "text": "LTSSM Fault Up"}
    event = ProbeEvent(
        sequence=1, time=START, kind="sxid-fatal", pci_bus_id="0000:c1:00.0", xid=20034, count=3, details=details
    )
    story.devices(*linked)
    logged = [each for each in story.line_of(*linked, events=(event,)) if "kernel log" in str(each["event"])]
    assert [(each["address"], each["reason"], each["count"]) for each in logged] == [("0000:c1:00.0", "Sxid20034", 3)]
    assert logged[0]["what"].endswith("(SXID 20034), link 28, LTSSM Fault Up")
    assert (
        story.counted("nodedevices_kernel_log_events_total", address="0000:c1:00.0", kind="sxid-fatal", code="20034")
        == 3
    )


def test_of_a_confirmation_only_what_was_understood_is_called_confirmed() -> None:
    story = Story()
    story.line()
    assert story.confirm(f"gpu-0=recovered@{CONFIRMED}") == [("invalid annotation", f"gpu-0: give its id, {gpu_id(0)}")]
    assert story.confirm(f"gpu-0=recovered@{CONFIRMED}") == []
    good = f"{gpu_id(0)}=recovered@{CONFIRMED}"
    assert story.confirm(f"{good},GPU-9=removed@{CONFIRMED}") == [
        ("invalid annotation", "GPU-9: this node has no such device"),
        ("confirmed by a person", good),
    ]
    assert story.confirm("") == []
