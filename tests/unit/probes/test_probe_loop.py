"""What the loop of all probes adds to what a source reads: how long it took, and whether it was after an event."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import pytest
from nodedevices_probe.loop import NO_DRIVER, EventKey, LineLoop, Source, SourceFacts


class Stop(Exception):  # noqa: N818  ends a loop that never ends by itself
    pass


@dataclass(kw_only=True)
class SlowSource(Source):
    """Reads once, and then not again for an hour."""

    name: str = "slow"
    poll_seconds: float = 3600.0

    def poll(self) -> SourceFacts:
        time.sleep(0.02)
        return SourceFacts(driver=NO_DRIVER)


def test_a_line_says_how_long_its_reading_took_and_a_repetition_does_not() -> None:
    lines: list[dict[str, object]] = []

    def write(line: bytes) -> None:
        lines.append(json.loads(line))
        if len(lines) == 3:
            raise Stop

    loop = LineLoop(source=SlowSource(), write=write, repeat_seconds=0.05)
    with pytest.raises(Stop):
        loop.run()
    first, *repeated = [line.get("readMilliseconds") for line in lines]
    assert isinstance(first, int)
    assert first >= 20
    assert repeated == [None, None]


@dataclass(kw_only=True)
class Struck(Source):
    """Its second poll sees what an event of the same moment left behind, and nothing changes any more."""

    name: str = "struck"
    poll_seconds: float = 0.01
    polls: int = 0

    def poll(self) -> SourceFacts:
        self.polls += 1
        if self.polls == 2:
            self.events.record(EventKey(kind="xid", device_id="GPU-1", xid=79))
        return SourceFacts(driver=NO_DRIVER, accelerators_on_bus=min(self.polls, 2))


def test_that_the_same_was_read_after_an_event_is_said_by_the_next_poll() -> None:
    """Not by a repetition seconds later: a device that was brought back until then would wait for a person."""
    lines: list[tuple[int, object]] = []
    source = Struck()

    def write(line: bytes) -> None:
        lines.append((source.polls, json.loads(line).get("readAfter")))
        if len(lines) == 3:
            raise Stop

    with pytest.raises(Stop):
        LineLoop(source=source, write=write).run()
    assert [after for _, after in lines] == [0, 0, 1]
    assert lines[2][0] <= 4, "of polls; a repetition comes after hundreds"
