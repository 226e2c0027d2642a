"""The two files of the MPS root: which control daemons the agent wants, and what the runner has made of it.

    {"version": 1, "daemons": [{"resource": "nvidia.com/gpu", "percentage": 25,
                                "gpus": [{"id": "GPU-...", "index": 0, "limitMib": 10240}]}]}
    {"version": 1, "daemons": [{"resource": "nvidia.com/gpu", "gpus": [{"id": "GPU-...", "index": 0}],
                                "instance": "<boot id>-4711-90210", "started": "2026-01-02T03:04:05Z"}]}

A wanted daemon with `"waits": true` is not to take its GPUs yet: the runner announces them, and the agent withholds
them. The runner's record has the GPUs that each daemon has for itself, or is about to take, and the daemon's process.
The runner reads it after a crash; the agent reads it to know that the daemon that answers is the one that its clients
use: each process has another `instance`.

Strict on both ends: the reader of the first has privileges. Containers see `<resource>/pipe` below the root and never
these files. Errors in them are reported, and running daemons stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from nodedevices_common.errors import InputError

from nodedevices_plugin.sharing.mps import SHARED_MEMORY, Gpus, MpsDaemon, Recorded, ResourceName

WANTED_FILE = "nodedevices-daemons.json"
RUNNING_FILE = "nodedevices-running.json"
MAX_BYTES = 1 << 18


class RecordError(InputError):
    """The file is none of ours; the text says what is wrong."""


class Running(Recorded, frozen=True):
    """`instance` and `started` are there where the daemon is a process of the runner's container."""

    resource: ResourceName
    gpus: Gpus = msgspec.field(default_factory=tuple)
    instance: Annotated[str, msgspec.Meta(max_length=96, pattern=r"^[A-Za-z0-9-]*\Z")] = ""
    started: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


Daemon = TypeVar("Daemon", MpsDaemon, Running)


class File(Recorded, Generic[Daemon], frozen=True):
    version: Literal[1]
    daemons: Annotated[tuple[Daemon, ...], msgspec.Meta(max_length=32)]


def text(daemons: Iterable[Daemon]) -> str:
    """Return a file's content; equal daemons give equal text."""
    encoded = msgspec.json.encode(File(version=1, daemons=tuple(daemons)))
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def read(raw: bytes, kind: type[File[Daemon]]) -> tuple[Daemon, ...]:
    """Return the daemons of a file: `File[MpsDaemon]` the wanted ones, `File[Running]`. Raises RecordError."""
    if len(raw) > MAX_BYTES:
        raise RecordError(f"more than {MAX_BYTES} bytes")
    try:
        daemons = msgspec.json.decode(raw, type=kind).daemons
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(str(error)) from error
    names = [daemon.resource for daemon in daemons]
    if len(set(names)) < len(names):
        raise RecordError(f"daemons: {', '.join(names)}: a resource is listed twice")
    if inside := [name for name in names if name.startswith(f"{SHARED_MEMORY}/")]:
        why = f"its folder would be inside the clients' /dev/shm; give another domain than {SHARED_MEMORY}"
        raise RecordError(f"resource: {inside[0]}: {why}")
    return daemons
