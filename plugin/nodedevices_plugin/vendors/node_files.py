"""The port of files that a vendor keeps on the node for other programs, such as CNI plugins that read a device's facts.

The agent keeps them up to date (host.node_files): written before an id is offered, replaced as devices change, removed
when nothing needs them. A folder that cannot be written is reported, and withholds no id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from nodedevices_plugin.model import OfferedResource
from nodedevices_plugin.model.optional import OptionalInterface
from nodedevices_plugin.vendors.base import NodeView


class FolderFiles(Struct, frozen=True, kw_only=True):
    """`files`: texts by name: all files that we want in that folder. Other programs' files there stay."""

    folder: str
    files: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class KeepsFiles(OptionalInterface, Protocol):
    """A vendor with such files."""

    def node_files(self, resources: Sequence[OfferedResource], node: NodeView) -> FolderFiles | None:
        """Return the files for the resources that are offered now, with their retained ids. None: it keeps no files,
        and removes none."""
        ...
