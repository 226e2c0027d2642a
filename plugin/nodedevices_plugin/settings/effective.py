"""The effective configuration: the sections of `spec.config` over the node's own settings.

A section of `spec.config` replaces the node's own whole section. Without a `spec.config` (no operator has resolved the
node's policies yet) the last one that was seen holds, from the state file if need be; before the first one, the node's
own settings.

Settings for which a policy has no field (NodeSettings: paths on the node, and the values of vendors' flags) come from
flags, environment and file, and stay when a policy replaces a section.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_api.defaults import Resolved, with_defaults
from nodedevices_api.errors import parse
from nodedevices_api.sections import SECTION_NAMES, Sections, Serving
from nodedevices_common.errors import InputError
from nodedevices_common.options import Values
from pydantic import TypeAdapter, ValidationError

from nodedevices_plugin.model.plan import WHOLE, Api
from nodedevices_plugin.settings.file import ConfigError, FileConfig
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.options import by_name
from nodedevices_plugin.sharing.base import SharingMode
from nodedevices_plugin.sharing.registry import MODES, SharingModes
from nodedevices_plugin.vendors.registry import VENDORS, Vendors, VendorValues


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """`vendors`: by vendor, the value of its own flags, a frozen value of the vendor's type. `files`: the contents of
    the device files (vendors.base), by name. `withheld`: vendors without a good file, sorted."""

    driver_root_here: str = ""  # where the driver root is mounted in this container
    mps_root: str = ""
    packed: bool = False
    vendors: Mapping[str, object] = dataclasses.field(default_factory=dict)
    files: Mapping[str, object] = dataclasses.field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    def in_shape_of(self, other: NodeSettings) -> NodeSettings:
        """Return these settings with those of the other that decide which ids are offered."""
        theirs = {name: settings for name, settings in other.vendors.items() if _shapes(settings)}
        own = {name: settings for name, settings in self.vendors.items() if not _shapes(settings)}
        return dataclasses.replace(
            self, mps_root=other.mps_root, files=other.files, withheld=other.withheld, vendors=own | theirs
        )


def _shapes(value: object) -> bool:
    """True when the value of a vendor's flags decides ids (VendorFlags.settings_type)."""
    return getattr(value, "decides_ids", False) is True


_OWN = tuple(member.name for member in dataclasses.fields(NodeSettings) if member.name not in {"vendors", "files"})


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # each takes a millisecond to make


def _adapter(settings_type: type[Any]) -> TypeAdapter[Any]:
    if settings_type not in _ADAPTERS:
        _ADAPTERS[settings_type] = TypeAdapter(settings_type)
    return _ADAPTERS[settings_type]


def _dumped(values: Mapping[str, object]) -> dict[str, Any]:
    return {name: _adapter(type(value)).dump_python(value, mode="json") for name, value in values.items()}


def to_plain(settings: NodeSettings) -> dict[str, Any]:
    """Return the settings as the state file has them."""
    own = {name: getattr(settings, name) for name in _OWN}
    parts = {"vendors": _dumped(settings.vendors), "files": _dumped(settings.files)}
    return {**own, "withheld": list(settings.withheld), **parts}


