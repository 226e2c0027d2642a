"""The port of a vendor whose containers may get devices by CDI name (Container Device Interface), and where the
driver's libraries in our specifications come from.

A name must be in a file before it is handed out. These files are the container toolkit's, where the vendor has one that
keeps a specification on the node, or ours. The vendor decides which of ours are needed (`Vendor.cdi`). Three decisions
are the same for all vendors: whether a configuration with CDI names is possible, what is withheld without it
(pipeline.access), and the source of the libraries (here). host/cdi_keeper.py writes the files.

Device nodes alone are not enough for a container without a driver in its image: it would start, and find no CUDA. So a
specification that needs libraries (CdiSpec.libraries) is whole or it is not used. Its sources, best first:
- a program of the vendor's makes it (host.cdi_keeper), such as nvidia-ctk;
- the container toolkit's own specification has the common libraries, but lacks a device or can no longer be read: its
  libraries are joined with our device nodes;
- the last whole specification, from the program or from our own file before this process. It is used only while a
  configuration with CDI names is in effect already, not for a new one.
Where the configuration allows it (CdiNeeds.nodes_will_do), device nodes alone are used when there is no such source.

A file that another program wrote under our name, with names that running pods have, keeps its content: see `merged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace
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

    @property
    def problem(self) -> str:
        return "; ".join(problem for problem in (self.toolkit_problem, self.made_problem) if problem)


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


class SpecRequest(Struct, frozen=True, kw_only=True):
    """A request to a program of the vendor's for a specification; equal requests have equal answers.

    names: those of the devices that the specification must have. driver_root: where the driver root is mounted in this
    container; empty: it is not.
    """

    program: ClassVar[Program]

    names: frozenset[str]
    driver_root: str = ""

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments of a run that prints the specification as JSON, but for those of every run and the roots, which
        the program says."""
        raise NotImplementedError

    def accepted(self, document: Document, driver_root: str) -> dict[str, Any]:
        """Return a valid document as a specification with the host's paths. Raises ValueError where it is no such
        one."""
        raise NotImplementedError


class CdiNeeds(Struct, frozen=True, kw_only=True):
    """The specifications that containers of one vendor need on this node.

    specs: those of ours that are needed, with device nodes alone. request: to the program that makes the one with
    libraries; None: it is not needed. nodes_will_do: device nodes alone are allowed, if there is no way to have the
    driver's libraries. elsewhere: devices and partitions that the container toolkit's own specification has. present:
    whether any device is there. unnamed: devices that no specification names as a whole, and unnamed_because: why, and
    what to do.
    """

    specs: tuple[CdiSpec, ...] = ()
    request: SpecRequest | None = None
    nodes_will_do: bool = False
    elsewhere: Set[str] = frozenset()
    present: bool = True
    unnamed: Set[str] = frozenset()
    unnamed_because: str = ""


def qualified(vendor: str, device_class: str, name: str) -> str:
    """`k8s.device-plugin.nvidia.com/gpu=GPU-...`"""
    return f"{vendor}/{device_class}={name}"


