"""Generic devices: those of a configuration file (config) that this machine has (discovery).

The file may change at any time. Until there was a good one, the probe says nothing, so that devices which the agent
remembers stay; one that cannot be used later changes nothing, and the lines say what is wrong with it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from nodedevices_probe.events import EventLog
from nodedevices_probe.files.document import WatchedFile
from nodedevices_probe.generic.config import GenericConfig, parse
from nodedevices_probe.generic.discovery import devices
from nodedevices_probe.loop import NO_DRIVER, SourceFacts
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import Driver, DriverState


@dataclass(slots=True, kw_only=True)
class GenericSource:
    file: WatchedFile[GenericConfig]
    system: System = field(default_factory=System)
    poll_seconds: float = 1.0
    name: str = "generic"
    events: EventLog = field(default_factory=EventLog)

    def poll(self) -> SourceFacts:
        self.file.refresh()
        wrong = (self.file.problem,) if self.file.problem is not None else ()
        if self.file.value is None:
            return SourceFacts(driver=NO_DRIVER, problems=wrong, silent=True)
        found, problems = devices(self.file.value, self.system)
        return SourceFacts(driver=Driver(state=DriverState.LOADED), devices=found, problems=(*wrong, *problems))


def source(options: argparse.Namespace) -> GenericSource:
    return GenericSource(
        file=WatchedFile(path=options.file, parse=parse),
        system=System(options.root, Path(options.driver_root_ctr_path)),
        poll_seconds=options.interval_seconds,
    )
