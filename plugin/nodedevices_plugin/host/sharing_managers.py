"""The managers of sharing modes' helpers on the node: one line for each mode that has helpers.

Only wiring: the modes themselves (package sharing) decide, and do not import this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from nodedevices_plugin.host.mps_daemons import MpsDaemons
from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.base import Helper, HelperFacts, HelperManager

# The node's flags, its own worker thread, and what to call on the loop when its facts are others -> the manager.
ManagerFactory = Callable[[Local, Worker, Callable[[], None]], HelperManager]

MANAGERS: Mapping[str, ManagerFactory] = MappingProxyType(
    {mps.NAME: lambda local, worker, on_change: MpsDaemons(Path(local.mps_dir), worker=worker, on_change=on_change)}
)


class Managers:
    """The managers of all modes. `facts`: what they say together."""

    def __init__(
        self,
        local: Local,
        *,
        on_change: Callable[[], None],
        managers: Mapping[str, ManagerFactory] = MANAGERS,
    ) -> None:
        """`managers`: by the mode's name."""
        self.workers = {name: Worker(name) for name in managers}
        self.by_mode: Mapping[str, HelperManager] = {
            name: make(local, self.workers[name], on_change) for name, make in managers.items()
        }

    @property
    def facts(self) -> HelperFacts:
        return merged(each.facts for each in self.by_mode.values())

    def want(self, helpers: tuple[Helper, ...] | None) -> None:
        """Give each manager the helpers of its mode. None: not known yet, and running ones stay."""
        for name, manager in self.by_mode.items():
            manager.want(None if helpers is None else tuple(each for each in helpers if each.mode == name))


def merged(facts: Iterable[HelperFacts]) -> HelperFacts:
    each_one = tuple(facts)
    return HelperFacts(
        answers={key: answer for each in each_one for key, answer in each.answers.items()},
        processes={resource: process for each in each_one for resource, process in each.processes.items()},
        before=tuple(helper for each in each_one for helper in each.before),
        taken=frozenset(id_ for each in each_one for id_ in each.taken),
    )
