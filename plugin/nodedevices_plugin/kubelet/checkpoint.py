"""The kubelet's own record of which container has which device ids: `kubelet_internal_checkpoint`. Only read here.

The device manager writes it at every allocation and at every message of a plugin's ListAndWatch, so it never lacks a
holder, init containers among them. It forgets pods that have ended when it is called for a List, once it knows the
pods of all its sources, and at an allocation; the file has their entries until it is written the next time. So an
id that is not in the file is held by no container; an id in it is held for certain only when the file was written
after a List. (Kubelet 1.36.3:
pkg/kubelet/cm/devicemanager/manager.go, UpdateAllocatedDevices and writeCheckpoint.) The format is the kubelet's
private matter: anything unexpected makes the file unreadable, never empty.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import MsgspecError, Struct, field, json
from nodedevices_common.errors import OperationError
from nodedevices_common.files import Identity, head, identity

FILE = "kubelet_internal_checkpoint"  # in the device-plugin folder
MAX_BYTES = 16 << 20


class CheckpointError(OperationError):
    """The file is there and cannot be read; the text says why."""


class CheckpointEntry(Struct, frozen=True, order=True):
    """The ids that one container has of one resource, sorted."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]


class _Entry(Struct):
    pod_uid: str = field(name="PodUID")
    container: str = field(name="ContainerName")
    resource: str = field(name="ResourceName")
    ids: dict[str, list[str] | None] | None = field(name="DeviceIDs")  # by NUMA node; Go writes null for what is empty


class _Data(Struct):
    entries: list[_Entry] | None = field(name="PodDeviceEntries")


class _Checkpoint(Struct):
    data: _Data = field(name="Data")


class CheckpointFile:
    """The file, read again only when it was written again. Blocking: to be called on a worker thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: tuple[Identity, tuple[CheckpointEntry, ...]] | None = None

    def read(self) -> tuple[CheckpointEntry, ...] | None:
        """Return the file's entries; None where there is no file. Raises CheckpointError."""
        before = identity(self.path)  # the kubelet writes another file and renames it
        if self._last is not None and self._last[0] == before:
            return self._last[1]
        try:
            raw = head(self.path, MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror or error}") from error
        if len(raw) > MAX_BYTES:
            raise CheckpointError(f"{self.path}: larger than {MAX_BYTES} bytes")
        content = parse(raw)
        self._last = (before, content) if before is not None else None
        return content


def parse(raw: bytes) -> tuple[CheckpointEntry, ...]:
    """Raises CheckpointError for anything but a checkpoint."""
    try:
        written = json.decode(raw, type=_Checkpoint)
    except (MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not a checkpoint of the kubelet's device manager: {error!r:.200}") from error
    return tuple(
        sorted(
            {
                CheckpointEntry(entry.pod_uid, entry.container, entry.resource, ids)
                for entry in written.data.entries or ()
                if (ids := tuple(sorted({id_ for some in (entry.ids or {}).values() for id_ in some or ()})))
            }
        )
    )
