"""Checks that a document is a CDI spec: the rules of the CDI specification 1.1.0 (SPEC.md) as models.

Runtimes refuse a spec with an unknown field, a bad name or a version too old for what it uses, and then every
container that uses one of its devices fails to start. So it is checked before a file is written, ours or
`nvidia-ctk`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from nodedevices_api.errors import parse
from nodedevices_common.errors import InputError
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, StringConstraints
from pydantic.alias_generators import to_camel

_NAME = r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"  # of a device
_WORD = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"

Absolute = Annotated[StrictStr, StringConstraints(pattern=r"^/")]
Variable = Annotated[StrictStr, StringConstraints(pattern=r"^[^=]+=")]
Number = Annotated[StrictInt, Field(ge=0, le=(1 << 32) - 1)]


class _Part(BaseModel):
    # Deferred: every agent loads this, and those that write and read no CDI file validate nothing by it.
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, defer_build=True)


class _DeviceNode(_Part):
    path: Absolute
    host_path: Absolute | None = None
    type: Literal["b", "c", "u", "p", ""] | None = None
    major: StrictInt | None = None
    minor: StrictInt | None = None
    file_mode: Number | None = None
    permissions: Annotated[StrictStr, StringConstraints(pattern=r"^[rwm]*$")] | None = None
    uid: Number | None = None
    gid: Number | None = None


class _Mount(_Part):
    host_path: Annotated[StrictStr, Field(min_length=1)]
    container_path: Annotated[StrictStr, Field(min_length=1)]
    options: tuple[StrictStr, ...] = ()
    type: StrictStr | None = None


class _Hook(_Part):
    hook_name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: Absolute
    args: tuple[StrictStr, ...] = ()
    env: tuple[Variable, ...] = ()
    timeout: Annotated[StrictInt, Field(gt=0)] | None = None


class _IntelRdt(_Part):
    clos_id: StrictStr | None = Field(default=None, alias="closID")
    l3_cache_schema: StrictStr | None = Field(default=None, alias="l3CacheSchema")
    mem_bw_schema: StrictStr | None = None
    schemata: tuple[StrictStr, ...] = ()
    enable_monitoring: StrictBool | None = None


class _NetDevice(_Part):
    host_interface_name: StrictStr
    name: StrictStr


class _Edits(_Part):
    env: tuple[Variable, ...] = ()
    device_nodes: tuple[_DeviceNode, ...] = ()
    net_devices: tuple[_NetDevice, ...] = ()
    hooks: tuple[_Hook, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    intel_rdt: _IntelRdt | None = None
    additional_gids: tuple[Number, ...] = ()


class _Device(_Part):
    name: Annotated[StrictStr, StringConstraints(pattern=_NAME)]
    annotations: dict[str, StrictStr] = {}
    container_edits: _Edits


class _Spec(_Part):
    cdi_version: Literal["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]
    kind: Annotated[StrictStr, StringConstraints(pattern=f"^{_WORD}/{_WORD}$")]
    annotations: dict[str, StrictStr] = {}
    devices: tuple[_Device, ...]
    container_edits: _Edits = Field(default_factory=_Edits)


def problems(document: Any) -> tuple[str, ...]:
    """Return what keeps runtimes from reading this spec, one sentence each; empty: nothing."""
    try:
        spec = parse(_Spec, document)
    except InputError as error:
        return error.problems
    names = [device.name for device in spec.devices]
    found = [] if names else ["devices: none; a spec has one at least"]
    found += [f"devices: {name} is listed twice" for name in sorted(set(names)) if names.count(name) > 1]
    empty = [place for place, device in enumerate(spec.devices) if device.container_edits == _Edits()]
    found += [f"devices[{place}].containerEdits: empty; a device must change something" for place in empty]
    needed, why = _needed(spec)
    if tuple(int(part) for part in spec.cdi_version.split(".")) < needed:
        version = ".".join(str(part) for part in needed)
        found.append(f"cdiVersion: {spec.cdi_version} is too old for {why}; {version} is needed")
    return tuple(found)


def _needed(spec: _Spec) -> tuple[tuple[int, int, int], str]:
    """The least version that has all that is used (SPEC.md, "Released versions")."""
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    used = (
        ((1, 1, 0), "netDevices", any(edit.net_devices for edit in edits)),
        ((1, 1, 0), "intelRdt.schemata", any(edit.intel_rdt is not None and edit.intel_rdt.schemata for edit in edits)),
        ((0, 7, 0), "intelRdt", any(edit.intel_rdt is not None for edit in edits)),
        ((0, 7, 0), "additionalGids", any(edit.additional_gids for edit in edits)),
        ((0, 6, 0), "annotations", bool(spec.annotations) or any(device.annotations for device in spec.devices)),
        ((0, 6, 0), "a dot in the kind's name", "." in spec.kind.partition("/")[2]),
        ((0, 5, 0), "hostPath", any(node.host_path for edit in edits for node in edit.device_nodes)),
        ((0, 5, 0), "a name that begins with a digit", any(device.name[0].isdigit() for device in spec.devices)),
        ((0, 4, 0), "a mount's type", any(mount.type for edit in edits for mount in edit.mounts)),
    )
    return next(((version, what) for version, what, found in used if found), ((0, 3, 0), ""))
