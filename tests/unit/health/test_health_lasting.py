"""A condition that has to last is a fault when each line has shown it for so long, and not a second before."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_api.sections import HealthRule
from nodedevices_plugin.health import levels
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition
from nodedevices_plugin.vendors.nvidia.faults import PASSING_SECONDS
from nodedevices_probe.protocol import Driver, DriverState, Readings
from support.cases import cases
from support.facts import Story, gpu, ruled, well
from support.fuzzing import scaled

HOLD = 300
WELL, BRAKED, NARROW = ("Healthy", ""), ("Degraded", "PowerBrake"), ("Degraded", "PcieLinkNarrow")


def lines(story: Story, readings: Readings, *, until: float) -> Story:
    while story.clock < until:
        story.line(gpu(0, readings=readings), at=min(story.clock + 5, until))
    return story


BRAKE, NO_BRAKE, UNREADABLE = well(power_brake=True), well(power_brake=False), well()


def test_a_condition_becomes_a_fault_once_it_has_lasted_and_is_over_after_the_hold_down() -> None:
    story = lines(Story(), BRAKE, until=PASSING_SECONDS + 4)
    assert story.says() == WELL
    assert story.deadline() == 5 + PASSING_SECONDS, "counted from the first line that showed it"
    assert lines(story, BRAKE, until=PASSING_SECONDS + 5).says() == BRAKED
    assert story.verdict().offered
    assert lines(story, NO_BRAKE, until=PASSING_SECONDS + 10 + HOLD - 1).says() == BRAKED
    assert lines(story, NO_BRAKE, until=PASSING_SECONDS + 10 + HOLD).says() == WELL


@cases("between", NO_BRAKE, UNREADABLE, ids=["over", "unreadable"])
def test_a_line_that_does_not_show_it_begins_the_count_anew(between: Readings) -> None:
    story = lines(lines(Story(), BRAKE, until=PASSING_SECONDS), between, until=PASSING_SECONDS + 1)
    assert lines(story, BRAKE, until=2 * PASSING_SECONDS).says() == WELL
    assert lines(story, BRAKE, until=2 * PASSING_SECONDS + 10).says() == BRAKED


def test_what_is_counted_anew_after_silence_a_reload_or_a_restart_keeps_a_fault() -> None:
    story = lines(Story(), BRAKE, until=PASSING_SECONDS + 5)
    story.line(gpu(0, readings=UNREADABLE))
    assert lines(story, BRAKE, until=story.clock + 10).says() == BRAKED
    assert lines(story.restart(), BRAKE, until=story.clock + 10).says() == BRAKED
    story = lines(Story(), BRAKE, until=50).silence(until=80)
    assert lines(story, BRAKE, until=130).says() == WELL
    story.line(driver=Driver(state=DriverState.NOT_LOADED), at=135)
    assert lines(story, BRAKE, until=180).says() == WELL
    assert lines(story.restart(), BRAKE, until=230).says() == WELL
    assert lines(story, BRAKE, until=250).says() == BRAKED


def test_a_device_that_does_not_answer_shows_nothing_and_what_a_rule_named_ends_with_it() -> None:
    story = lines(Story(), BRAKE, until=30)
    story.line(gpu(0, readings=Readings(lost=True, power_brake=True)))
    assert not story.shown
    slow = on_pcie(16, 16, generation=1)
    story = lines(Story(ruled({"PcieLinkSlow": "Unhealthy"})), slow, until=120)
    assert story.says() == ("Unhealthy", "PcieLinkSlow")
    story.rules = HealthRules()
    assert lines(story, slow, until=125).says() == WELL


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 4, 10, 14]), st.sampled_from(["shown", "over", "unread"])), max_size=40))
def test_it_is_never_a_fault_before_its_time(history: list[tuple[int, str]]) -> None:
    story = Story().line(gpu(0, readings=NO_BRAKE), at=0)
    shown_since: float | None = None
    for seconds, what in history:
        readings = {"shown": BRAKE, "over": NO_BRAKE, "unread": UNREADABLE}[what]
        before = story.says()
        story.line(gpu(0, readings=readings), at=story.clock + seconds)
        shown_since = None if what != "shown" else story.clock if shown_since is None else shown_since
        lasted = shown_since is not None and story.clock - shown_since >= PASSING_SECONDS
        assert not lasted or story.says() == BRAKED
        assert story.says() != BRAKED or lasted or before == BRAKED


def test_of_several_conditions_of_a_reason_one_that_is_evident_counts() -> None:
    one = FaultCondition(reason="Hot", state=HealthState.DEGRADED, message="80 or more", evident=True, for_seconds=60)
    other = replace(one, message="95 or more", evident=False, for_seconds=0)
    seen = {levels.LastingCondition("x", "Hot", 0, 60): 100.0}
    assert [each.evident for each in levels.settled((one, other), "x", {}, monotonic=130)] == [None]
    assert [each.evident for each in levels.settled((one, other), "x", seen, monotonic=159)] == [None]
    [judged] = levels.settled((other, one), "x", seen, monotonic=160)
    assert (judged.evident, judged.message) == (True, "80 or more")
    both = replace(other, evident=True), replace(one, for_seconds=0)
    assert [each.message for each in levels.settled(both, "x", {}, monotonic=130)] == ["95 or more"], "the first one"


# --- a PCIe link, of any maker ----------------------------------------------------------------------------------------
def on_pcie(width: int | None, lanes: int | None, generation: int = 5, highest: int = 5) -> Readings:
    return well(
        pcie_width=width, pcie_width_possible=lanes, pcie_generation=generation, pcie_generation_possible=highest
    )


@cases(("width", "lanes", "says"), (16, 16, WELL), (8, 8, WELL), (8, 16, NARROW), (None, 16, WELL), (16, None, WELL))
@cases("maker", ("nvidia", "gpu"), ("mellanox", "nic"), ("of-no-vendor", "dpu"))
def test_a_link_with_fewer_lanes_than_both_ends_can_have_degrades_a_device_of_any_maker(
    width: int | None, lanes: int | None, says: tuple[str, str], maker: tuple[str, str]
) -> None:
    vendor, kind = maker
    story = Story()
    for at in range(0, levels.PCIE_SECONDS + 5, 5):
        story.line(gpu(0, vendor=vendor, type=kind, readings=on_pcie(width, lanes)), at=at)
    assert story.says() == says
    assert story.verdict().message == (
        "its PCIe link has 8 of the 16 lanes that both ends support; inspect the device" if says == NARROW else ""
    )


def test_a_narrow_link_has_the_width_of_now_and_a_slow_idle_one_is_no_fault_without_a_rule() -> None:
    story = lines(Story(), on_pcie(8, 16), until=70)
    assert "has 4 of the 16 lanes" in lines(story, on_pcie(4, 16), until=75).verdict().message
    slow = on_pcie(16, 16, generation=1)
    assert lines(Story(), slow, until=120).says() == WELL
    story = lines(Story(ruled({"PcieLinkSlow": "Degraded"})), slow, until=120)
    assert story.says() == ("Degraded", "PcieLinkSlow")
    assert "runs at generation 1, but both ends support generation 5" in story.verdict().message


@cases("glob", "*", "Pcie*", "PcieLink?low")
def test_a_glob_does_not_switch_on_what_is_normal_on_most_machines(glob: str) -> None:
    rules = HealthRules(rules=(HealthRule(reasons=(glob,), state="Unhealthy"),))
    assert lines(Story(rules), on_pcie(16, 16, generation=1), until=120).says() == WELL
