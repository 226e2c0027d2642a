"""What the loop of all probes adds to what a source reads: how long it took."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import pytest
from nodedevices_probe.events import EventLog
from nodedevices_probe.loop import NO_DRIVER, LineLoop, SourceFacts


class Stop(Exception):  # noqa: N818  ends a loop that never ends by itself
    pass


@dataclass
class SlowSource:
    """Reads once, and then not again for an hour."""

    name: str = "slow"
    poll_seconds: float = 3600.0
    events: EventLog = field(default_factory=EventLog)

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
