"""The configuration requested for this node: its own settings, the file and what the operator resolved."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from nodedevices_common.errors import InputError
from nodedevices_common.options import Value
from nodedevices_common.text import listing, show

from nodedevices_plugin.model import Cordon, MostSeen, Refused
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.settings import probes
from nodedevices_plugin.settings.effective import Effective, resolve, sections_of
from nodedevices_plugin.settings.file import ConfigError, FileOutcome
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.sharing.registry import SharingModes
from nodedevices_plugin.vendors.settings import FOLDER, DeviceFileOutcome, DeviceFiles

GONE = DeviceFileOutcome(error="no such file")
BACK = "give the file again, or one with null for no such devices"


class SeenObject(Struct, frozen=True, kw_only=True):
    """The parts of the node's own NodeDevices that the agent uses. `exists` False: the API server has no such
    object."""

    exists: bool = False
    generation: int | None = None
    config: Mapping[str, Any] | None = None  # spec.config; None: the operator has not resolved this node
    config_hash: str | None = None
    config_name: str | None = None
    unschedulable: tuple[Cordon, ...] = ()
    confirm: str = ""  # annotation nodedevices.io/confirm
    most_seen: tuple[MostSeen, ...] = ()  # status.mostSeen


class RequestedConfig(Struct, frozen=True, kw_only=True):
    """The configuration that file and `spec.config` request together, or why there is none; both where devices of a
    vendor are withheld for a device file that is wrong. `others`: everything that is refused, each by itself, also
    where the configuration is in effect with a file's last good content."""

    effective: Effective | None = None
    error: str | None = None
    field: str = ""  # which field of `spec.config` or of the file the error is about, where it is known
    source: str = ""  # file | spec: what has to be corrected
    others: tuple[Refused, ...] = ()
    sources: tuple[str, ...] = ()  # where the configuration comes from, strongest first
    note: str = ""  # for people, while it is in effect: which of several files it is
    from_file: frozenset[str] = frozenset()  # sections that the file gives
    probes: tuple[str, ...] | None = None  # those that are to run, as configured; None: those that run
    files: Mapping[str, str] = msgspec.field(
        default_factory=dict
    )  # paths of the device files that probes are told of, by name

    @property
    def auto(self) -> bool:
        """True when the node's hardware decides which probes run."""
        return self.probes is not None and probes.AUTO in self.probes


def request_config(
    local: Local,
    file: FileOutcome,
    spec: SeenSpec | None,
    device_files: DeviceFiles | None = None,
    kept_files: Mapping[str, object] | None = None,
) -> RequestedConfig:
    """Return the configuration requested now. `spec`: the latest that the operator resolved; None: there was none ever.
    `device_files`: as they were read last; `kept_files`: their last good contents."""
    given = spec.config if spec is not None else {}
    by = {
        "policy": bool(given),
        **dict.fromkeys(local.sources, True),
        "file": file.config is not None or file.error is not None,
    }
    sources = tuple(name for name, says in by.items() if says)
    where = file.place or f"configuration file {local.config_file}"
    given_probes, by_policy = _texts(local.given), "discovery" in given
    read = _device_files(local, device_files or {}, kept_files or {})
    others = read.refused
    said = partial(RequestedConfig, sources=sources, files=read.files)
    if file.error is not None:
        error = f"{where}: {file.error}"
        others = (Refused(field=file.field, message=error), *others, *_refused_sections(spec, local.modes))
        # A policy may name what only the file defines.
        known = given_probes is not None and not by_policy
        run = probes.together(given_probes, local.added_probes, read.files)[0] if known else None
        return said(error=error, field=file.field, source="file", others=others, probes=run)
    of_file = _texts(file.config.flags if file.config is not None else {})
    wanted, lacking = probes.together(given_probes or of_file, local.added_probes, read.files)
    lacking = lacking or probes.missing(probes.read(wanted)[0], local.probe_options, probes.KEY)
    if lacking and given_probes is None and not by_policy:
        error = f"{where}: {'; '.join(lacking)}"
        others = (*others, *_refused_sections(spec, local.modes))
        return said(error=error, field=probes.KEY, source="file", others=others)
    if read.whole:
        run = None if by_policy else wanted
        others = (*others, *_refused_sections(spec, local.modes))
        return said(error=read.error, field=read.field, source="file", others=others, probes=run)
    note = file.place
    if local.config_dir is None and spec is not None and spec.config_name:
        note = (
            f"the Node's label nvidia.com/device-plugin.config names the configuration {spec.config_name!r}, and no "
            "folder of configurations is mounted (--config-dir): the label has no effect; install the component "
            "named-configs (manifests/components/named-configs), or remove the label"
        )
    from_file = frozenset(
        section
        for section in ("resources", "sharing")
        if getattr(file.config, section, None) is not None and section not in given
    )
    kept = None if by_policy else wanted  # while the policies' configuration cannot be used
    try:
        given_config = spec.config if spec is not None else None
        effective = resolve(local, file.config, given_config, read.contents, read.withheld)
    except InputError as error:
        text, place = str(error), error.place
        others = (*others, Refused(field=place, message=text))
        return said(error=text, field=place, source="spec", others=others, probes=kept)
    if (names := effective.sections.discovery.probes) is not None:
        defined = (*(given_probes or ()), *local.added_probes, *(of_file or ()))
        wanted, problems = probes.chosen(names, defined, local.probe_options)
        if problems:
            refused = str(ConfigError(problems))
            return said(error=refused, field=probes.POLICY, source="spec", others=others)
    return said(
        effective=effective,
        error=read.error,
        field=read.field,
        others=others,
        note=note,
        from_file=from_file,
        probes=wanted,
    )


