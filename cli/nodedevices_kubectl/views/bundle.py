"""What goes into a support bundle, and what of it stays at home.

A bundle leaves the house. Secrets, ConfigMaps and logs are never read for it; of the objects that are, annotations of
others (kubectl keeps whole manifests in one), managed fields and the values of environment variables are taken out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodedevices_common.raw import Raw, mapping, mappings, text

OURS: Final = "nodedevices.io/"
REDACTED: Final = "<redacted>"
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


def redacted(item: Raw) -> dict[str, Any]:
    """Return the object without what may be confidential."""
    found = dict(item)
    metadata = {key: value for key, value in mapping(item.get("metadata")).items() if key != "managedFields"}
    annotations = mapping(metadata.pop("annotations", None))
    if kept := {key: value for key, value in annotations.items() if key.startswith(OURS)}:
        metadata["annotations"] = kept
    found["metadata"] = metadata
    spec = dict(mapping(item.get("spec")))
    for kind in _CONTAINERS:
        if kind in spec:
            spec[kind] = [_container(each) for each in mappings(spec[kind])]
    if spec:
        found["spec"] = spec
    if "images" in mapping(item.get("status")):  # of a Node: hundreds, and nothing of ours depends on them
        found["status"] = {key: value for key, value in mapping(item.get("status")).items() if key != "images"}
    return found


def _container(raw: Raw) -> dict[str, Any]:
    found = dict(raw)
    if "env" in found:
        found["env"] = [
            {"name": text(each.get("name")), **({"value": REDACTED} if "value" in each else {})}
            for each in mappings(found["env"])
        ]
    return found


def files(parts: Mapping[str, Sequence[Raw] | str], taken: str) -> dict[str, bytes]:
    """Files by name: each part as JSON, and a README that says what there is, and what could not be read. A part that
    is a text is why it could not."""
    found: dict[str, bytes] = {}
    lines = [f"NodeDevices support bundle, taken {taken}.", ""]
    for name, part in parts.items():
        if isinstance(part, str):
            lines.append(f"{name}: not there: {part}")
            continue
        found[f"{name}.json"] = json.dumps([redacted(each) for each in part], indent=1).encode()
        lines.append(f"{name}.json: {len(part)}")
    lines += [
        "",
        "Not in it: Secrets, ConfigMaps, logs, annotations of others, values of environment variables.",
        "In it: names of nodes, pods and namespaces, labels, device ids, policies.",
    ]
    found["README.txt"] = ("\n".join(lines) + "\n").encode()
    return found
