"""The configuration file: NVIDIA's v1 format, read strictly. NVIDIA's plugin drops unknown or misplaced keys silently.

    version: v1
    flags: {migStrategy: none, plugin: {deviceListStrategy: envvar}}
    sharing: {timeSlicing: {renameByDefault: false, resources: [{name: nvidia.com/gpu, replicas: 4}]}}

With an extension of ours: sharing.memory.

A parsed file is a value; nothing here keeps state. `flags` and `imex` are read with the table of options, `resources`
and `sharing` by v1_file. A setting is refused with its place, its value, and what would be right. Texts are for people,
and bounded.

Of a folder of such files (a mounted ConfigMap) one applies. It is chosen as NVIDIA's config-manager chooses it: by the
name that the operator carries from the Node label nvidia.com/device-plugin.config into `spec.configName`, else the
default, else the first fallback that finds one: `named` (a file called default), `single` (the only file), `empty` (no
file, flags and variables alone). Where none can be chosen, that counts as a bad file: the last good configuration
stays, and the error names the files that there are. NVIDIA's config-manager ends instead, and takes the node's plugin
with it at its next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.sections import Resources, Sharing
from nodedevices_common import safe_yaml
from nodedevices_common.errors import InputError, InputProblem
from nodedevices_common.options import Value, read_plain
from nodedevices_common.text import listing, nearest, show

from nodedevices_plugin.settings import probes, v1_file
from nodedevices_plugin.settings.options import by_key, paths, refused_by_vendors
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

MAX_BYTES = 256 << 10  # NVIDIA's longest example has 2 KiB
MAX_VALUES = 16_000  # keys and values
# Keys of other plugins' files, which their users give as a configuration file, too.
OF_OTHER_FILES = {
    "configList": "this is the file of Mellanox' RDMA plugin: give it as rdma.json in --devices-dir",
    "resourceList": "this is the file of the SR-IOV plugin: give it as sriov.json in --devices-dir",
    "devices": "this looks like a file of generic devices: give it as generic.yaml in --devices-dir",
}
KEYS = ("version", "flags", "sharing", "imex", "resources")
SHARING_KEYS = ("renameByDefault", "failRequestsGreaterThanOne")  # of either kind of sharing
# For gpu-feature-discovery, which reads the same file: known, and of no use here, where labels come from the operator.
FEATURE_DISCOVERY = (
    "flags.useNodeFeatureAPI",
    *(f"flags.gfd.{key}" for key in ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile")),
)


class FileConfig(Struct, frozen=True, kw_only=True):
    """The content of a file: `flags` by option name, and two sections.

    unused: keys that have no effect here. empty: the file has no key at all, which NVIDIA's plugin accepts, too.
    """

    flags: Mapping[str, Value] = field(default_factory=dict)
    resources: Resources | None = None
    sharing: Sharing | None = None
    unused: tuple[str, ...] = ()
    empty: bool = False


class FileOutcome(Struct, frozen=True, kw_only=True):
    """The configuration file as it was read last: its content, or why it cannot be used. Neither: there is none.

    `place` is for people, where it is one of several. `field`: where in the file the error is.
    """

    config: FileConfig | None = None
    error: str | None = None
    field: str = ""
    place: str = ""


def parse(raw: bytes, vendors: Vendors = VENDORS) -> FileConfig:
    """The file's content. Raises ConfigError naming every key that is not right."""
    if len(raw) > MAX_BYTES:
        raise ConfigError([f"{len(raw)} bytes; {MAX_BYTES} are the most"])
    try:
        document = safe_yaml.load(raw, max_values=MAX_VALUES)
    except safe_yaml.YamlError as error:
        raise ConfigError([str(error)]) from error
    if document is None:
        return FileConfig(empty=True)
    if not isinstance(document, dict):
        raise ConfigError([f"{show(document)} is not a mapping with version, flags and sharing"])
    problems: list[str] = []
    unused: list[str] = []
    flags: dict[str, Value] = {}
    for key, value in document.items():
        if key in ("flags", "imex") and value is not None:
            problems += _flags(key, value, flags, unused, vendors)
        elif key not in KEYS:
            problems.append(_unknown(show(key)[1:-1], str(key), KEYS, vendors))
    if (version := document.get("version")) not in ("v1", "", None):
        problems.append(InputProblem.at("version", f"{show(version)} is not known; give v1"))
    if isinstance(texts := flags.get("probe"), tuple):
        problems += [InputProblem(problem, probes.KEY) for problem in probes.read(texts, probes.KEY)[1]]
    sharing = v1_file.sharing(document.get("sharing"), problems)
    resources = v1_file.resources(document.get("resources"), problems)
    problems += [
        InputProblem.at(option.key, f"{show(path)} is a relative path; give an absolute one, such as /{path}")
        for option in paths(vendors)
        if option.key is not None and (path := str(flags.get(option.name, "") or "")) and not path.startswith("/")
    ]
    problems += [InputProblem(vendor, "flags") for vendor in refused_by_vendors(flags, vendors)] if not problems else []
    if problems:
        raise ConfigError(problems)
    return FileConfig(flags=flags, resources=resources, sharing=sharing, unused=tuple(unused))


