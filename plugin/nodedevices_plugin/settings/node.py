"""Settings of the node for which a policy has no field: where things are on it, and what vendors' flags say. Pure.

They come from flags, environment and file, and stay when a policy replaces a section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nodedevices_common.options import Values
from pydantic import TypeAdapter, ValidationError

from nodedevices_plugin.settings.problems import ConfigError
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.vendors.registry import own_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """`vendors`: of each vendor with its own flags what they say, a frozen value of the vendor's type."""

    driver_root_here: str = ""  # where the driver root is mounted in this container
    mps_root: str = ""
    packed: bool = False
    vendors: Mapping[str, object] = field(default_factory=dict)

    @property
    def sharing_modes(self) -> Settings:
        """What sharing modes read of these: part of the shape of what is offered."""
        return {"mps-root": self.mps_root}

    def with_modes_of(self, other: NodeSettings) -> NodeSettings:
        return replace(self, mps_root=other.mps_root)


def node_settings(values: Values) -> NodeSettings:
    """From the options by name: what a flag, a variable or the file gives."""
    return NodeSettings(
        driver_root_here=values.text("driver-root-ctr-path"),
        mps_root=values.text("mps-root"),
        packed=values.text("shared-devices-allocation-policy") == "packed",
        vendors={name: vendor.settings(values) for name, vendor in own_flags().items()},
    )


_OWN = tuple(each.name for each in fields(NodeSettings) if each.name != "vendors")


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # each takes a millisecond to make


def _adapter(of: type[Any]) -> TypeAdapter[Any]:
    if of not in _ADAPTERS:
        _ADAPTERS[of] = TypeAdapter(of)
    return _ADAPTERS[of]


def to_plain(settings: NodeSettings) -> dict[str, Any]:
    """For the state file."""
    vendors = {name: _adapter(type(each)).dump_python(each, mode="json") for name, each in settings.vendors.items()}
    return {**{name: getattr(settings, name) for name in _OWN}, "vendors": vendors}


def from_plain(value: object) -> NodeSettings:
    """From the state file; ConfigError when it is none of ours. What a vendor's part leaves out is at its default."""
    saved = value.get("vendors") if isinstance(value, Mapping) else None
    parts = saved if isinstance(saved, Mapping) else {}
    try:
        vendors = {
            name: _adapter(vendor.settings_type).validate_python(parts.get(name, {}))
            for name, vendor in own_flags().items()
        }
        own = {name: value[name] for name in _OWN if name in value} if isinstance(value, Mapping) else value
        settings: NodeSettings = _adapter(NodeSettings).validate_python(own)
        return replace(settings, vendors=vendors)
    except ValidationError as error:
        raise ConfigError([f"saved node settings: {error.errors()[0]['msg']}"]) from error
