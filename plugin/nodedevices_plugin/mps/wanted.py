"""The file of the control daemons that the agent wants. Strict on both ends: the reader has privileges.

    {"version": 1, "daemons": [{"resource": "nvidia.com/gpu", "percentage": 25,
                                "gpus": [{"id": "GPU-...", "index": 0, "limitMib": 10240}]}]}

A daemon with `"waits": true` is not to take its GPUs yet: they are announced (running), and the agent withholds them.

Containers see `<resource>/pipe` below the root and never this file. Errors in it are reported, and running daemons
stay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from nodedevices_api.errors import parse
from nodedevices_common.errors import InputError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from nodedevices_plugin.sharing.mps import SHARED_MEMORY, Gpu, MpsDaemon

FILE = "nodedevices-daemons.json"
MAX_BYTES = 1 << 18
# A resource's name is a path below the root, and a GPU's id an argument of nvidia-smi.
_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"


def _not_shared_memory(name: str) -> str:
    if name.startswith(f"{SHARED_MEMORY}/"):
        raise ValueError(f"its folder would be inside the clients' /dev/shm; give another domain than {SHARED_MEMORY}")
    return name


Resource = Annotated[str, StringConstraints(max_length=244, pattern=_NAME), AfterValidator(_not_shared_memory)]
GpuId = Annotated[str, StringConstraints(max_length=96, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]


class WantedError(InputError):
    """The file is none of ours; the text says what is wrong."""


class StrictModel(BaseModel):
    """Refuses unknown keys and wrong types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


class GpuEntry(StrictModel):
    id: GpuId
    index: Annotated[int, Field(ge=0, le=1023)]
    limit_mib: Annotated[int, Field(ge=0, le=1 << 31)] = 0


class _Daemon(StrictModel):
    resource: Resource
    percentage: Annotated[int, Field(ge=1, le=100)]
    gpus: Annotated[list[GpuEntry], Field(max_length=64)]
    waits: bool = False


class _Wanted(StrictModel):
    version: Literal[1]
    daemons: Annotated[list[_Daemon], Field(max_length=32)]


def gpu_entry(gpu: Gpu) -> dict[str, object]:
    return {"id": gpu.id, "index": gpu.index, "limitMib": gpu.limit_mib}


def gpus(entries: Sequence[GpuEntry]) -> tuple[Gpu, ...]:
    return tuple(Gpu(id=entry.id, index=entry.index, limit_mib=entry.limit_mib) for entry in entries)


def to_text(daemons: Sequence[MpsDaemon]) -> str:
    """The file's content; equal daemons give equal text."""
    plain = [
        {
            "resource": daemon.resource,
            "percentage": daemon.percentage,
            "gpus": [gpu_entry(gpu) for gpu in daemon.gpus],
            **({"waits": True} if daemon.waits else {}),
        }
        for daemon in daemons
    ]
    return json.dumps({"version": 1, "daemons": plain}, indent=1) + "\n"


def from_bytes(raw: bytes) -> tuple[MpsDaemon, ...]:
    """Raises WantedError."""
    if len(raw) > MAX_BYTES:
        raise WantedError(f"more than {MAX_BYTES} bytes")
    try:
        wanted = parse(_Wanted, json.loads(raw))
    except InputError as error:
        raise WantedError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise WantedError(f"not JSON: {error}") from error
    names = [daemon.resource for daemon in wanted.daemons]
    if len(set(names)) < len(names):
        raise WantedError(f"daemons: {', '.join(names)}: a resource is listed twice")
    return tuple(
        MpsDaemon(
            resource=daemon.resource,
            percentage=daemon.percentage,
            gpus=gpus(daemon.gpus),
            waits=daemon.waits,
        )
        for daemon in wanted.daemons
    )
