"""Settings of the node for which a policy has no field: paths on it, and the values of vendors' flags.

They come from flags, environment and file, and stay when a policy replaces a section.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nodedevices_common.options import Values
from pydantic import TypeAdapter, ValidationError

from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """`vendors`: by vendor, the value of its own flags, a frozen value of the vendor's type. `files`: the contents of
    the device files (vendors.settings), by name. `withheld`: vendors without a good file, sorted."""

    driver_root_here: str = ""  # where the driver root is mounted in this container
    mps_root: str = ""
    packed: bool = False
    vendors: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, object] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    @property
    def sharing_modes(self) -> Settings:
        """The settings that sharing modes read: part of the shape of what is offered."""
        return {"mps-root": self.mps_root}

    @property
    def shape(self) -> tuple[object, ...]:
        """The settings that decide which ids are offered."""
        by_flags = {name: settings for name, settings in self.vendors.items() if _shapes(settings)}
        return (self.sharing_modes, self.files, self.withheld, by_flags)

    def in_shape_of(self, other: NodeSettings) -> NodeSettings:
        """Return these settings with the shape of the other."""
        theirs = {name: settings for name, settings in other.vendors.items() if _shapes(settings)}
        own = {name: settings for name, settings in self.vendors.items() if not _shapes(settings)}
        return replace(self, mps_root=other.mps_root, files=other.files, withheld=other.withheld, vendors=own | theirs)


def _shapes(value: object) -> bool:
    """True when the value of a vendor's flags decides ids (VendorFlags.settings_type)."""
    return getattr(value, "decides_ids", False) is True


def node_settings(
    values: Values,
    files: Mapping[str, object] | None = None,
    withheld: Iterable[str] = (),
    vendors: Vendors = VENDORS,
) -> NodeSettings:
    """Return the settings from the options by name (flags, variables, file). `files`: the device files' contents.
    `withheld`: vendors without a good one."""
    return NodeSettings(
        driver_root_here=values.text("driver-root-ctr-path"),
        mps_root=values.text("mps-root"),
        packed=values.text("shared-devices-allocation-policy") == "packed",
        vendors={name: flags.settings(values) for name, flags in vendors.own_flags().items()},
        files=files or {},
        withheld=tuple(sorted(withheld)),
    )


_OWN = tuple(member.name for member in fields(NodeSettings) if member.name not in {"vendors", "files"})


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # each takes a millisecond to make


def _adapter(settings_type: type[Any]) -> TypeAdapter[Any]:
    if settings_type not in _ADAPTERS:
        _ADAPTERS[settings_type] = TypeAdapter(settings_type)
    return _ADAPTERS[settings_type]


def to_plain(settings: NodeSettings) -> dict[str, Any]:
    """Return the settings as the state file has them."""
    vendors = {
        name: _adapter(type(vendor)).dump_python(vendor, mode="json") for name, vendor in settings.vendors.items()
    }
    files = {name: _adapter(type(file)).dump_python(file, mode="json") for name, file in settings.files.items()}
    own = {name: getattr(settings, name) for name in _OWN}
    return {**own, "withheld": list(settings.withheld), "vendors": vendors, "files": files}


def from_plain(value: object, vendors: Vendors = VENDORS) -> tuple[NodeSettings, tuple[str, ...]]:
    """Read what `to_plain` wrote, and name the parts of it that cannot be read. Without a vendor's own settings its
    usual ones hold, and without the content of a device file the vendor's devices are withheld until the file was
    read. Values that are not there have their defaults. Raises ConfigError for anything else."""
    saved = value if isinstance(value, Mapping) else {}
    of_vendors, files, withheld, problems = dict[str, object](), dict[str, object](), set[str](), list[str]()
    own_flags, own_files = vendors.own_flags(), vendors.files_by_name()
    parts = _by_name(saved.get("vendors", {}), own_flags)
    for name, flags in own_flags.items():
        try:
            of_vendors[name] = _adapter(flags.settings_type).validate_python(parts.get(name, {}))
        except ValidationError as error:
            of_vendors[name] = _adapter(flags.settings_type).validate_python({})
            problems.append(_problem(f"vendors.{name}", error))
    for name, content in _by_name(saved.get("files", {}), own_files).items():
        if name not in own_files:
            continue
        owner, file = own_files[name]
        try:
            files[name] = _adapter(file.type).validate_python(content)
        except ValidationError as error:
            why = _problem(f"files.{name}", error)
            if not file.sets_sections:
                withheld.add(owner)
                why += f", and devices of {owner} are not offered until the file was read again"
            problems.append(why)
    try:
        own = {name: saved[name] for name in _OWN if name in saved} if isinstance(value, Mapping) else value
        settings: NodeSettings = _adapter(NodeSettings).validate_python(own)
    except ValidationError as error:
        raise ConfigError([f"saved node settings: {error.errors()[0]['msg']}"]) from error
    withheld.update(settings.withheld)
    return replace(settings, vendors=of_vendors, files=files, withheld=tuple(sorted(withheld))), tuple(problems)


def _by_name(value: object, names: Iterable[str]) -> Mapping[str, object]:
    """The parts by name; where they are no parts at all, each name has what cannot be read."""
    return value if isinstance(value, Mapping) else dict.fromkeys(names, value)


def _problem(place: str, error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join((place, *map(str, first['loc'])))[:200]}: {first['msg'][:200]}"
