"""Chooses the source of the driver's libraries in our CDI specifications, for devices that need them.

Device nodes alone are not enough for a container without a driver in its image: it would start, and find no CUDA. So a
specification that needs libraries (CdiSpec.libraries) is whole or it is not used. Its sources, best first:
- a program of the vendor's makes it (host.cdi_program), such as nvidia-ctk;
- the container toolkit's own specification has the common libraries, but lacks a device or can no longer be read: its
  libraries are joined with our device nodes;
- the last whole specification, from the program or from our own file before this process. It is used only while a
  configuration with CDI names is in effect already, not for a new one.
Where the configuration allows it (CdiNeeds.nodes_will_do), device nodes alone are used when there is no such source.

A file that another program wrote under our name, with names that running pods have, keeps its content: see `merged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from msgspec.structs import replace

from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiSpec, Document, Libraries

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
    newest = max((minimal.document, source), key=lambda document: _version(str(document.get("cdiVersion"))))
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


def _own_nodes(edits: Document, prefix: str) -> Set[str]:
    paths = {str(edit.get("path")) for edit in edits.get("deviceNodes") or () if isinstance(edit, dict)}
    return {path for path in paths if path.startswith(prefix)}


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
    if whole(theirs) and not whole(ours.document):
        return replace(ours, document=_beside(completed(ours, theirs).document, listed))
    return replace(ours, document=_beside(ours.document, listed))


def _beside(document: Document, more: Mapping[str, Document]) -> dict[str, Any]:
    names = {device["name"] for device in document["devices"]}
    return {
        **document,
        "devices": [*document["devices"], *(device for name, device in more.items() if name not in names)],
    }


def choose(
    specs: Sequence[CdiSpec], made: Document | None, sources: Sequence[Document | None], *, nodes_will_do: bool
) -> tuple[CdiSpec, ...]:
    """Return our specifications to be written. `made`: the program's document for these devices. `sources`: others, the
    best first, for when there is none. A spec without a whole source is left out, unless `nodes_will_do`."""
    best = next((source for source in sources if source is not None and whole(source)), None)
    chosen = []
    for spec in specs:
        if spec.libraries is None:
            chosen.append(spec)
        elif made is not None:
            chosen.append(replace(spec, document=made))
        elif best is not None:
            chosen.append(completed(spec, best))
        elif nodes_will_do:
            chosen.append(spec)
    return tuple(chosen)


def missing(specs: Sequence[CdiSpec], environment: CdiEnvironment, *, active: bool) -> str:
    """Return why our specification would have no libraries; empty: it has them, or none of ours needs any.

    active: containers get their devices by CDI already, so that the last good specification counts.
    """
    needy = next((spec for spec in specs if spec.libraries is not None), None)
    if needy is None or needy.libraries is None or environment.toolkit_libraries or (active and environment.kept):
        return ""
    if {str(device["name"]) for device in needy.document["devices"]} <= environment.made:
        return ""
    found = "; ".join(problem for problem in (environment.toolkit_problem, environment.made_problem) if problem)
    why = f"no CDI specification with the driver's libraries is there{f' ({found})' if found else ''}"
    return f"{why}; {needy.libraries.remedy}"


def stale(specs: Sequence[CdiSpec], environment: CdiEnvironment) -> str:
    """Return what is wrong with the source of the libraries while the last good one is used; empty: nothing."""
    needy = next((spec for spec in specs if spec.libraries is not None), None)
    if needy is None or {str(device["name"]) for device in needy.document["devices"]} <= environment.made:
        return ""
    problem = "; ".join(problem for problem in (environment.toolkit_problem, environment.made_problem) if problem)
    if environment.toolkit_libraries and problem and not environment.toolkit_problem:
        problem = "the container toolkit's own specification lacks some of these devices"
    return f"CDI: {problem}; the last good one is used" if problem else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))
