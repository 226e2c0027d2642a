"""The kubelet's own record of which container has which device ids: `kubelet_internal_checkpoint`. Only read here.

The device manager writes it at every allocation and change of a plugin's list, so it never lacks a holder; of a pod
that has ended it keeps the entry until the next allocation on the node. It can therefore prove that nobody holds an
id, not that somebody does (kubelet 1.36.3, observed). The format is the kubelet's private matter
(pkg/kubelet/cm/devicemanager/checkpoint): whatever is not as expected makes the file unreadable, never empty.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nodedevices_common.errors import OperationError

from nodedevices_plugin.model import Offer

FILE = "kubelet_internal_checkpoint"  # in the device-plugin folder
MAX_BYTES = 16 << 20


class CheckpointError(OperationError):
    """The file is there and cannot be read; the text says why."""


def read(path: Path) -> tuple[Offer, ...] | None:
    """Ids that containers have, by resource; None where there is no file. Raises CheckpointError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_BYTES} bytes")
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    return parse(raw)


def parse(raw: bytes) -> tuple[Offer, ...]:
    """`{"Data": {"PodDeviceEntries": [{"ResourceName": ..., "DeviceIDs": {"<NUMA node>": ["<id>"]}}]}}`.

    Raises CheckpointError for anything else.
    """
    ids: dict[str, set[str]] = {}
    try:
        for entry in json.loads(raw)["Data"]["PodDeviceEntries"] or ():
            ids.setdefault(_text(entry["ResourceName"]), set()).update(
                _text(each) for by_node in (entry["DeviceIDs"] or {}).values() for each in by_node or ()
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a checkpoint of the kubelet's device manager: {error!r:.200}") from error
    return tuple(Offer(resource=name, ids=tuple(sorted(of))) for name, of in sorted(ids.items()) if of)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.64} is not a text")
    return value
