"""Onload on Solarflare cards, as kubernetes-onload's device plugin and the older sfc-device-plugin have it.

Onload is no part of a card: programs that preload its library open character devices that are the machine's, and use
whatever Solarflare card the traffic goes by. So `amd.com/onload` stands for all cards of the node at once, and counts
pods (maxPodsPerNode); `solarflare/smartNIC` stands for one card.

The file is `spec.devicePlugin` of an Onload object, as JSON: `{"maxPodsPerNode": 100, "setPreload": true}`. `{}` is the
plugin's defaults; without a file nothing is offered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from nodedevices_common.text import show
from nodedevices_probe.nic.attributes import DRIVER, ONLOAD_MISSING, ONLOAD_NODES, PHYSICAL
from nodedevices_probe.protocol import DeviceFact, Readings

from nodedevices_plugin.model import AllocationError, ContainerEdits, DeviceNode, HealthState, Mount, Unit
from nodedevices_plugin.vendors.base import VendorShares
from nodedevices_plugin.vendors.faults import Condition
from nodedevices_plugin.vendors.nic.strict import Strict
from nodedevices_plugin.vendors.nic.traits import text

OPTION = "onload-config-file"
MAKER = "solarflare"
DRIVERS = frozenset({"sfc", ""})  # none: the card is unhealthy, and keeps its id
ONLOAD, SMART_NIC = "amd.com/onload", "solarflare/smartNIC"
# What the older plugin gives beside ONLOAD_NODES, where the version of Onload has it.
MORE_NODES = ("/dev/onload_cplane", "/dev/sfc_affinity")
LIBRARIES = ("libonload.so", "libonload_ext.so")
PRELOADED, SCRIPT = "libonload.so", "onload"
HOST_LIB, HOST_BIN = "usr/lib64", "usr/bin"  # below hostOnloadPath
MAX_PODS = 4096
IGNORED = ("devicePluginImage", "imagePullPolicy")
_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+/?|/")
_KEYS = (
    "maxPodsPerNode",
    "setPreload",
    "mountOnload",
    "hostOnloadPath",
    "baseMountPath",
    "binMountPath",
    "libMountPath",
    "resourceName",
    *IGNORED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnloadConfig:
    resource: str = ONLOAD
    max_pods: int = 100
    preload: bool = True
    script: bool = False  # the `onload` command is mounted, for programs that are started with it
    host_path: str = "/opt/onload"
    base_path: str = "/opt/onload"
    bin_path: str = "/usr/bin"
    lib_path: str = "/usr/lib64"

    @property
    def libraries(self) -> str:
        """Their folder in containers."""
        return _joined(self.base_path, self.lib_path)


def parse(raw: bytes) -> OnloadConfig:
    """The file. Raises InputError with everything that is wrong."""
    strict, usual = Strict(), OnloadConfig()
    said = strict.document(raw, _KEYS)
    preload = strict.truth(said, "setPreload", "") if "setPreload" in said else usual.preload
    script = strict.truth(said, "mountOnload", "")
    if preload and script:
        strict.wrong(
            "mountOnload", "true goes with setPreload false: what is preloaded already is not started with the command"
        )
    config = OnloadConfig(
        resource=strict.text(said, "resourceName", "", choices=(ONLOAD, SMART_NIC)) or usual.resource,
        max_pods=strict.number(said, "maxPodsPerNode", "", low=1, high=MAX_PODS) or usual.max_pods,
        preload=preload,
        script=script,
        host_path=_path(strict, said, "hostOnloadPath", usual.host_path),
        base_path=_path(strict, said, "baseMountPath", usual.base_path),
        bin_path=_path(strict, said, "binMountPath", usual.bin_path),
        lib_path=_path(strict, said, "libMountPath", usual.lib_path),
    )
    strict.finish()
    return config


def name(config: OnloadConfig, fact: DeviceFact) -> str | None:
    """The resource that the card is offered as; None: not by this."""
    offered = fact.vendor == MAKER and fact.type == PHYSICAL and text(fact, DRIVER) in DRIVERS
    return config.resource if offered else None


def shares(config: OnloadConfig, units: Sequence[Unit]) -> VendorShares | None:
    """maxPodsPerNode counts the pods of the node; the kubelet's ids are spread evenly over its cards."""
    if config.resource != ONLOAD or not units:
        return None
    each, more = divmod(config.max_pods, len(units))
    return VendorShares(counts=tuple(each + (place < more) for place in range(len(units))), together=True)


def host_paths(config: OnloadConfig) -> Collection[str]:
    """What of the host containers get if it is there."""
    libraries = (f"{_joined(config.host_path, HOST_LIB)}/{each}*" for each in LIBRARIES)
    return (*libraries, _joined(config.host_path, HOST_BIN, SCRIPT), *MORE_NODES)


def edits(config: OnloadConfig, existing: Set[str]) -> ContainerEdits:
    """For a container with one or several of its ids. Raises AllocationError where what it is to preload is missing: it
    would run without Onload, and nobody would know."""
    source = _joined(config.host_path, HOST_LIB)
    libraries = sorted(each for each in existing if each.startswith(tuple(f"{source}/{one}" for one in LIBRARIES)))
    script = _joined(config.host_path, HOST_BIN, SCRIPT)
    needed = [
        *([f"{source}/{PRELOADED}"] if config.preload or config.script else []),
        *([script] if config.script else []),
    ]
    if absent := [each for each in needed if each not in existing]:
        raise AllocationError(
            f"{config.resource}: {', '.join(absent)} is not on this node, or not visible to the agent (component "
            "driver-root). Install Onload there, or set hostOnloadPath."
        )
    files = {each: f"{config.libraries}/{PurePosixPath(each).name}" for each in libraries}
    if config.script:
        files[script] = _joined(config.base_path, config.bin_path, SCRIPT)
    more = [each for each in MORE_NODES if each in existing] if config.resource == SMART_NIC else []
    return ContainerEdits(
        envs={"LD_PRELOAD": f"{config.libraries}/{PRELOADED}"} if config.preload else {},
        mounts=tuple(Mount(container_path=inside, host_path=host) for host, inside in files.items()),
        devices=tuple(DeviceNode(container_path=each, host_path=each) for each in (*ONLOAD_NODES, *more)),
    )


def condition(readings: Readings) -> Condition:
    return Condition(
        reason="OnloadMissing",
        state=HealthState.UNHEALTHY,
        unused=HealthState.DEGRADED,
        message="Onload's kernel modules are not loaded, or its device nodes are not there",
        evident=ONLOAD_MISSING in readings.conditions,
        action="Inspect",
        ends_by_itself=True,
    )


def _path(strict: Strict, said: Mapping[str, Any], key: str, usual: str) -> str:
    value = strict.text(said, key, "")
    if value and _PATH.fullmatch(value) is None:
        strict.wrong(key, f"{show(value)} is no absolute path of letters, digits, and . _ + - in its parts")
    return value or usual


def _joined(*parts: str) -> str:
    """As Go's path.Join: what begins with a slash is below what is before it."""
    return "/" + "/".join(part.strip("/") for part in parts if part.strip("/"))
