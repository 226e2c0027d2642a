"""The port of a vendor's device files: configuration of its devices in a file of its own.

Makers' device plugins have such files (config.json of RDMA's and SR-IOV's, gpu_config.json), and devices that exist by
configuration alone need one. The agent has a flag for each, reads the file again every second, and parses it by what
the vendor brings. A file that is missing or wrong is refused: what was good last stays, across restarts, too, and where
nothing ever was, the vendor's devices have no name and all others go on. One that sets sections concerns all of the
node, and is refused with the whole configuration then. The content is part of the configuration: it is compared, saved
in the state file, and decides ids, so that a change of it waits as any other does.

It is a file of the node and no field of a policy where it can name mounts or commands: who may write it is as good as
root on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from nodedevices_common.options import Option

from nodedevices_plugin.model.optional import OptionalInterface
from nodedevices_plugin.vendors.base import Naming


def _no_sections(content: Any) -> Mapping[str, Any]:
    return {}


class DeviceFile(Struct, frozen=True, kw_only=True):
    """`option`: the flag that names the file. `parse`: returns the content, or raises InputError with all errors.
    `type`: the type of the content, a frozen dataclass or model of plain values. `sections`: returns the sections of
    the configuration that a content sets, as a policy writes them; a flag, the agent's configuration file and a policy
    replace each."""

    option: Option
    type: type[Any]
    parse: Callable[[bytes], object]
    sections: Callable[[Any], Mapping[str, Any]] = _no_sections

    @property
    def sets_sections(self) -> bool:
        return self.sections is not _no_sections


@runtime_checkable
class OwnFiles(OptionalInterface, Protocol):
    """A vendor with device files."""

    @property
    def files(self) -> tuple[DeviceFile, ...]:
        """Their options' names, variables and keys must be unique among all options."""
        ...


@runtime_checkable
class FileNames(OptionalInterface, Protocol):
    """A vendor whose device files name resources: an entry that no device of the node has is reported."""

    def file_names(self, naming: Naming) -> Mapping[str, tuple[str, str]]:
        """Return for each name the option of the file that has it, and the entry's place there: `configList[1]`."""
        ...


class DeviceFileOutcome(Struct, frozen=True, kw_only=True):
    """One device file as it was read last: its content, or why it cannot be used. `field`: where the error is."""

    content: object = None
    error: str = ""
    field: str = ""


DeviceFiles = Mapping[str, DeviceFileOutcome]  # by the option's name; only files that a flag names
