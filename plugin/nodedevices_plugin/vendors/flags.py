"""A vendor's own flags: settings of the node that only one maker's devices need.

A vendor adds options to the agent's table (settings.options): flags, their variables, their keys in the configuration
file. They are read, checked and refused as the agent's own are. The vendor translates their values: to sections of the
node's configuration, which a policy replaces, and to a value of its own type, which it gets with every decision
(vendors.base.NodeView.local). That value is part of the configuration: it is compared, and saved in the state file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from nodedevices_common.options import Option, Values


class FlagRule(Struct, frozen=True, kw_only=True):
    """Where `when` is given, one of `needs` has to be, and none of `excludes` may be: terms (settings.together)."""

    when: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


def _no_sections(values: Values) -> Mapping[str, Any]:
    return {}


class VendorFlags(Struct, frozen=True, kw_only=True):
    """`group`: the group of its options in --help, headed by `title`; an option may be in one of the agent's groups,
    too. Names, variables and keys must be unique among those of the agent and all vendors. `variables`: environment
    variables without a flag; `settings` finds their text by their name. `rules` and `absolute`, options whose value is
    an absolute path: what `settings` refuses, for the chart.

    settings: returns the vendor's settings for these values, a `settings_type`: a frozen dataclass of plain values,
    each with a default, so that a state file from before a new field can be read. With `decides_ids: ClassVar[bool] =
    True` it decides names or ids, and a change of it waits for pods as any other does. sections: returns the sections
    of the configuration that the values set, as a policy writes them; none without a value. Both raise PlanError for
    values that are not possible.
    """

    group: str
    title: str
    settings: Callable[[Values], object]
    settings_type: type[Any]
    sections: Callable[[Values], Mapping[str, Any]] = _no_sections
    options: tuple[Option, ...] = ()
    variables: tuple[str, ...] = ()
    rules: tuple[FlagRule, ...] = ()
    absolute: tuple[str, ...] = ()