def from_plain(value: object, vendors: Vendors = VENDORS) -> tuple[NodeSettings, tuple[str, ...]]:
    """Read what `to_plain` wrote, and name the parts of it that cannot be read. Without a vendor's own settings its
    usual ones hold, and without the content of a device file the vendor's devices are withheld until the file was
    read. Values that are not there have their defaults. Raises ConfigError for anything else."""
    saved = value if isinstance(value, Mapping) else {}
    of_vendors, files, withheld, problems = dict[str, object](), dict[str, object](), set[str](), list[str]()
    own_flags, own_files = vendors.own_flags(), vendors.files_by_name()
    parts = _by_name(saved.get("vendors", {}), own_flags)
    for name, flags in own_flags.items():
        found = _part(flags.settings_type, parts.get(name, {}), f"vendors.{name}", problems)
        of_vendors[name] = flags.settings_type() if found is None else found
    contents = _by_name(saved.get("files", {}), own_files)
    for name, (owner, file) in own_files.items():
        if name not in contents:
            continue
        if (found := _part(file.type, contents[name], f"files.{name}", problems)) is not None:
            files[name] = found
        elif not file.sets_sections:
            withheld.add(owner)
            problems[-1] += f", and devices of {owner} are not offered until the file was read again"
    try:
        own = {name: saved[name] for name in _OWN if name in saved} if isinstance(value, Mapping) else value
        settings: NodeSettings = _adapter(NodeSettings).validate_python(own)
    except ValidationError as error:
        raise ConfigError([f"saved node settings: {error.errors()[0]['msg']}"]) from error
    withheld.update(settings.withheld)
    whole = dataclasses.replace(settings, vendors=of_vendors, files=files, withheld=tuple(sorted(withheld)))
    return whole, tuple(problems)


def _by_name(value: object, names: Iterable[str]) -> Mapping[str, object]:
    """The parts by name; where they are no parts at all, each name has what cannot be read."""
    return value if isinstance(value, Mapping) else dict.fromkeys(names, value)


def _part(kind: type[Any], saved: object, place: str, problems: list[str]) -> Any:
    """Return a saved part as its type; None, and one more problem, where it cannot be read."""
    try:
        return _adapter(kind).validate_python(saved)
    except ValidationError as error:
        first = error.errors()[0]
        problems.append(f"{'.'.join((place, *map(str, first['loc'])))[:200]}: {first['msg'][:200]}")
        return None


SPEC_CONFIG = "spec.config"
SHAPELESS = frozenset({"health", "faults", "capacity", "labels", "expect", "idle"})  # sections that decide no ids


class Effective(Struct, frozen=True, kw_only=True):
    """Everything that decides what is offered and how its health is judged. Equal values mean that nothing changed."""

    sections: Resolved
    resource_prefix: str  # the domain of usual names; empty: each vendor's own
    node: NodeSettings = field(default_factory=NodeSettings)
    modes: SharingModes = MODES  # which sharing.strategy can name
    vendors: Vendors = VENDORS  # which are known

    @property
    def values(self) -> VendorValues:
        """The settings that vendors get."""
        node = self.node
        return VendorValues(known=self.vendors, local=node.vendors, files=node.files, withheld=frozenset(node.withheld))

    @property
    def sharing_mode(self) -> SharingMode | None:
        """None: devices are handed out whole."""
        strategy = self.sections.sharing.strategy
        return None if strategy == WHOLE else self.modes.by_strategy(strategy)

    @property
    def observing(self) -> bool:
        """True when another plugin serves the kubelet, and this agent registers nothing."""
        return self.sections.serving.mode == "Observe"

    @property
    def by_dra(self) -> bool:
        """True when DRA serves what it can."""
        return not self.observing and self.sections.serving.api == Api.DRA.value

    def has_shape_of(self, other: Effective) -> bool:
        """True when both offer the kubelet the same ids, under the same names."""
        return self == self.in_shape_of(other)

    def in_shape_of(self, other: Effective) -> Effective:
        """Return this configuration with the settings of the other that decide which ids the kubelet is offered, and
        under which names. All others take effect without waiting for pods."""
        shape = {name: getattr(other.sections, name) for name in ("serving", "resources", "sharing", "partitions")}
        return replace(
            self,
            sections=self.sections.model_copy(update=shape),
            resource_prefix=other.resource_prefix,
            node=self.node.in_shape_of(other.node),
        )

    @property
    def index_prefix(self) -> str | None:
        """The domain of resources whose ids may be indices, empty for each vendor's own; None: no resource has such ids
        (pipeline.foreign)."""
        return self.resource_prefix if self.sections.injection.device_id_strategy == "index" else None


