"""The port of files that a vendor keeps on the node for other programs, such as CNI plugins, which read there what a
device is.

The agent keeps them as they are to be (host.node_files): written before an id is offered, replaced as devices change,
removed when nothing needs them. They are no condition of what is offered: a folder that cannot be written withholds
nothing, and is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from nodedevices_plugin.model import OfferedResource
from nodedevices_plugin.vendors.base import NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """`files`: texts by name, all that there is to be of ours in that folder. Files of others there stay."""

    folder: str
    files: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class KeepsFiles(Protocol):
    """A vendor with such files."""

    def node_files(self, resources: Sequence[OfferedResource], node: NodeView) -> FolderFiles | None:
        """For the resources that are offered now, retained ids among them. None: it keeps none, nor removes any."""
        ...
