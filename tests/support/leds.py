"""A kind of hardware in one file: the LEDs of /sys/class/leds, for `nodedevices-probe`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from nodedevices_probe.kind import ProbeKind
from nodedevices_probe.loop import Source, SourceFacts
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState


@dataclass(slots=True, kw_only=True)
class Leds(Source):
    """Those whose name begins with `prefix`."""

    root: Path
    prefix: str
    name: str = "leds"

    def poll(self) -> SourceFacts:
        names = sorted(each.name for each in (self.root / "sys/class/leds").glob(f"{self.prefix}*"))
        devices = tuple(
            DeviceFact(id=name, index=index, type="led", vendor="linux") for index, name in enumerate(names)
        )
        return SourceFacts(driver=Driver(state=DriverState.LOADED, name="leds"), devices=devices)


def source(options: Namespace) -> Leds:
    return Leds(root=options.root, prefix=options.prefix)


KIND = ProbeKind(
    name="leds", help="LEDs", reads=__name__, flags={"prefix": {"default": ""}}, passed_on={"prefix": "led-prefix"}
)
