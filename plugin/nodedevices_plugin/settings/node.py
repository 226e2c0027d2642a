"""Settings of the node for which a policy has no field: roots, prefixes, what is given to every container. Pure.

They come from flags, environment and file, and stay when a policy replaces a section.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from nodedevices_common.options import Value
from pydantic import TypeAdapter, ValidationError

from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.options import BY_NAME
from nodedevices_plugin.settings.problems import ConfigError
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.vendors.nvidia import imex
from nodedevices_plugin.vendors.nvidia.cdi import FEATURES, Host


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What every container of the node gets, and where things are on it."""

    driver_root: str = "/"
    dev_root: str = ""
    features: tuple[str, ...] = ()  # of cdi.FEATURES
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_hook_path: str = ""
    cdi_feature_flags: tuple[str, ...] = ()
    cdi_disable_hooks: tuple[str, ...] = ()
    cdi_without_libraries: bool = False  # device nodes alone will do
    ctk_program: str = ""  # empty: it is looked for
    driver_root_here: str = ""  # where the driver root is mounted in this container
    mps_root: str = ""
    packed: bool = False

    @property
    def sharing_modes(self) -> Settings:
        """What sharing modes read of these: part of the shape of what is offered."""
        return {"mps-root": self.mps_root}

    def with_modes_of(self, other: NodeSettings) -> NodeSettings:
        return replace(self, mps_root=other.mps_root)

    def host(self, existing: Set[str]) -> Host:
        """The node as containers get it; `existing`: which device nodes and files are there."""
        return Host(
            driver_root=self.driver_root,
            dev_root=self.dev_root,
            existing=existing,
            features=self.features,
            imex_channels=imex.present(self.imex_channels, existing, required=False),
        )

    def check(self, existing: Set[str]) -> None:
        """Raises PlanError where something that is required is not there."""
        imex.present(self.imex_channels, existing, required=self.imex_required)


def node_settings(local: Local, values: Mapping[str, Value]) -> NodeSettings:
    """From the options by name: what a flag, a variable or the file gives."""

    def value(name: str) -> Value:
        return values.get(name, BY_NAME[name].default)

    channels = value("imex-channel-ids")
    return NodeSettings(
        driver_root=str(value("driver-root")) or "/",
        dev_root=str(value("dev-root")),
        features=tuple(each for each in FEATURES if value(f"{each}-enabled")),
        imex_channels=imex.channel_ids(channels if isinstance(channels, tuple) else ()),
        imex_required=bool(value("imex-required")),
        cdi_annotation_prefix=str(value("cdi-annotation-prefix")),
        cdi_hook_path=str(value("nvidia-cdi-hook-path")),
        cdi_feature_flags=_list(value("cdi-feature-flags")),
        cdi_disable_hooks=_list(value("cdi-disable-hooks")),
        cdi_without_libraries=local.cdi_without_libraries,
        ctk_program=local.ctk_program,
        driver_root_here=str(value("driver-root-ctr-path")),
        mps_root=str(value("mps-root")),
        packed=value("shared-devices-allocation-policy") == "packed",
    )


def _list(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


_ADAPTER: TypeAdapter[NodeSettings] = TypeAdapter(NodeSettings)


def to_plain(settings: NodeSettings) -> dict[str, Any]:
    """For the state file."""
    plain: dict[str, Any] = _ADAPTER.dump_python(settings, mode="json")
    return plain


def from_plain(value: object) -> NodeSettings:
    """From the state file; ConfigError when it is none of ours."""
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        raise ConfigError([f"saved node settings: {error.errors()[0]['msg']}"]) from error
