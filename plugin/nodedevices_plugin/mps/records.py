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

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta
from nodedevices_common.errors import InputError

from nodedevices_plugin.sharing.mps import SHARED_MEMORY, Gpus, MpsDaemon, Recorded, ResourceName

WANTED_FILE = "nodedevices-daemons.json"
RUNNING_FILE = "nodedevices-running.json"
MAX_BYTES = 1 << 18
MAX_DAEMONS = Meta(max_length=32)


class RecordError(InputError):
    """The file is none of ours; the text says what is wrong."""


class Running(Recorded, frozen=True):
    """`instance` and `started` are there where the daemon is a process of the runner's container."""

    resource: ResourceName
    gpus: Gpus = msgspec.field(default_factory=tuple)
    instance: Annotated[str, Meta(max_length=96, pattern=r"^[A-Za-z0-9-]*\Z")] = ""
    started: Annotated[datetime, Meta(tz=True)] | None = None


class _Wanted(Recorded, frozen=True):
    version: Literal[1]
    daemons: Annotated[tuple[MpsDaemon, ...], MAX_DAEMONS]


class _Running(Recorded, frozen=True):
    version: Literal[1]
    daemons: Annotated[tuple[Running, ...], MAX_DAEMONS]


File = TypeVar("File", _Wanted, _Running)


def wanted_text(daemons: Sequence[MpsDaemon]) -> str:
    """Return the file's content; equal daemons give equal text."""
    return _text(_Wanted(version=1, daemons=tuple(daemons)))


def running_text(daemons: Iterable[Running]) -> str:
    return _text(_Running(version=1, daemons=tuple(daemons)))


def wanted(raw: bytes) -> tuple[MpsDaemon, ...]:
    """Raises RecordError."""
    return _daemons(_read(raw, _Wanted).daemons)


def running(raw: bytes) -> tuple[Running, ...]:
    """Raises RecordError."""
    return _daemons(_read(raw, _Running).daemons)


Daemon = TypeVar("Daemon", MpsDaemon, Running)


def _daemons(daemons: tuple[Daemon, ...]) -> tuple[Daemon, ...]:
    names = [daemon.resource for daemon in daemons]
    if len(set(names)) < len(names):
        raise RecordError(f"daemons: {', '.join(names)}: a resource is listed twice")
    for name in names:
        if name.startswith(f"{SHARED_MEMORY}/"):
            why = f"its folder would be inside the clients' /dev/shm; give another domain than {SHARED_MEMORY}"
            raise RecordError(f"resource: {name}: {why}")
    return daemons


def _text(record: _Wanted | _Running) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def _read(raw: bytes, kind: type[File]) -> File:
    if len(raw) > MAX_BYTES:
        raise RecordError(f"more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(str(error)) from error
