"""The requested configuration, the one in effect, and its status: the condition ConfigApplied, and the same as fields.

Other parts act by the fields; messages are for people only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_common.errors import InputError
from nodedevices_common.options import Value
from nodedevices_common.text import listing, show, some

from nodedevices_plugin.gates.base import WaitingChange
from nodedevices_plugin.model import Cordon, Inventory, MostSeen, Plan, Refused, Unmatched, device_names
from nodedevices_plugin.offering.occupancy import SHOWN, HeldId
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.settings import probes
from nodedevices_plugin.settings.effective import Effective, resolve, sections_of
from nodedevices_plugin.settings.file import ConfigError, FileOutcome
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.mps import MpsDaemon
from nodedevices_plugin.sharing.registry import SharingModes
from nodedevices_plugin.vendors.base import FOLDER, DeviceFileOutcome, DeviceFiles


class ConfigStatus(Struct, frozen=True, kw_only=True):
    """The state of the configuration: the condition ConfigApplied and what else the status says of it."""

    reason: str = names.APPLIED  # one of nodedevices_api.conditions
    message: str = ""
    applied_hash: str | None = None  # spec.configHash in effect
    generation: int | None = None  # metadata.generation last seen
    sources: tuple[str, ...] = ()  # where it comes from, strongest first
    refused: Refused | None = None
    others: tuple[Refused, ...] = ()  # everything that is refused, also beside what is in effect
    unmatched: tuple[Unmatched, ...] = ()  # entries that are applied and match nothing here (offering.unmatched)
    waiting_for: tuple[str, ...] = ()  # pods that a change waits for, namespace/name
    cdi_problem: str = ""  # what is wrong with the source of CDI specifications
    pods_problem: str = ""  # why the pods of this node are not known, or not as they are now, where that matters


class ConfigProblem(Struct, frozen=True, kw_only=True):
    """Why the wanted configuration is not in effect, or the one in effect does not do what it says."""

    # As Configured.refused; holders: it waits for pods; operator: for its configuration; state: to be saved;
    # dra: for the kubelet and the API server.
    source: str
    message: str
    field: str = ""  # of the sections, where one is at fault
    waits_for: tuple[str, ...] = ()  # pods, <namespace>/<pod>
    waits: bool = False  # nothing is refused: it takes effect by itself
    awaits: int = 0  # of so many resources the MPS daemon is not ready
    coming: tuple[MpsDaemon, ...] | None = None  # MPS daemons that the wanted configuration waits for
    to_save: Effective | None = None  # it waits for nothing but the state file
    takes_away: WaitingChange | None = None  # the plan that it waits for: what that does not have goes to no new pod


def of_problem(status: ConfigStatus, problem: ConfigProblem, *, applied_once: bool) -> ConfigStatus:
    """applied_once: there is a configuration in effect."""
    if problem.source == "operator":
        return replace(status, reason=names.NO_CONFIG, message=problem.message)
    return replace(
        status,
        reason=_reason(problem),
        message=_message(problem, applied_once=applied_once),
        refused=Refused(field=problem.field, message=problem.message) if not problem.waits else None,
        waiting_for=tuple(sorted(problem.waits_for)),
    )


def of_holders(status: ConfigStatus, held: Sequence[HeldId], inventory: Inventory, plan: Plan) -> ConfigStatus:
    """All is in effect, but for devices that pods hold in another shape. `plan`: as the kubelet has it."""
    return replace(
        status,
        reason=names.WAITING_FOR_HOLDERS,
        message="; ".join([_withheld(held, inventory), *_other_units(held, plan)]),
        waiting_for=tuple(sorted({held_id.holder for held_id in held if held_id.holder})),
    )


WAITS_BY_SOURCE = {"state": names.STATE_NOT_SAVED, "dra": names.WAITING_FOR_KUBELET}


def _reason(problem: ConfigProblem) -> str:
    if not problem.waits:
        return names.CONFIG_INVALID
    waits = names.WAITING_FOR_DAEMON if problem.awaits and not problem.waits_for else names.WAITING_FOR_HOLDERS
    return WAITS_BY_SOURCE.get(problem.source, waits)


def _withheld(ours: Sequence[HeldId], inventory: Inventory) -> str:
    """Return a text for people about withheld devices."""
    held = {held_id.device_id for held_id in ours}
    called = device_names(inventory)
    devices = listing(called[device.fact.id] for device in inventory.devices if device.fact.id in held)
    pods = some(dict.fromkeys(held_id.holder for held_id in ours if held_id.holder), SHOWN)
    who = f"these pods have ended: {pods}" if pods else "their pods, which the kubelet does not list yet, have ended"
    what = "held under another resource or id, and not offered to new pods until"
    return f"{devices}: {what} {who}; everything else is applied"


def _other_units(held: Sequence[HeldId], plan: Plan) -> list[str]:
    """Return a text for people: names of which pods hold shares of another unit. The scheduler knows no units, and
    subtracts them as if they were of the current unit: a node can have a free device and room for no pod."""
    found = []
    for resource in (resource for resource in plan.resources if resource.sharing.memory is not None):
        old = sum(held_id.resource == resource.name for held_id in held)
        now = sum(schedulable.healthy for schedulable in resource.ids)
        if old:
            shares = f"{old} earlier shares from the {now} present shares of {resource.name}"
            right = "give the other unit another name (rename), which is counted separately"
            found.append(f"the scheduler subtracts these pods' {shares}, so new pods may find no room; {right}")
    return found


def _message(problem: ConfigProblem, *, applied_once: bool) -> str:
    """Return for people what is wrong, and which configuration holds meanwhile."""
    if problem.source in {"holders", "state"}:
        return problem.message
    if problem.awaits and problem.coming is None:
        meanwhile = "its shares are not offered until it answers"
    elif not applied_once:
        meanwhile = "nothing is offered until " + ("it answers" if problem.awaits else "there is a valid configuration")
    else:
        meanwhile = "the previous configuration stays in effect" + (" until it answers" if problem.awaits else "")
    return f"{problem.message}; {meanwhile}"


class ActiveConfig(Struct, frozen=True, kw_only=True):
    """The configuration in effect. `applied_once`: its plan was made, in this run or before the last restart.

    Until then it is the node's own settings without the file: devices are judged by it, and nothing is offered.
    """

    effective: Effective
    applied_hash: str | None = None
    applied_once: bool = False

    @property
    def needs_offers(self) -> bool:
        """True when other plugins' offers matter: for foreign.observe, take_over and awaiting.may_begin."""
        return self.effective.observing or not self.applied_once

    @property
    def excluded(self) -> tuple[str, ...]:
        """`resources.exclude`; nothing is kept back from what other plugins offer."""
        offers = self.applied_once and not self.effective.observing
        return tuple(self.effective.sections.resources.exclude) if offers else ()


