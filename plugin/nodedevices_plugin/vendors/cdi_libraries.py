"""Where the driver's libraries in our CDI specifications come from, for devices that need them.

Device nodes alone are not enough for a container that brings no driver along: it would start, and find no CUDA. So a
specification that needs libraries (CdiSpec.libraries) is whole or it is not used. What makes it whole, best first:
- a program of the vendor's makes it (host.cdi_program), such as nvidia-ctk;
- the container toolkit's own specification has what every device needs, and lacks a device, or can no longer be read:
  its libraries go with our device nodes;
- the last whole one there was, of the program, or our own file from before this process. That holds for what is in
  effect already, and for no new choice.
Where it is configured (CdiNeeds.nodes_will_do) device nodes alone will do when there is none of these.

A file that others wrote under our name, with names that running pods have, is not replaced by less: see `merged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiSpec, Document, Libraries

LISTS = ("env", "deviceNodes", "mounts", "hooks")  # of containerEdits, with what distinguishes their entries below


def whole(document: Document) -> bool:
    """Whether it brings more than device nodes: files of the driver, or hooks that find them."""
    edits = [document.get("containerEdits"), *(each.get("containerEdits") for each in document.get("devices") or ())]
    return any(each.get(key) for each in edits if isinstance(each, dict) for key in ("mounts", "hooks"))


def completed(minimal: CdiSpec, source: Document) -> CdiSpec:
    """Our devices, each with what it has there beyond its nodes, and what goes with every GPU there."""
    listed = [each for each in source.get("devices") or () if isinstance(each, dict)]
    devices = [
        {**each, "containerEdits": _added(each["containerEdits"], _same_device(each, listed, minimal.libraries))}
        for each in minimal.document["devices"]
    ]
    common = _added(minimal.document.get("containerEdits") or {}, source.get("containerEdits") or {})
    newest = max((minimal.document, source), key=lambda each: _version(str(each.get("cdiVersion"))))
    document = {**minimal.document, "cdiVersion": newest["cdiVersion"], "devices": devices, "containerEdits": common}
    return replace(minimal, document=document)


def _same_device(ours: Document, theirs: Sequence[Document], libraries: Libraries | None) -> Document:
    """What another specification has for the device with these nodes; an index may be another device's by now."""
    prefix = libraries.node_prefix if libraries is not None else ""
    own = _own_nodes(ours["containerEdits"], prefix)
    for each in theirs:
        edits = each.get("containerEdits")
        if isinstance(edits, dict) and _own_nodes(edits, prefix) == own:
            return edits
    return {}


def _own_nodes(edits: Document, prefix: str) -> Set[str]:
    paths = {str(each.get("path")) for each in edits.get("deviceNodes") or () if isinstance(each, dict)}
    return {each for each in paths if each.startswith(prefix)}


def _added(ours: Document, theirs: Document) -> dict[str, Any]:
    """Ours, and of theirs what ours has not."""
    result = {**theirs, **ours}
    for key in LISTS:
        mine, more = list(ours.get(key) or ()), list(theirs.get(key) or ())
        known = {_what(each) for each in mine}
        if both := [*mine, *(each for each in more if _what(each) not in known)]:
            result[key] = both
    return result


def _what(entry: object) -> str:
    """What an entry of a list is about: the path in the container, the variable; of a hook all that it says."""
    if isinstance(entry, dict):
        return str(entry.get("path") if "hookName" not in entry else entry) + str(entry.get("containerPath", ""))
    return str(entry).partition("=")[0]


def merged(ours: CdiSpec, theirs: Document) -> CdiSpec:
    """What replaces both while pods run that were given names of the file that was there.

    Their names stay, so that a container that is restarted finds them. Where theirs is whole and ours is not, their
    devices and what goes with all of them stay as they are, and ours are added.
    """
    listed = {str(each.get("name")): each for each in theirs.get("devices") or () if isinstance(each, dict)}
    if whole(theirs) and not whole(ours.document):
        return replace(ours, document=_beside(completed(ours, theirs).document, listed))
    return replace(ours, document=_beside(ours.document, listed))


def _beside(document: Document, more: Mapping[str, Document]) -> dict[str, Any]:
    names = {each["name"] for each in document["devices"]}
    return {**document, "devices": [*document["devices"], *(each for name, each in more.items() if name not in names)]}


def choose(
    specs: Sequence[CdiSpec], made: Document | None, sources: Sequence[Document | None], *, nodes_will_do: bool
) -> tuple[CdiSpec, ...]:
    """Our specifications as they are to be written. `made`: the program's, of these devices; `sources`: in whose place,
    the best first. One that nothing can make whole, and whose nodes alone will not do, is left out."""
    best = next((each for each in sources if each is not None and whole(each)), None)
    chosen = []
    for each in specs:
        if each.libraries is None:
            chosen.append(each)
        elif made is not None:
            chosen.append(replace(each, document=made))
        elif best is not None:
            chosen.append(completed(each, best))
        elif nodes_will_do:
            chosen.append(each)
    return tuple(chosen)


def missing(specs: Sequence[CdiSpec], environment: CdiEnvironment, *, active: bool) -> str:
    """Why our specification would have no libraries; empty: it has them, or none of ours needs any.

    active: containers get their devices by it already, so that the last good one counts.
    """
    needy = next((each for each in specs if each.libraries is not None), None)
    if needy is None or needy.libraries is None or environment.toolkit_libraries or (active and environment.kept):
        return ""
    if {str(each["name"]) for each in needy.document["devices"]} <= environment.made:
        return ""
    found = "; ".join(each for each in (environment.toolkit_problem, environment.made_problem) if each)
    why = f"no CDI specification with the driver's libraries is there{f' ({found})' if found else ''}"
    return f"{why}; {needy.libraries.remedy}"


def stale(specs: Sequence[CdiSpec], environment: CdiEnvironment) -> str:
    """What is wrong with the source of the libraries while the last good one is used; empty: nothing."""
    needy = next((each for each in specs if each.libraries is not None), None)
    if needy is None or {str(each["name"]) for each in needy.document["devices"]} <= environment.made:
        return ""
    problem = "; ".join(each for each in (environment.toolkit_problem, environment.made_problem) if each)
    if environment.toolkit_libraries and problem and not environment.toolkit_problem:
        problem = "the container toolkit's own specification lacks some of these devices"
    return f"CDI: {problem}; the last good one is used" if problem else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))
