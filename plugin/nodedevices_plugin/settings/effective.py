"""The effective configuration: the sections of `spec.config` over the node's own settings.

A section of `spec.config` replaces the node's own whole section. Without a `spec.config` (no operator has resolved the
node's policies yet) the last one that was seen holds, from the state file if need be; before the first one, the node's
own settings.
"""

from __future__ import annotations

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
from pydantic import ValidationError

from nodedevices_plugin.model.plan import WHOLE
from nodedevices_plugin.settings import options
from nodedevices_plugin.settings.file import ConfigError, FileConfig
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.node import NodeSettings, from_plain, node_settings, to_plain
from nodedevices_plugin.sharing.base import SharingMode
from nodedevices_plugin.sharing.registry import MODES, SharingModes
from nodedevices_plugin.vendors.registry import VENDORS, Vendors, VendorValues

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
    def shape(self) -> tuple[object, ...]:
        """The settings that decide which ids the kubelet is offered, and under which names. All others take effect
        without waiting for pods."""
        own = self.sections
        return (own.serving, own.resources, own.sharing, own.partitions, self.resource_prefix, self.node.shape)

    def in_shape_of(self, other: Effective) -> Effective:
        """Return this configuration with the shape of the other."""
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
        (pipeline.device_index)."""
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
    values = options.values({**(file.flags if file else {}), **local.given}, local.vendors)
    own: dict[str, Any] = {"serving": to_dict(Serving.model_validate({"mode": local.serving_mode}))}
    for flags in local.vendors.own_flags().values():
        own = {**flags.sections(values), **own}  # of two vendors that set a section the first wins
    if file is not None:
        for name, section in (("resources", file.resources), ("sharing", file.sharing)):
            if section is not None:
                own[name] = to_dict(section)
    for device_file in local.vendors.device_files():
        if (content := (device_files or {}).get(device_file.name)) is not None:
            own = {**device_file.sections(content), **own}
    theirs = to_dict(sections_of(spec_config, local.modes)) if spec_config is not None else {}
    merged = parse(Sections, own | theirs, strategies=local.modes.names)
    node = node_settings(values, device_files, withheld, local.vendors)
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
    faults = effective.sections.faults.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {
        "resourcePrefix": effective.resource_prefix,
        "sections": {**sections, "faults": faults},
        "node": to_plain(effective.node),
    }


def from_saved(saved: Mapping[str, Any], modes: SharingModes = MODES, vendors: Vendors = VENDORS) -> Effective:
    """Read what `to_saved` wrote, but for the parts that `unread` names. Raises ConfigError for anything else."""
    said = saved.get("sections")
    try:
        try:
            sections = parse(Sections, said, "sections", strategies=modes.names)
        except InputError:  # perhaps of another version
            sections = parse(Sections, _known(said), "sections", strategies=modes.names)
        return Effective(
            sections=with_defaults(sections),
            resource_prefix=str(saved["resourcePrefix"]),
            node=from_plain(saved.get("node", {}), vendors)[0],
            modes=modes,
            vendors=vendors,
        )
    except (InputError, KeyError) as error:
        raise ConfigError([f"saved configuration: {error}"]) from error


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


def unread(saved: Mapping[str, Any] | None, modes: SharingModes = MODES, vendors: Vendors = VENDORS) -> str:
    """Return for people what of a saved configuration cannot be read; empty: nothing."""
    if saved is None:
        return ""
    try:
        from_saved(saved, modes, vendors)
    except ConfigError as error:
        return f"applied: {error}"
    return "; ".join(f"applied.node.{problem}" for problem in from_plain(saved.get("node", {}), vendors)[1])


def understood(
    saved: Mapping[str, Any] | None, modes: SharingModes = MODES, vendors: Vendors = VENDORS
) -> Effective | None:
    """The same; None where there is nothing, or another version wrote it in a way that this one does not read."""
    try:
        return None if saved is None else from_saved(saved, modes, vendors)
    except ConfigError:
        return None
