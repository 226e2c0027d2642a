"""Notes on a configuration, as NodeDevices has them in fields."""

from __future__ import annotations

from msgspec import Struct
from nodedevices_common.text import place_of


class Refused(Struct, frozen=True, kw_only=True):
    """A configuration that is not applied, and why. `section`: of a policy; empty: none. `field`: its place, where
    known."""

    section: str = ""
    field: str = ""
    message: str


class Unmatched(Struct, frozen=True, kw_only=True):
    """An entry without effect on this node. `entry`: its place within the section, and what stands there."""

    section: str
    entry: str
    message: str

    @property
    def text(self) -> str:
        """The note for people."""
        return f"{place_of(self.section, self.entry)}: {self.message}"


class WaitingPod(Struct, frozen=True, kw_only=True):
    """A pod that holds what a change waits for. `resource` empty: by a ResourceClaim."""

    namespace: str
    pod: str
    resource: str
    ids: tuple[str, ...]
