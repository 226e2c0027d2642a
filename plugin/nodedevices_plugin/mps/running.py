"""The runner's record: the GPUs that each daemon has for itself, or is about to take, and the daemon's process.

    {"version": 1, "daemons": [{"resource": "nvidia.com/gpu", "gpus": [{"id": "GPU-...", "index": 0, "limitMib": 0}],
                                "instance": "<boot id>-4711-90210", "started": "2026-01-02T03:04:05Z"}]}

The runner reads it after a crash. The agent reads it to know that the daemon that answers is the one that its clients
use: each process has another `instance`. It is beside the folders that clients write, not in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Struct
from nodedevices_api.errors import parse
from nodedevices_common.errors import InputError
from pydantic import AwareDatetime, Field, StringConstraints

from nodedevices_plugin.mps.wanted import MAX_BYTES, GpuEntry, Resource, StrictModel, WantedError, gpu_entry, gpus
from nodedevices_plugin.sharing.mps import Gpu

FILE = "nodedevices-running.json"

Instance = Annotated[str, StringConstraints(max_length=96, pattern=r"^[A-Za-z0-9-]*$")]


class Running(Struct, frozen=True, kw_only=True):
    """`instance` and `started` are there where the daemon is a process of the runner's container."""

    resource: str
    gpus: tuple[Gpu, ...] = ()
    instance: str = ""
    started: datetime | None = None


class _Daemon(StrictModel):
    resource: Resource
    gpus: Annotated[list[GpuEntry], Field(max_length=64)]
    instance: Instance = ""
    started: Annotated[AwareDatetime | None, Field(strict=False)] = None


class _Running(StrictModel):
    version: Literal[1]
    daemons: Annotated[list[_Daemon], Field(max_length=32)]


def to_text(daemons: Iterable[Running]) -> str:
    plain = [
        {
            "resource": daemon.resource,
            "gpus": [gpu_entry(gpu) for gpu in daemon.gpus],
            **({"instance": daemon.instance} if daemon.instance else {}),
            **({"started": daemon.started.astimezone(UTC).isoformat()} if daemon.started else {}),
        }
        for daemon in daemons
    ]
    return json.dumps({"version": 1, "daemons": plain}, indent=1) + "\n"


def from_bytes(raw: bytes) -> tuple[Running, ...]:
    """Raises WantedError."""
    if len(raw) > MAX_BYTES:
        raise WantedError(f"more than {MAX_BYTES} bytes")
    try:
        found = parse(_Running, json.loads(raw))
    except InputError as error:
        raise WantedError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise WantedError(f"not JSON: {error}") from error
    return tuple(
        Running(resource=daemon.resource, gpus=gpus(daemon.gpus), instance=daemon.instance, started=daemon.started)
        for daemon in found.daemons
    )