def devices_of(document: object, kind: str) -> tuple[ToolkitDevice, ...]:
    """Return the devices of a spec, if it is of that kind. Read leniently: the runtime decides what is valid."""
    if not isinstance(document, dict) or document.get("kind") != kind:
        return ()
    return tuple(
        ToolkitDevice(name=device["name"], nodes=_own_nodes(device.get("containerEdits")))
        for device in _list(document.get("devices"))
        if isinstance(device, dict) and isinstance(device.get("name"), str)
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


LISTS = ("env", "deviceNodes", "mounts", "hooks")  # of containerEdits; `_entry_key` tells their entries apart


def whole(document: Document) -> bool:
    """True when it has more than device nodes: files of the driver, or hooks that find them."""
    edits = [
        document.get("containerEdits"),
        *(device.get("containerEdits") for device in document.get("devices") or ()),
    ]
    return any(edit.get(key) for edit in edits if isinstance(edit, dict) for key in ("mounts", "hooks"))


def completed(minimal: CdiSpec, source: Document) -> CdiSpec:
    """Return our devices, each with the source's edits for it beyond its nodes, and the source's common edits."""
    listed = [device for device in source.get("devices") or () if isinstance(device, dict)]
    devices = [
        {**device, "containerEdits": _added(device["containerEdits"], _same_device(device, listed, minimal.libraries))}
        for device in minimal.document["devices"]
    ]
    common = _added(minimal.document.get("containerEdits") or {}, source.get("containerEdits") or {})
    newest = max((minimal.document, source), key=lambda document: version(str(document.get("cdiVersion"))))
    document = {**minimal.document, "cdiVersion": newest["cdiVersion"], "devices": devices, "containerEdits": common}
    return replace(minimal, document=document)


def _same_device(ours: Document, theirs: Sequence[Document], libraries: Libraries | None) -> Document:
    """Return another specification's edits for the device with these nodes; an index may be another device's now."""
    prefix = libraries.node_prefix if libraries is not None else ""
    own = _own_nodes(ours["containerEdits"], prefix)
    for device in theirs:
        edits = device.get("containerEdits")
        if isinstance(edits, dict) and _own_nodes(edits, prefix) == own:
            return edits
    return {}


def _own_nodes(edits: object, prefix: str = "") -> frozenset[str]:
    """Return the paths of device nodes that begin so."""
    listed = _list(edits.get("deviceNodes")) if isinstance(edits, dict) else []
    paths = (str(node["path"]) for node in listed if isinstance(node, dict) and "path" in node)
    return frozenset(path for path in paths if path.startswith(prefix))


def _added(ours: Document, theirs: Document) -> dict[str, Any]:
    """Return our edits, and those of theirs that ours lack."""
    result = {**theirs, **ours}
    for key in LISTS:
        mine, more = list(ours.get(key) or ()), list(theirs.get(key) or ())
        known = {_entry_key(edit) for edit in mine}
        if both := [*mine, *(edit for edit in more if _entry_key(edit) not in known)]:
            result[key] = both
    return result


def _entry_key(entry: object) -> str:
    """Return what identifies an entry: the path in the container, the variable's name; for a hook all of it."""
    if isinstance(entry, dict):
        return str(entry.get("path") if "hookName" not in entry else entry) + str(entry.get("containerPath", ""))
    return str(entry).partition("=")[0]


def merged(ours: CdiSpec, theirs: Document) -> CdiSpec:
    """Return a spec to replace a file whose names running pods were given.

    The file's names stay, so that a restarted container finds them. Where the file is whole and ours is not, its
    devices and common edits stay as they are, and our devices are added.
    """
    listed = {str(device.get("name")): device for device in theirs.get("devices") or () if isinstance(device, dict)}
    document = completed(ours, theirs).document if whole(theirs) and not whole(ours.document) else ours.document
    names = {device["name"] for device in document["devices"]}
    more = [device for name, device in listed.items() if name not in names]
    return replace(ours, document={**document, "devices": [*document["devices"], *more]})


def choose(
    specs: Sequence[CdiSpec], made: Document | None, sources: Sequence[Document | None], *, nodes_will_do: bool
) -> tuple[CdiSpec, ...]:
    """Return our specifications to be written. `made`: the program's document for these devices. `sources`: others, the
    best first, for when there is none. A spec without a whole source is left out, unless `nodes_will_do`."""
    best = next((source for source in sources if source is not None and whole(source)), None)
    chosen = []
    for spec in specs:
        if spec.libraries is not None and made is not None:
            chosen.append(replace(spec, document=made))
        elif spec.libraries is not None and best is not None:
            chosen.append(completed(spec, best))
        elif spec.libraries is None or nodes_will_do:
            chosen.append(spec)
    return tuple(chosen)


def missing(specs: Sequence[CdiSpec], environment: CdiEnvironment, *, active: bool) -> str:
    """Return why our specification would have no libraries; empty: it has them, or none of ours needs any.

    active: containers get their devices by CDI already, so that the last good specification counts.
    """
    libraries = _not_made(specs, environment)
    if libraries is None or environment.toolkit_libraries or (active and environment.kept):
        return ""
    found = f" ({environment.problem})" if environment.problem else ""
    return f"no CDI specification with the driver's libraries is there{found}; {libraries.remedy}"


def stale(specs: Sequence[CdiSpec], environment: CdiEnvironment) -> str:
    """Return what is wrong with the source of the libraries while the last good one is used; empty: nothing."""
    problem = environment.problem if _not_made(specs, environment) is not None else ""
    if environment.toolkit_libraries and problem and not environment.toolkit_problem:
        problem = "the container toolkit's own specification lacks some of these devices"
    return f"CDI: {problem}; the last good one is used" if problem else ""


def _not_made(specs: Sequence[CdiSpec], environment: CdiEnvironment) -> Libraries | None:
    """Return the libraries of the first specification that needs some; None where the vendor's program made it for
    these devices, or none needs any."""
    for spec in specs:
        if spec.libraries is not None:
            made = {str(device["name"]) for device in spec.document["devices"]} <= environment.made
            return None if made else spec.libraries
    return None


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))
