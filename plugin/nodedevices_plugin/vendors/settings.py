"""What a vendor brings of settings: flags of its own, files that configure its devices, and files for other programs.

Flags: settings of the node that only one maker's devices need. A vendor adds options to the agent's table
(settings.options): flags, their variables, their keys in the configuration file. They are read, checked and refused as
the agent's own are. The vendor translates their values: to sections of the node's configuration, which a policy
replaces, and to a value of its own type, which it gets with every decision (vendors.base.NodeView.local).

Device files: makers' device plugins have files that configure devices (config.json of RDMA's and SR-IOV's,
gpu_config.json), and devices that exist by configuration alone need one. All are in one folder (`--devices-dir`), each
by its own name. The agent reads the folder again every second, and parses a file by what the vendor brings. A file that
is wrong is refused: what was good last stays, across restarts, too, and where nothing ever was, the vendor's devices
have no name and all others go on. One that sets sections concerns all of the node, and is refused with the whole
configuration then. A file that was never there means nothing. Of one that is there no more what was good last stays,
since nobody can say that it is gone on purpose: whoever wants that writes `null` into it first.

Both are part of the configuration: compared, and saved in the state file. A file's content decides ids, so that a
change of it waits as any other does. It is a file of the node and no field of a policy where it can name mounts or
commands: who may write it is as good as root on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, field
from nodedevices_common.options import Option, Values


def _no_sections(_said: object) -> Mapping[str, Any]:
    return {}


class DeviceFile(Struct, frozen=True, kw_only=True):
    """`name`: in the folder. `parse`: returns the content, or raises InputError with all errors.
    `type`: the type of the content, a frozen dataclass or model of plain values. `sections`: returns the sections of
    the configuration that a content sets, as a policy writes them; a flag, the agent's configuration file and a policy
    replace each."""

    name: str
    type: type[Any]
    parse: Callable[[bytes], object]
    sections: Callable[[Any], Mapping[str, Any]] = _no_sections

    @property
    def sets_sections(self) -> bool:
        return self.sections is not _no_sections


C = TypeVar("C")


def content_of(files: Mapping[str, object], name: str, type_: type[C]) -> C | None:
    """Return what the device file of this name has; None: there is none."""
    found = files.get(name)
    return found if isinstance(found, type_) else None


class DeviceFileOutcome(Struct, frozen=True, kw_only=True):
    """One device file as it was read last: its content, None for `null`, or why it cannot be used. `field`: where the
    error is. `file`: what it is called in the folder, where that is this node's own name of it."""

    content: object = None
    error: str = ""
    field: str = ""
    file: str = ""


# Those that are there, by name. FOLDER: it cannot be read, and what is there is not known. Other names are unknown.
DeviceFiles = Mapping[str, DeviceFileOutcome]
FOLDER = "."
NOT_READ: DeviceFiles = {FOLDER: DeviceFileOutcome(error="not read yet")}


class FolderFiles(Struct, frozen=True, kw_only=True):
    """Files that a vendor keeps on the node for other programs, such as CNI plugins that read a device's facts.
    `files`: texts by name: all files that we want in that folder. Other programs' files there stay.

    The agent keeps them up to date (host.node_files): written before an id is offered, replaced as devices change,
    removed when nothing needs them. A folder that cannot be written is reported, and withholds no id.
    """

    folder: str
    files: Mapping[str, str] = field(default_factory=dict)


class FlagRule(Struct, frozen=True, kw_only=True):
    """Where `when` is given, one of `needs` has to be, and none of `excludes` may be: terms (settings.options)."""

    when: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


class VendorFlags(Struct, frozen=True, kw_only=True):
    """`group`: the group of its options in --help, headed by `title`; an option may be in one of the agent's groups,
    too. Names, variables and keys must be unique among those of the agent and all vendors. `variables`: environment
    variables without a flag; `settings` finds their text by their name. `rules` and `absolute`, options whose value is
    an absolute path: what `settings` refuses, for the chart.

    settings: returns the vendor's settings for these values, a `settings_type`: a frozen dataclass of plain values,
    each with a default, so that a state file from before a new field can be read. With `decides_ids: ClassVar[bool] =
    True` it decides names or ids, and a change of it waits for pods as any other does. sections: returns the sections
    of the configuration that the values set, as a policy writes them; none without a value. Both raise PlanError for
    values that are not possible.
    """

    group: str
    title: str
    settings: Callable[[Values], object]
    settings_type: type[Any]
    sections: Callable[[Values], Mapping[str, Any]] = _no_sections
    options: tuple[Option, ...] = ()
    variables: tuple[str, ...] = ()
    rules: tuple[FlagRule, ...] = ()
    absolute: tuple[str, ...] = ()
