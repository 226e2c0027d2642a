"""The port of a vendor whose containers may get devices by CDI name (Container Device Interface).

A name must be in a file before it is handed out. These files are the container toolkit's, where the vendor has one that
keeps a specification on the node, or ours. The vendor decides which of ours are needed (`Vendor.cdi`). Three
decisions are the same for all vendors (pipeline.access, vendors.cdi_libraries): whether a configuration with CDI names
is possible, what is withheld without it, and where the driver's libraries come from. host/cdi_keeper.py writes the
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from msgspec import Struct
from nodedevices_probe.programs import Program

Document = Mapping[str, Any]
STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})  # of injection.deviceListStrategies: those that are CDI


class Libraries(Struct, frozen=True, kw_only=True):
    """The need of a class of devices for more than their nodes: the driver's files, which an image does not have.

    node_prefix: the beginning of the class's device nodes (`/dev/nvidia`): by its nodes a device is found in another
    specification, since an index may belong to another device by now. remedy: how people can get such a specification.
    """

    node_prefix: str
    remedy: str


class CdiSpec(Struct, frozen=True, kw_only=True):
    """One spec: its kind, the name of its file, and its content (JSON). `libraries` None: nodes are enough."""

    kind: str
    file_name: str
    document: Document
    libraries: Libraries | None = None


class ToolkitDevice(Struct, frozen=True, kw_only=True):
    """A device of a container toolkit's spec, and the device nodes that it brings."""

    name: str
    nodes: frozenset[str]


class CdiEnvironment(Struct, frozen=True, kw_only=True):
    """The state of CDI on this node for one vendor, as far as it was read.

    unwritable: why none of our files can be written; empty: no obstacle is known. toolkit: the devices of
    the container toolkit's own specs; toolkit_libraries: whether these bring what every device needs; toolkit_problem:
    which file is broken or gone, and why. made: names of the devices that the vendor's program made a specification of;
    made_problem: why it made none. kept: whether there is an earlier specification with the driver's libraries.
    """

    unwritable: str = ""
    toolkit: tuple[ToolkitDevice, ...] = ()
    toolkit_libraries: bool = False
    toolkit_problem: str = ""
    made: frozenset[str] = frozenset()
    made_problem: str = ""
    kept: bool = False


class CdiSource(Struct, frozen=True, kw_only=True):
    """The names of a vendor's specifications.

    kind: the kind of those that its container toolkit keeps on the node; toolkit_files: the usual names of their files.
    files: the names of the files that we write. libraries_file: the one of these for devices that need the driver's
    libraries.
    """

    kind: str
    toolkit_files: frozenset[str] = frozenset()
    files: frozenset[str]
    libraries_file: str = ""


class SpecRequest(Protocol):
    """A request to a program of the vendor's for a specification. Frozen; equal requests have equal answers."""

    @property
    def program(self) -> Program: ...

    @property
    def names(self) -> frozenset[str]:
        """The names of the devices that the specification must have."""
        ...

    @property
    def driver_root(self) -> str:
        """The path where the driver root is mounted in this container; empty: it is not mounted."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments of a run that prints the specification as JSON, but for those of every run and the roots, which
        the program says."""
        ...

    def accepted(self, document: Document, driver_root: str) -> dict[str, Any]:
        """Return a valid document as a specification with the host's paths. Raises ValueError where it is no such
        one."""
        ...


class CdiNeeds(Struct, frozen=True, kw_only=True):
    """The specifications that containers of one vendor need on this node.

    specs: those of ours that are needed, with device nodes alone. request: to the program that makes the one with
    libraries; None: it is not needed. nodes_will_do: device nodes alone are allowed, if there is no way to have the
    driver's libraries. elsewhere: devices and partitions that the container toolkit's own specification has. present:
    whether any device is there.
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
    """Return the devices of a spec, if it is of that kind. Read leniently: the runtime decides what is valid."""
    if not isinstance(document, dict) or document.get("kind") != kind:
        return ()
    found = []
    for device in _list(document.get("devices")):
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            edits = device.get("containerEdits")
            listed = _list(edits.get("deviceNodes")) if isinstance(edits, dict) else []
            paths = frozenset(str(node["path"]) for node in listed if isinstance(node, dict) and "path" in node)
            found.append(ToolkitDevice(name=device["name"], nodes=paths))
    return tuple(found)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