def _flags(
    place: str, value: object, flags: dict[str, Value], unused: list[str], vendors: Vendors
) -> list[InputProblem]:
    """Add the options below a key to `flags`, and the keys that have no effect to `unused`; return what is wrong."""
    if not isinstance(value, dict):
        return [InputProblem.at(place, f"{show(value)} is not a mapping")]
    problems: list[InputProblem] = []
    known = (*by_key(vendors), *FEATURE_DISCOVERY)
    for key, item in value.items():
        path = f"{place}.{key}"
        has_more = any(other.startswith(f"{path}.") for other in known)
        if path not in known and not has_more:
            here = {other.removeprefix(f"{place}.").partition(".")[0] for other in known if other.startswith(place)}
            problems.append(_unknown(path, str(key), here, vendors))
        elif item is None:
            continue  # NVIDIA: null is "not set"
        elif has_more:
            problems += _flags(path, item, flags, unused, vendors)
        elif (option := by_key(vendors).get(path)) is None:
            unused.append(path)
        else:
            try:
                flags[option.name] = read_plain(option, item, path)
            except ValueError as error:
                problems.append(InputProblem(str(error), path))
    return problems


def _unknown(place: str, key: str, known: Iterable[str], vendors: Vendors) -> InputProblem:
    """Return the error of an unknown key, with the right place of one that does not belong here."""
    right = next((path for path in by_key(vendors) if path.rsplit(".", 1)[1] == key), "")
    right = f"sharing.timeSlicing.{key}" if not right and key in SHARING_KEYS else right
    hint = f"; it belongs at {right}" if right else nearest(key, known)
    return InputProblem.at(place, f"unknown key{f'; {OF_OTHER_FILES[key]}' if key in OF_OTHER_FILES else hint}")


SHOWN = 5  # problems in one message


class ConfigError(InputError):
    """A configuration that cannot be used. `problems` are complete sentences for people; `place`: which one of a
    policy's sections the first is about, as `sharing.resources[0].replicas`; empty: none."""

    def __str__(self) -> str:
        more = len(self.problems) - SHOWN
        return "; ".join(self.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


LABEL = "nvidia.com/device-plugin.config"
DEFAULT_NAME = "default"  # what the fallback `named` looks for


class NamedFiles(Struct, frozen=True, kw_only=True):
    """The folder as it was read last. `error`: why it cannot be read; then `files` counts for nothing."""

    folder: str
    files: Mapping[str, FileOutcome] = field(default_factory=dict)
    error: str | None = None


def choose(named: NamedFiles, name: str, *, default: str, fallbacks: Sequence[str]) -> FileOutcome:
    """The file that applies. `name`: what the Node's label says, empty for no label."""
    place = f"configurations in {named.folder}"
    if named.error is not None or not named.files:
        return FileOutcome(place=place, error=named.error or "there is no file")
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
    tried = f" and none of the fallbacks {', '.join(fallbacks)} finds one" if fallbacks else " and there is no fallback"
    error = f"none is chosen: the Node has no label {LABEL}, there is no --default-config{tried}; {_available(named)}"
    return FileOutcome(place=place, error=error)


def _named(named: NamedFiles, name: str, said_by: str) -> FileOutcome:
    found = named.files.get(name)
    place = f"configuration {show(name)} in {named.folder}"
    if found is None:
        return FileOutcome(place=place, error=f"{said_by} names it, and there is no such file; {_available(named)}")
    return replace(found, place=place)


def _available(named: NamedFiles) -> str:
    return f"available: {listing(sorted(named.files))}"
