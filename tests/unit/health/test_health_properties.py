"""What holds whatever happens to a GPU, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings, strategies as st
from nodedevices_api.sections import DegradedRule
from nodedevices_plugin.health import machine
from nodedevices_plugin.health.events import withholds
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState, Verdict
from nodedevices_plugin.vendors.faults import Effect
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from nodedevices_plugin.vendors.nvidia.xids import look_up
from nodedevices_probe.protocol import Driver, DriverState, Readings
from support.facts import REGISTERED, START, Story, gpu, xid
from support.fuzzing import scaled
from support.there import there

HOLD = 30
RULES = HealthRules(
    hold_down_seconds=HOLD, degraded=(DegradedRule(signal="temperatureCelsius", threshold=85, for_seconds=10),)
)

maybe = st.sampled_from([None, False, True])
readings = st.builds(
    Readings,
    lost=st.booleans(),
    error=st.sampled_from([None, None, "ERROR_UNKNOWN"]),
    recovery_action=st.sampled_from([None, "None", "ResetDevice", "RebootNode"]),
    remap_pending=maybe,
    remap_failure=maybe,
    ecc_uncorrectable_volatile=st.sampled_from([None, 0, 1]),
    sram_threshold_exceeded=maybe,
    thermal_slowdown=maybe,
    temperature_celsius=st.sampled_from([None, 20, 90]),
)
xids = st.lists(st.sampled_from([13, 31, 45, 48, 62, 63, 74, 79, 94, 95, 119, 149, 500]), max_size=3)


@dataclass(frozen=True)
class Step:
    seconds: int
    kind: str  # line | gone | unloaded | silent | restart | confirm | reboot
    readings: Readings
    xids: list[int]


fine = st.sampled_from([Readings(recovery_action="None", remap_failure=False), Readings(remap_failure=False)])
steps = st.lists(
    st.builds(
        Step,
        seconds=st.sampled_from([1, 5, 12, 40]),
        kind=st.sampled_from(
            ["line", "line", "line", "line", "gone", "unloaded", "silent", "restart", "confirm", "reboot"]
        ),
        readings=st.one_of(fine, readings),
        xids=st.one_of(st.just([]), xids),
    ),
    max_size=25,
)


def play(story: Story, step: Step) -> None:
    at = story.clock + step.seconds
    device = gpu(0, readings=step.readings)
    came = [xid(number, after=at) for number in step.xids]
    match step.kind:
        case "gone":
            story.line(at=at)
        case "unloaded":
            story.line(at=at, driver=Driver(state=DriverState.NOT_LOADED))
        case "silent":
            story.silence(until=at)
        case "restart":
            story.clock = at
            story.restart()
        case "confirm":
            story.line(device, at=at, xids=came, confirmed=[0])
        case "reboot":
            story.line_facts["boot_id"] = f"boot-{at}"
            story.restart().line(device, at=at, xids=came)
        case _:
            story.line(device, at=at, xids=came)


def verdict(story: Story) -> Verdict | None:
    return next(iter(story.verdicts.values()), None)


def judged_again(story: Story, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return machine.judge_all(
        verdicts,
        story.inventory,
        (),
        RULES,
        REGISTERED,
        now=story.now,
        monotonic=story.clock,
        confirmed=frozenset(),
        shown=story.shown,
        counts={},
        in_use=lambda _: True,
        blind=False,
    )


def evidence(now: Verdict, story: Story) -> list[float]:
    """When, in seconds of the story, each fault was last seen."""
    return [(fault.last_seen - START).total_seconds() if fault.last_seen else story.clock for fault in now.faults]


@settings(max_examples=scaled(300), deadline=None)
@given(steps)
def test_what_always_holds(history: list[Step]) -> None:
    story = Story(RULES, boot_id="boot-0").line(gpu(0))
    last_bad = float("-inf")
    before: Verdict | None = verdict(story)
    for step in history:
        play(story, step)
        now = there(verdict(story))
        heard = step.kind in {"line", "confirm", "reboot"}
        bad_xid = heard and any(look_up(number).effect is Effect.UNHEALTHY for number in step.xids)
        bad_reading = heard and (
            step.readings.lost
            or step.readings.error is not None
            or step.readings.remap_failure is True
            or step.readings.recovery_action not in {None, "None"}
        )
        if bad_xid or bad_reading or step.kind == "gone":
            last_bad = story.clock
        elif step.kind == "confirm":
            last_bad = float("-inf")
        # A fault is never overlooked, nor over before its hold-down unless a person says so.
        if story.clock - last_bad < HOLD:
            assert now.state is HealthState.UNHEALTHY
        # Only Healthy, Degraded and Unknown are ever offered; what is Unhealthy never is.
        assert not (now.offered and now.state is HealthState.UNHEALTHY)
        undecided = any(withholds(fault, RULES, Nvidia()) for fault in now.faults)
        assert now.offered or undecided or now.state in {HealthState.UNHEALTHY, HealthState.UNKNOWN}
        if now.state is HealthState.HEALTHY:
            assert now.faults == ()
            assert (now.reason, now.recovery_action) == ("", "None")
        else:
            assert now.reason
            assert now.message
        # Time goes one way, and belongs to (state, reason).
        if before is not None and step.kind != "restart":
            same = (before.state, before.reason) == (now.state, now.reason)
            if step.kind != "reboot":
                assert now.since == (before.since if same else story.now)
            assert now.since >= before.since
        assert len(now.faults) <= 16
        # Judging again with no news changes nothing, once what came late has been reported.
        again = judged_again(story, story.verdicts)
        assert judged_again(story, again) == again
        if all(story.clock - HOLD < seen for seen in evidence(now, story)):
            assert again == story.verdicts
        before = now


@settings(max_examples=scaled(100), deadline=None)
@given(steps)
def test_a_neighbour_notices_nothing(history: list[Step]) -> None:
    story = Story(RULES).line(gpu(0), gpu(1))
    first = story.verdict(1)
    for number, step in enumerate(history):
        at = float(number + 1)
        came = [xid(each, after=at) for each in step.xids]
        story.line(gpu(0, readings=step.readings), gpu(1), at=at, xids=came)
        assert story.verdict(1) == first


@settings(max_examples=scaled(100), deadline=None)
@given(steps)
def test_left_alone_in_good_order_everything_recovers_or_says_what_it_waits_for(history: list[Step]) -> None:
    story = Story(RULES).line(gpu(0))
    for step in history:
        play(story, step)
    good = Readings(
        recovery_action="None",
        remap_pending=False,
        remap_failure=False,
        ecc_uncorrectable_volatile=0,
        sram_threshold_exceeded=False,
        thermal_slowdown=False,
        temperature_celsius=20,
    )
    end = story.clock + 2 * HOLD
    while story.clock < end:
        story.line(gpu(0, readings=good), at=story.clock + 10)
    if story.says() == ("Unhealthy", "Xid79"):
        assert story.verdict().recovery_action == "RebootNode"
        story.line().line(gpu(0, readings=good), at=story.clock + HOLD)
        story.line(gpu(0, readings=good), at=story.clock + HOLD)
    assert story.says() == ("Healthy", "")
