"""The port of a vendor's own flags: settings of the node that only one maker's devices need.

A vendor brings options to the one table of the agent (settings.options): flags, their variables, their keys in the
configuration file. They are read, checked and refused as the agent's own are. What they say comes back to the vendor:
as sections of the node's configuration, which a policy replaces, and as a value of the vendor's own type, which it is
given with everything that it decides (vendors.base.NodeView.local). That value is part of the configuration: it is
compared, and saved in the state file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from nodedevices_common.options import Option, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorFlags:
    """`group`: of its options in --help, headed by `title`; an option may be of one of the agent's groups, too.
    `variables`: of the environment alone, without a flag; their text is among the values by their name."""

    group: str
    title: str
    options: tuple[Option, ...] = ()
    variables: tuple[str, ...] = ()


@runtime_checkable
class OwnFlags(Protocol):
    """A vendor with its own flags."""

    @property
    def flags(self) -> VendorFlags:
        """No name, variable or key that the agent or another vendor has."""
        ...

    @property
    def settings_type(self) -> type[Any]:
        """Of `settings`: a frozen dataclass of plain values, each with a default, so that a state file of before a
        field was added can be read. With `decides_ids: ClassVar[bool] = True` it decides names or ids, and a change of
        it waits as any other does."""
        ...

    def settings(self, values: Values) -> object:
        """What they say of the node. Raises PlanError for what cannot be."""
        ...

    def sections(self, values: Values) -> Mapping[str, Any]:
        """Which sections of the configuration they set, as a policy writes them; none where nothing was said. Raises
        PlanError for what cannot be."""
        ...