def plan_settings(effective: Effective) -> PlanSettings:
    """Return what of a configuration decides which ids are offered."""
    return PlanSettings.from_sections(
        effective.sections,
        resource_prefix=effective.resource_prefix,
        modes=Settings(mps_root=effective.node.mps_root),
        vendors=effective.values,
        sharing_modes=effective.modes,
    )


# --- the configuration requested for this node: its own settings, the file and what the operator resolved ------------
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
    refused: Refused | None = None  # why there is none, with the field of `spec.config` or of the file
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
    where = file.place or f"configuration file {local.config_file}"
    given_probes, by_policy = _texts(local.given), "discovery" in given
    by_file = given_probes is None and not by_policy  # where the file decides which probes run
    read = _device_files(local, device_files or {}, kept_files or {})
    others = read.refused
    said = partial(RequestedConfig, sources=tuple(name for name, says in by.items() if says), files=read.files)
    of_file = _texts(file.config.flags if file.config is not None else {})
    wanted, lacking = probes.together(given_probes or of_file, local.added_probes, read.files)
    lacking = lacking or probes.missing(probes.read(wanted)[0], local.probe_options, probes.KEY)
    kept = None if by_policy else wanted  # while the policies' configuration cannot be used
    wrong = read.waits_for if read.whole else None
    if file.error is not None:
        wrong = Refused(field=file.field, message=f"{where}: {file.error}")
        kept = None if by_file else kept
        others = (wrong, *others)
    elif lacking and by_file:
        wrong, kept = Refused(field=probes.KEY, message=f"{where}: {'; '.join(lacking)}"), None
    if wrong is not None:
        others = (*others, *_refused_sections(spec, local.modes))
        return said(refused=wrong, source="file", others=others, probes=kept)
    note = file.place
    if local.config_dir is None and spec is not None and spec.config_name:
        note = (
            f"the Node's label nvidia.com/device-plugin.config names the configuration {spec.config_name!r}, and no "
            "folder of configurations is mounted (--config-dir): the label has no effect; install the component "
            "named-configs (manifests/components/named-configs), or remove the label"
        )
    try:
        given_config = spec.config if spec is not None else None
        effective = resolve(local, file.config, given_config, read.contents, read.withheld)
    except InputError as error:
        wrong = Refused(field=error.place, message=str(error))
        return said(refused=wrong, source="spec", others=(*others, wrong), probes=kept)
    if (names := effective.sections.discovery.probes) is not None:
        defined = (*(given_probes or ()), *local.added_probes, *(of_file or ()))
        wanted, problems = probes.chosen(names, defined, local.probe_options)
        if problems:
            wrong = Refused(field=probes.POLICY, message=str(ConfigError(problems)))
            return said(refused=wrong, source="spec", others=others)
    from_file = {name for name in ("resources", "sharing") if getattr(file.config, name, None) is not None}
    return said(
        effective=effective,
        refused=read.waits_for,
        others=others,
        note=note,
        from_file=frozenset(from_file - given.keys()),
        probes=wanted,
    )


