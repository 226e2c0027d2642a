"""The CDI specification of a claim: one file a claim, one CDI device a request.

Container runtimes keep what they have read, so a name never gets other content: the claim's UID is in it, and a claim
that is allocated anew under its UID gets the same names only for the same requests, whose containers have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodedevices_plugin.claims.records import ClaimError
from nodedevices_plugin.model import ContainerEdits

CLASS = "claim"
VERSION = "0.5.0"  # the least that has hostPath, and names that begin with a digit
READ_ONLY = ["ro", "nosuid", "nodev", "bind"]
READ_WRITE = ["rw", "nosuid", "nodev", "bind"]


class ClaimSpec(Struct, frozen=True, kw_only=True):
    """`document` None: the requests need no file of ours. `names`: the CDI devices of each request, in order."""

    document: Mapping[str, Any] | None
    names: Mapping[str, tuple[str, ...]]


def file_name(uid: str, driver: str) -> str:
    return f"{driver}-{CLASS}-{uid}.json"


def specification(uid: str, driver: str, edits: Mapping[str, ContainerEdits]) -> ClaimSpec:
    """Return what the container runtime is given for a claim.

    Args:
        edits: what a container needs for each request.

    Raises:
        ClaimError: a request needs what CDI cannot say.
    """
    devices: list[dict[str, Any]] = []
    names: dict[str, tuple[str, ...]] = {}
    for request, needs in edits.items():
        if needs.annotations:
            raise ClaimError(
                f"request {request}: injection.deviceListStrategies has cdi-annotations, which the device plugin API "
                "alone has; for DRA set cdi-cri"
            )
        own = _container_edits(needs)
        if own:
            name = f"{uid}-{request}"
            devices.append({"name": name, "containerEdits": own})
            names[request] = (*needs.cdi_devices, f"{driver}/{CLASS}={name}")
        else:
            names[request] = needs.cdi_devices
    document = {"cdiVersion": VERSION, "kind": f"{driver}/{CLASS}", "devices": devices} if devices else None
    return ClaimSpec(document=document, names=names)


def _container_edits(needs: ContainerEdits) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if needs.envs:
        found["env"] = [f"{name}={value}" for name, value in sorted(needs.envs.items())]
    if needs.devices:
        found["deviceNodes"] = [
            {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
            for node in needs.devices
        ]
    if needs.mounts:
        found["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": READ_ONLY if mount.read_only else READ_WRITE,
            }
            for mount in needs.mounts
        ]
    return found
