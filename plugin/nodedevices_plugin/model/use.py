"""What is known of how containers use the devices that they hold (pipeline.idle)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct, field

NEVER_USED = "NeverUsed"
IDLE = "Idle"
MEMORY_ONLY = "MemoryOnly"
UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """A container's time with a device; it survives a restart of the agent (state file)."""

    holder: str  # namespace/pod/container, and by what it was allocated
    since: datetime  # of the Holder; a restarted agent sees another one
    began: datetime
    whole: bool  # observed from its beginning
    uid: str = ""  # of its pod; "": not known
    used: bool = False  # a process was seen, or something was computed


class DeviceUse(Struct, frozen=True, kw_only=True):
    """Of one held device. Times without a zone are time.monotonic()."""

    word: str = ""  # one of the above; "": in use, or not observed for long enough
    since: datetime | None = None  # of the word, where it says that the device is not used
    tenure: Tenure | None = None  # None: several containers hold it, or parts of it
    began: float  # this record
    line: float | None = None  # the last line that was looked at
    read: float | None = None  # the last reading of how busy it is
    quiet: float | None = None  # since when every reading was 0 %, without a gap

    @property
    def unused(self) -> bool:
        return self.since is not None


class HeldSeconds(Struct, frozen=True, kw_only=True):
    """Device-seconds of one namespace since the agent's start."""

    held: float = 0.0
    unused: float = 0.0


class Uses(Struct, frozen=True, kw_only=True):
    """Of all held devices."""

    devices: Mapping[str, DeviceUse] = field(default_factory=dict)  # by id
    namespaces: Mapping[str, HeldSeconds] = field(default_factory=dict)
    at: float  # time.monotonic()
