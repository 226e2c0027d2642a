"""The port of a vendor whose containers may get devices by CDI name (Container Device Interface).

A name must be in a file before it is handed out. Such files are the container toolkit's, where the vendor has one that
keeps a specification on the node, or ours. The vendor says which of ours are needed (`CdiVendor`, CdiNeeds); whether a
configuration that uses CDI names is possible, what is withheld without, and where the driver's libraries come from
is decided for all vendors alike (pipeline.access, vendors.cdi_libraries), and host/cdi_keeper.py writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

Document = Mapping[str, Any]
STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})  # of injection.deviceListStrategies: those that are CDI


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """What devices of a class need beyond their nodes: files of the driver that a container does not bring along.

    node_prefix: how the class's device nodes begin (`/dev/nvidia`), by which a device is found in another's
    specification, where an index may be another device's by now. remedy: how people can have such a specification.
    """

    node_prefix: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpec:
    """One spec: its kind, the name of its file, and its content (JSON). `libraries` None: nodes are enough."""

    kind: str
    file_name: str
    document: Document
    libraries: Libraries | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitDevice:
    """A device of a container toolkit's spec, and the device nodes that it brings."""

    name: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiEnvironment:
    """What CDI finds on this node for one vendor, as far as it was read.

    unwritable: why none of our files can be written; empty: nothing is known to be in the way. toolkit: the devices of
    the container toolkit's own specs; toolkit_libraries: whether these bring what every device needs; toolkit_problem:
    which file is broken or gone, and why. made: names of the devices in what the vendor's program made; made_problem:
    why it made nothing. kept: whether there is a specification from before with the driver's libraries.
    """

    unwritable: str = ""
    toolkit: tuple[ToolkitDevice, ...] = ()
    toolkit_libraries: bool = False
    toolkit_problem: str = ""
    made: frozenset[str] = frozenset()
    made_problem: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSource:
    """What a vendor's specifications are called.

    kind: of those that its container toolkit keeps on the node, and toolkit_files: names that their files usually have.
    files: names of the files that we write. libraries_file: of these the one whose devices need the driver's libraries.
    """

    kind: str
    toolkit_files: frozenset[str] = frozenset()
    files: frozenset[str]
    libraries_file: str = ""


class SpecRequest(Protocol):
    """How a program of the vendor's makes a specification of ours. Frozen; equal requests have equal answers."""

    @property
    def tool(self) -> str:
        """What the program is called: nvidia-ctk."""
        ...

    @property
    def program(self) -> str:
        """The one that was named, by the flag `program_flag`; empty: it is searched for on PATH, then in `places`."""
        ...

    @property
    def program_flag(self) -> str: ...

    @property
    def places(self) -> Sequence[str]:
        """Folders below the driver root."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """Of the devices that the specification must have."""
        ...

    @property
    def driver_root(self) -> str:
        """Where the driver root is mounted in this container; empty: nowhere."""
        ...

    def arguments(self, driver_root: str, dev_root: str) -> Sequence[str]:
        """Of a run that prints the specification as JSON. Empty roots: the container's own."""
        ...

    def accepted(self, document: Document, driver_root: str) -> dict[str, Any]:
        """The specification of a valid document, with the host's paths. Raises ValueError where it is not the one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiNeeds:
    """What containers of one vendor need of CDI on this node.

    specs: those of ours that are needed, as device nodes. request: how a program makes the one that needs libraries;
    None: it is not needed. nodes_will_do: without the driver's libraries, if there is no way to have them. elsewhere:
    devices and partitions that the container toolkit's own specification has. present: whether any device is there.
    """

    specs: tuple[CdiSpec, ...] = ()
    request: SpecRequest | None = None
    nodes_will_do: bool = False
    elsewhere: Set[str] = frozenset()
    present: bool = True


def qualified(vendor: str, device_class: str, name: str) -> str:
    """`k8s.device-plugin.nvidia.com/gpu=GPU-...`"""
    return f"{vendor}/{device_class}={name}"


def devices_of(document: object, kind: str) -> tuple[ToolkitDevice, ...]:
    """The devices of a spec, if it is of that kind. Read leniently: the runtime's version decides what is valid."""
    if not isinstance(document, dict) or document.get("kind") != kind:
        return ()
    found = []
    for each in _list(document.get("devices")):
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            edits = each.get("containerEdits")
            listed = _list(edits.get("deviceNodes")) if isinstance(edits, dict) else []
            paths = frozenset(str(node["path"]) for node in listed if isinstance(node, dict) and "path" in node)
            found.append(ToolkitDevice(name=each["name"], nodes=paths))
    return tuple(found)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
