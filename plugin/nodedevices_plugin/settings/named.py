"""Named configurations: a folder of files in NVIDIA's v1 format (a mounted ConfigMap), of which one applies.

It is chosen as NVIDIA's config-manager chooses it: by the name that the operator carries from the Node label
nvidia.com/device-plugin.config into `spec.configName`, else the default, else the first fallback that finds one:
`named` (a file called default), `single` (the only file), `empty` (no file, flags and variables alone). Where none can
be chosen, that counts as a bad file: the last good configuration stays, and the error names the files that there are.
NVIDIA's config-manager ends instead, and takes the node's plugin with it at its next start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_common.text import listing, show

from nodedevices_plugin.settings.file import FileOutcome

LABEL = "nvidia.com/device-plugin.config"
DEFAULT_NAME = "default"  # what the fallback `named` looks for


class NamedFiles(Struct, frozen=True, kw_only=True):
    """The folder as it was read last. `error`: why it cannot be read; then `files` counts for nothing."""

    folder: str
    files: Mapping[str, FileOutcome] = field(default_factory=dict)
    error: str | None = None


def choose(named: NamedFiles, name: str, *, default: str, fallbacks: Sequence[str]) -> FileOutcome:
    """The file that applies. `name`: what the Node's label says, empty for no label."""
    folder = named.folder
    if named.error is not None:
        return FileOutcome(place=f"configurations in {folder}", error=named.error)
    if not named.files:
        return FileOutcome(place=f"configurations in {folder}", error="there is no file")
    for wanted, said_by in ((name, f"the Node's label {LABEL}"), (default, "--default-config")):
        if wanted:
            return _named(named, wanted, said_by)
    for fallback in fallbacks:
        match fallback:
            case "named" if DEFAULT_NAME in named.files:
                return _named(named, DEFAULT_NAME, "")
            case "single" if len(named.files) == 1:
                return _named(named, next(iter(named.files)), "")
            case "empty":
                return FileOutcome(place="the empty configuration")
            case _:
                continue
    tried = f" and none of the fallbacks {', '.join(fallbacks)} finds one" if fallbacks else " and there is no fallback"
    error = f"none is chosen: the Node has no label {LABEL}, there is no --default-config{tried}; {_available(named)}"
    return FileOutcome(place=f"configurations in {folder}", error=error)


def _named(named: NamedFiles, name: str, said_by: str) -> FileOutcome:
    found = named.files.get(name)
    place = f"configuration {show(name)} in {named.folder}"
    if found is None:
        return FileOutcome(place=place, error=f"{said_by} names it, and there is no such file; {_available(named)}")
    return replace(found, place=place)


def _available(named: NamedFiles) -> str:
    return f"available: {listing(sorted(named.files))}"
