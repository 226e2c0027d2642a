"""What goes into a support bundle.

A bundle leaves the house. Secrets, ConfigMaps and logs are never read for it, and of the objects that are, only what is
listed here is taken: what an object gets tomorrow, or what somebody puts into one, stays at home.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodedevices_common.raw import Raw, mapping

OURS: Final = "nodedevices.io/"
REDACTED: Final = "<redacted>"
ALL: Final[Mapping[str, Any]] = {}


def _whole(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, ALL)


_STATE = dict.fromkeys(
    ("running", "waiting", "terminated"), _whole("reason", "exitCode", "signal", "startedAt", "finishedAt")
)
_CONTAINER = {**_whole("name", "image", "ports", "resources"), "env": _whole("name")}
_STATUS = {**_whole("name", "ready", "restartCount", "imageID"), "state": _STATE, "lastState": _STATE}
_LISTS = ("containers", "initContainers", "ephemeralContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
# What is taken of each part's objects, beside their metadata. Of our own kinds it is everything but values of `env`:
# they have no other field for what is not ours.
TAKEN: Final[Mapping[str, Mapping[str, Any]]] = {
    "nodedevices": _whole("spec", "status"),
    "devicepolicies": _whole("spec", "status"),
    "nodes": {
        "spec": _whole("unschedulable", "taints"),
        "status": _whole("capacity", "allocatable", "conditions", "nodeInfo"),
    },
    "pods": {
        "spec": {**_whole("nodeName", "priorityClassName"), **dict.fromkeys(_LISTS, _CONTAINER)},
        "status": {**_whole("phase", "reason", "startTime", "conditions"), **dict.fromkeys(_STATUSES, _STATUS)},
    },
    "events": _whole(
        "type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime", "series", "involvedObject"
    ),
    "lease": _whole("spec"),
}
_METADATA = _whole(
    "name", "namespace", "uid", "labels", "generation", "creationTimestamp", "deletionTimestamp", "ownerReferences"
)


def picked(item: Raw, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return of the object what is wanted, and its metadata with annotations of ours."""
    about = mapping(item.get("metadata"))
    metadata = _picked(about, _METADATA)
    if kept := {key: value for key, value in mapping(about.get("annotations")).items() if key.startswith(OURS)}:
        metadata["annotations"] = kept
    return {**_picked(item, {**_whole("apiVersion", "kind"), **wanted}), "metadata": metadata}


def _picked(value: Any, wanted: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_picked(entry, wanted) for entry in value]
    if not isinstance(value, dict):
        return value if not wanted else None
    if wanted:
        return {key: _picked(value[key], inner) for key, inner in wanted.items() if key in value}
    return {key: _unset(inner) if key == "env" else _picked(inner, ALL) for key, inner in value.items()}


def _unset(variables: Any) -> Any:
    """Return variables without their values."""
    return [
        {key: REDACTED if key == "value" else inner for key, inner in mapping(variable).items()}
        for variable in (variables if isinstance(variables, list) else ())
    ]


def files(parts: Mapping[str, Sequence[Raw] | str], taken: str) -> dict[str, bytes]:
    """Files by name: each part as JSON, and a README that says what there is, and what could not be read. A part that
    is a text is why it could not."""
    found: dict[str, bytes] = {}
    lines = [f"NodeDevices support bundle, taken {taken}.", ""]
    for name, part in parts.items():
        if isinstance(part, str):
            lines.append(f"{name}: missing: {part}")
            continue
        wanted = TAKEN.get(name)  # the others are no objects, but what we found out
        items = part if wanted is None else [picked(item, wanted) for item in part]
        found[f"{name}.json"] = json.dumps(items, indent=1).encode()
        lines.append(f"{name}.json: {len(part)}")
    lines += [
        "",
        "Not included: Secrets, ConfigMaps, logs, pods and annotations of others, command lines, values of variables.",
        "Included: names of nodes, pods and namespaces, labels, device ids, policies.",
    ]
    found["README.txt"] = ("\n".join(lines) + "\n").encode()
    return found