class _Read(Struct, frozen=True, kw_only=True):
    """The device files as read. `waits_for`: the one for whose correction a vendor's devices wait, or with `whole` all
    of the configuration; `refused`: all that are wrong. `files`: paths of those that are there, or whose last content
    is in effect, by name."""

    contents: Mapping[str, object] = msgspec.field(default_factory=dict)
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    waits_for: Refused | None = None
    whole: bool = False
    refused: tuple[Refused, ...] = ()


def _refused_sections(spec: SeenSpec | None, modes: SharingModes) -> tuple[Refused, ...]:
    """Return the errors of `spec.config` by itself, where something else is refused already."""
    try:
        sections_of(spec.config if spec is not None else {}, modes)
    except ConfigError as error:
        return (Refused(field=error.place, message=str(error)),)
    return ()


def _device_files(local: Local, found: DeviceFiles, kept: Mapping[str, object]) -> _Read:
    """`kept`: their last good contents."""
    folder = local.devices_dir
    if folder is None:
        return _Read()
    contents, files = dict[str, object](), dict[str, str]()
    withheld, whole = set[str](), False
    refused, waits_for = dict[Refused, None](), None
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
        elif not device_file.sets_sections:
            withheld.add(vendor)
            text = f"{text}; devices of {vendor} are not offered until there is a valid file"
        wrong = Refused(field=outcome.field, message=text)
        refused[wrong] = None
        if name not in kept:
            waits_for = wrong if waits_for is None or device_file.sets_sections else waits_for
            whole = whole or device_file.sets_sections
    if strange := sorted(found.keys() - known.keys() - {FOLDER}):
        text = f"unknown file {listing(map(show, strange))} in {folder}: known are {', '.join(known)}"
        refused[Refused(message=text)] = None
    return _Read(
        contents=contents,
        files=files,
        withheld=frozenset(withheld),
        waits_for=waits_for,
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
