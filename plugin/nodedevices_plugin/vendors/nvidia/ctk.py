"""How nvidia-ctk makes the CDI specification of the GPUs: its arguments, and what is made of its output.

It runs in this container, where the driver root may be mounted at another place than on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from nodedevices_probe.nvidia import NVIDIA_CTK
from nodedevices_probe.programs import Program

from nodedevices_plugin.vendors.cdi import CdiSpec
from nodedevices_plugin.vendors.nvidia import cdi, nodes
from nodedevices_plugin.vendors.nvidia.cdi import Host
from nodedevices_plugin.vendors.nvidia.flags import NvidiaSettings


class CtkRequest(Struct, frozen=True, kw_only=True):
    """A request to nvidia-ctk for a spec.

    names: the devices that it must have. driver_root: where the driver root is mounted in this container, if it is.
    """

    program: ClassVar[Program] = NVIDIA_CTK

    names: frozenset[str]
    id_strategy: str = "uuid"
    host: Host
    driver_root: str = ""
    hook_path: str = ""
    feature_flags: tuple[str, ...] = ()
    disable_hooks: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        return [
            *(f"--vendor={cdi.VENDOR}", "--class=gpu", f"--device-name-strategy={self.id_strategy}"),
            *([f"--nvidia-ctk-path={self.hook_path}"] if self.hook_path else []),
            *(f"--feature-flag={flag}" for flag in self.feature_flags),
            *(f"--disable-hook={hook}" for hook in self.disable_hooks),
        ]

    def accepted(self, document: Mapping[str, Any], driver_root: str) -> dict[str, Any]:
        if document["kind"] != cdi.GPU_KIND:
            raise ValueError(f"is of kind {document['kind']}")
        missing = sorted(self.names - {device["name"] for device in document["devices"]})
        if missing:
            raise ValueError(f"has no {', '.join(missing[:3])}")
        return rerooted(document, self.host, mounted=driver_root)


def request(gpus: CdiSpec, own: NvidiaSettings, host: Host, *, id_strategy: str) -> CtkRequest:
    """Return the request for the devices of our own specification."""
    return CtkRequest(
        names=frozenset(str(device["name"]) for device in gpus.document["devices"]),
        id_strategy=id_strategy,
        host=host,
        driver_root=own.driver_root_here,
        hook_path=own.cdi_hook_path,
        feature_flags=own.cdi_feature_flags,
        disable_hooks=own.cdi_disable_hooks,
    )


def rerooted(document: Mapping[str, Any], host: Host, *, mounted: str = "") -> dict[str, Any]:
    """Return a valid spec with the host's paths in place of this container's.

    mounted: where the driver root is mounted here; device nodes come from there or from this container's own /dev.
    """
    prefix = mounted.rstrip("/")

    def inside(path: str) -> str:
        return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path

    def node(entry: Mapping[str, Any]) -> dict[str, Any]:
        path = str(entry["path"])
        place = host.path(inside(str(entry.get("hostPath") or path)))
        return {**entry, "hostPath": place} if place != path or "hostPath" in entry else dict(entry)

    def mount(entry: Mapping[str, Any]) -> dict[str, Any]:
        path = str(entry["hostPath"])
        moved = inside(path)
        return dict(entry) if moved == path else {**entry, "hostPath": nodes.host_path(host.driver_root, moved)}

    def edits(before: Mapping[str, Any]) -> dict[str, Any]:
        after = dict(before)
        for key, change in (("deviceNodes", node), ("mounts", mount)):
            if before.get(key):
                after[key] = [change(edit) for edit in before[key]]
        return after

    after = {
        **document,
        "devices": [{**device, "containerEdits": edits(device["containerEdits"])} for device in document["devices"]],
    }
    if document.get("containerEdits"):
        after["containerEdits"] = edits(document["containerEdits"])
    if _version(str(document["cdiVersion"])) < _version(cdi.VERSION):
        after["cdiVersion"] = cdi.VERSION  # for hostPath
    return after


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
