"""The port of a vendor's own flags: settings of the node that only one maker's devices need.

A vendor adds options to the agent's table (settings.options): flags, their variables, their keys in the configuration
file. They are read, checked and refused as the agent's own are. The vendor translates their values: to sections of the
node's configuration, which a policy replaces, and to a value of its own type, which it gets with every decision
(vendors.base.NodeView.local). That value is part of the configuration: it is compared, and saved in the state file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from nodedevices_common.options import Option, Values

from nodedevices_plugin.model.optional import OptionalInterface


class FlagRule(Struct, frozen=True, kw_only=True):
    """Where `when` is given, one of `needs` has to be, and none of `excludes` may be: terms (settings.together)."""

    when: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


class VendorFlags(Struct, frozen=True, kw_only=True):
    """`group`: the group of its options in --help, headed by `title`; an option may be in one of the agent's groups,
    too. `variables`: environment variables without a flag; `settings` finds their text by their name. `rules` and
    `absolute`, options whose value is an absolute path: what `settings` refuses, for the chart."""

    group: str
    title: str
    options: tuple[Option, ...] = ()
    variables: tuple[str, ...] = ()
    rules: tuple[FlagRule, ...] = ()
    absolute: tuple[str, ...] = ()


@runtime_checkable
class OwnFlags(OptionalInterface, Protocol):
    """A vendor with its own flags."""

    @property
    def flags(self) -> VendorFlags:
        """Names, variables and keys must be unique among those of the agent and all vendors."""
        ...

    @property
    def settings_type(self) -> type[Any]:
        """The type of `settings`: a frozen dataclass of plain values, each with a default, so that a state file from
        before a new field can be read. With `decides_ids: ClassVar[bool] = True` it decides names or ids, and a change
        of it waits for pods as any other does."""
        ...

    def settings(self, values: Values) -> object:
        """Return the vendor's settings for these values. Raises PlanError for values that are not possible."""
        ...

    def sections(self, values: Values) -> Mapping[str, Any]:
        """Return the sections of the configuration that the values set, as a policy writes them; none without a value.
        Raises PlanError for values that are not possible."""
        ...