class _Read(Struct, frozen=True, kw_only=True):
    """The device files as read. `error`: why a vendor's devices, or with `whole` all of the configuration, wait for a
    good one; `refused`: all that are wrong. `files`: paths of those that are there, or whose last content is in effect,
    by name."""

    contents: Mapping[str, object] = msgspec.field(default_factory=dict)
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    error: str | None = None
    field: str = ""
    whole: bool = False
    refused: tuple[Refused, ...] = ()


def _refused_sections(spec: SeenSpec | None, modes: SharingModes) -> tuple[Refused, ...]:
    """Return the errors of `spec.config` by itself, where something else is refused already."""
    try:
        sections_of(spec.config if spec is not None else {}, modes)
    except ConfigError as error:
        return (Refused(field=error.field, message=str(error)),)
    return ()


def _device_files(local: Local, found: DeviceFiles, kept: Mapping[str, object]) -> _Read:
    """`kept`: their last good contents."""
    folder = local.devices_dir
    if folder is None:
        return _Read()
    contents, files = dict[str, object](), dict[str, str]()
    withheld, whole = set[str](), False
    refused, waits = dict[Refused, None](), list[Refused]()
    known = local.vendors.files_by_name()
    for name, (vendor, device_file) in known.items():
        outcome = found.get(FOLDER) or found.get(name) or (GONE if name in kept else DeviceFileOutcome())
        path = probes.path_of(folder, outcome.file or name)
        if name in kept or (name in found and (outcome.error or outcome.content is not None)):
            files[name] = path
        if not outcome.error:
            contents |= {name: outcome.content} if outcome.content is not None else {}
            continue
        text = f"{folder if FOLDER in found else path}: {outcome.error}"
        if name in kept:
            contents[name] = kept[name]
            text = f"{text}; its last content stays in effect" + (f"; {BACK}" if outcome is GONE else "")
            refused[Refused(field=outcome.field, message=text)] = None
            continue
        if not device_file.sets_sections:
            withheld.add(vendor)
            text = f"{text}; devices of {vendor} are not offered until there is a valid file"
        wait = Refused(field=outcome.field, message=text)
        waits.insert(0 if device_file.sets_sections else len(waits), wait)
        whole = whole or device_file.sets_sections
        refused[wait] = None
    if strange := sorted(found.keys() - known.keys() - {FOLDER}):
        text = f"unknown file {listing(map(show, strange))} in {folder}: known are {', '.join(known)}"
        refused[Refused(message=text)] = None
    return _Read(
        contents=contents,
        files=files,
        withheld=frozenset(withheld),
        error=waits[0].message if waits else None,
        field=waits[0].field if waits else "",
        whole=whole,
        refused=tuple(refused),
    )


def _texts(values: Mapping[str, Value]) -> tuple[str, ...] | None:
    """The probes that they name."""
    found = values.get("probe")
    return found if isinstance(found, tuple) else None


def driver_root(local: Local, requested: RequestedConfig, file: FileOutcome, active: Effective) -> str:
    """Return where the driver's root is mounted in this container. That waits for no pods, and a bad file does not
    change it."""
    given = local.given.get("driver-root-ctr-path")
    if given is None:
        newest = requested.effective or request_config(local, file, None).effective
        given = (newest or active).node.driver_root_here
    return str(given) or "/"
