"""Onload on Solarflare cards, as kubernetes-onload's device plugin and the older sfc-device-plugin have it.

Onload is no part of a card: programs that preload its library open character devices that are the machine's, and use
and the traffic may go by any Solarflare card. So `amd.com/onload` stands for all cards of the node at once, and counts
pods (maxPodsPerNode); `solarflare/smartNIC` stands for one card.

The file is `spec.devicePlugin` of an Onload object, as JSON: `{"maxPodsPerNode": 100, "setPreload": true}`. `{}` is the
plugin's defaults; without a file nothing is offered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from nodedevices_api.fields import Flag
from nodedevices_probe.nic import DRIVER, ONLOAD_NODES, PHYSICAL
from nodedevices_probe.protocol import DeviceFact
from pydantic import Field, model_validator

from nodedevices_plugin.model import AllocationError, ContainerEdits, DeviceNode, Mount, Unit
from nodedevices_plugin.vendors.base import VendorShares, text
from nodedevices_plugin.vendors.plugin_files import PluginFile, Text, Unused, matching, number, read, refuse

DRIVERS = frozenset({"sfc", ""})  # none: the card is unhealthy, and keeps its id
ONLOAD, SMART_NIC = "amd.com/onload", "solarflare/smartNIC"
# What the older plugin gives beside ONLOAD_NODES, where the version of Onload has it.
MORE_NODES = ("/dev/onload_cplane", "/dev/sfc_affinity")
LIBRARIES = ("libonload.so", "libonload_ext.so")
PRELOADED, SCRIPT = "libonload.so", "onload"
HOST_LIB, HOST_BIN = "usr/lib64", "usr/bin"  # below hostOnloadPath
MAX_PODS = 4096

HostPath = Annotated[
    Text,
    matching(
        "(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+/?|/",
        "give an absolute path whose parts have only letters, digits, and . _ + -",
    ),
]


class OnloadConfig(PluginFile):
    """The file. `script`: the `onload` command is mounted, for programs that are started with it."""

    any_case = False

    resource: Literal["amd.com/onload", "solarflare/smartNIC"] = Field(default="amd.com/onload", alias="resourceName")
    max_pods: Annotated[int, number(1, MAX_PODS)] = Field(default=100, alias="maxPodsPerNode")
    preload: Flag = Field(default=True, alias="setPreload")
    script: Flag = Field(default=False, alias="mountOnload")
    host_path: HostPath = Field(default="/opt/onload", alias="hostOnloadPath")
    base_path: HostPath = Field(default="/opt/onload", alias="baseMountPath")
    bin_path: HostPath = Field(default="/usr/bin", alias="binMountPath")
    lib_path: HostPath = Field(default="/usr/lib64", alias="libMountPath")
    device_plugin_image: Unused = None
    image_pull_policy: Unused = None

    @property
    def libraries(self) -> str:
        """Their folder in containers."""
        return _joined(self.base_path, self.lib_path)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.preload and self.script:
            text = "true goes with setPreload false: what is preloaded already is not started with the command"
            refuse({("mountOnload",): text})
        return self


def parse(raw: bytes) -> OnloadConfig:
    """The file. Raises InputError with everything that is wrong."""
    return read(raw, OnloadConfig)


def name(config: OnloadConfig, fact: DeviceFact) -> str | None:
    """The resource that the card is offered as; None: not by this."""
    offered = fact.vendor == "solarflare" and fact.type == PHYSICAL and text(fact, DRIVER) in DRIVERS
    return config.resource if offered else None


def shares(config: OnloadConfig, units: Sequence[Unit]) -> VendorShares | None:
    """maxPodsPerNode counts the pods of the node."""
    return VendorShares.spread(config.max_pods, len(units)) if config.resource == ONLOAD and units else None


def host_paths(config: OnloadConfig) -> Collection[str]:
    """Return the host's paths that containers get if they exist."""
    libraries = (f"{_joined(config.host_path, HOST_LIB)}/{library}*" for library in LIBRARIES)
    return (*libraries, _joined(config.host_path, HOST_BIN, SCRIPT), *MORE_NODES)


def edits(config: OnloadConfig, existing: Set[str]) -> ContainerEdits:
    """Return what a container with one or several of its ids needs. Raises AllocationError where the library to preload
    is missing: the container would run without Onload, and without a sign of it."""
    source = _joined(config.host_path, HOST_LIB)
    libraries = sorted(
        path for path in existing if path.startswith(tuple(f"{source}/{library}" for library in LIBRARIES))
    )
    script = _joined(config.host_path, HOST_BIN, SCRIPT)
    needed = [
        *([f"{source}/{PRELOADED}"] if config.preload or config.script else []),
        *([script] if config.script else []),
    ]
    if absent := [path for path in needed if path not in existing]:
        raise AllocationError(
            f"{config.resource}: {', '.join(absent)} is not on this node, or not visible to the agent (component "
            "driver-root). Install Onload there, or set hostOnloadPath."
        )
    files = {library: f"{config.libraries}/{PurePosixPath(library).name}" for library in libraries}
    if config.script:
        files[script] = _joined(config.base_path, config.bin_path, SCRIPT)
    more = [node for node in MORE_NODES if node in existing] if config.resource == SMART_NIC else []
    return ContainerEdits(
        envs={"LD_PRELOAD": f"{config.libraries}/{PRELOADED}"} if config.preload else {},
        mounts=tuple(Mount(container_path=inside, host_path=host) for host, inside in files.items()),
        devices=tuple(DeviceNode(container_path=node, host_path=node) for node in (*ONLOAD_NODES, *more)),
    )


def _joined(*parts: str) -> str:
    """Join as Go's path.Join does: a part with a leading slash is below the part before it, too."""
    return "/" + "/".join(part.strip("/") for part in parts if part.strip("/"))