def resolve(
    local: Local,
    file: FileConfig | None,
    spec_config: Mapping[str, Any] | None,
    device_files: Mapping[str, object] | None = None,
    withheld: Iterable[str] = (),
) -> Effective:
    """Return the effective configuration. `device_files`: contents by name. `withheld`: vendors without a
    good one. Raises ConfigError, which names what is wrong in `spec.config`."""
    values = Values({**(file.flags if file else {}), **local.given}, by_name(local.vendors))
    own: dict[str, Any] = {"serving": to_dict(Serving.model_validate({"mode": local.serving_mode}))}
    for flags in local.vendors.own_flags().values():
        own = {**flags.sections(values), **own}  # of two vendors that set a section the first wins
    if file is not None:
        for name, section in (("resources", file.resources), ("sharing", file.sharing)):
            if section is not None:
                own[name] = to_dict(section)
    for _, device_file in local.vendors.files_by_name().values():
        if (content := (device_files or {}).get(device_file.name)) is not None:
            own = {**device_file.sections(content), **own}
    theirs = to_dict(sections_of(spec_config, local.modes)) if spec_config is not None else {}
    merged = parse(Sections, own | theirs, strategies=local.modes.names)
    node = NodeSettings(
        driver_root_here=values.text("driver-root-ctr-path"),
        mps_root=values.text("mps-root"),
        packed=values.text("shared-devices-allocation-policy") == "packed",
        vendors={name: flags.settings(values) for name, flags in local.vendors.own_flags().items()},
        files=device_files or {},
        withheld=tuple(sorted(withheld)),
    )
    return Effective(
        sections=with_defaults(merged),
        resource_prefix=local.resource_prefix,
        node=node,
        modes=local.modes,
        vendors=local.vendors,
    )


def sections_of(spec_config: Mapping[str, Any], modes: SharingModes = MODES) -> Sections:
    """Check `spec.config`. Raises ConfigError, which names what is wrong."""
    try:
        return parse(Sections, dict(spec_config), SPEC_CONFIG, strategies=modes.names)
    except InputError as error:
        raise ConfigError(error.problems, error.place.removeprefix(SPEC_CONFIG).removeprefix(".")) from error


def to_saved(effective: Effective) -> dict[str, Any]:
    """Return the configuration as the state file has it."""
    sections = to_dict(Resolved(**{name: getattr(effective.sections, name) for name in SECTION_NAMES}))
    # An earlier version, which reads the whole configuration or nothing, does not know each field of it.
    newer = {
        name: getattr(effective.sections, name).model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for name in ("faults", "serving")
    }
    return {
        "resourcePrefix": effective.resource_prefix,
        "sections": {**sections, **newer},
        "node": to_plain(effective.node),
    }


def _known(sections: object) -> object:
    """The saved sections without fields that this version does not have, where these decide no ids: an upgrade must
    not cost the node its offers."""
    found: Any = deepcopy(sections)
    try:
        Sections.model_validate(found, by_alias=True, by_name=False)
    except ValidationError as error:
        for loc in (each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"):
            if len(loc) > 1 and loc[0] in SHAPELESS:
                del reduce(getitem, loc[:-1], found)[loc[-1]]
    return found


def understood(
    saved: Mapping[str, Any] | None, modes: SharingModes = MODES, vendors: Vendors = VENDORS
) -> tuple[Effective | None, str]:
    """Read what `to_saved` wrote; return it, and for people what of it cannot be read. None where there is nothing, or
    another version wrote it in a way that this one does not read."""
    if saved is None:
        return None, ""
    said = saved.get("sections")
    try:
        try:
            sections = parse(Sections, said, "sections", strategies=modes.names)
        except InputError:  # perhaps of another version
            sections = parse(Sections, _known(said), "sections", strategies=modes.names)
        node, problems = from_plain(saved.get("node", {}), vendors)
        effective = Effective(
            sections=with_defaults(sections),
            resource_prefix=str(saved["resourcePrefix"]),
            node=node,
            modes=modes,
            vendors=vendors,
        )
    except (InputError, KeyError) as error:
        return None, f"applied: saved configuration: {error}"
    return effective, "; ".join(f"applied.node.{problem}" for problem in problems)
