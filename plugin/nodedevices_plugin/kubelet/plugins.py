"""DevicePlugins: sends the plan to the kubelet, one served and registered device plugin for each resource.

A plan is compared by resource name: new names are served, names that are gone are stopped (the kubelet then shows 0
allocatable, and removes the resource after 5 minutes), all others get their list renewed. Names that are gone stop
before new ones start, because kubelets identify a device by its id alone and an id must not be in two resources at
once. Where nothing is left to serve (this agent only observes from now on, or it ends), the names go to another plugin
that runs beside this one and has the same devices (handover).
A resource that never had a device is not registered at all: the kubelet would show `0` on nodes that have nothing.
One that loses its last device is shown empty. A resource whose list is too large for the kubelet is refused alone: it
keeps the ids that it had before, as far as they are still healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import structlog
from msgspec.structs import replace
from nodedevices_api.withheld import UNHEALTHY

from nodedevices_plugin.kubelet import sockets
from nodedevices_plugin.kubelet.handover import hand_over
from nodedevices_plugin.kubelet.registration import Registering, ResourcePlugin
from nodedevices_plugin.kubelet.server import SnapshotError, snapshot
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, Registration, RegistrationState

LEAVING_SECONDS = 3.0  # for a handover while the agent ends

log = structlog.get_logger(__name__)

_LIST_NOT_SENT = Blocked(reason=UNHEALTHY, message="no longer in the list of this resource, which cannot be sent")


class DevicePlugins:
    """The kubelet's side of the agent. Made and used on one event loop; nothing happens before the first plan.

    The kubelet's calls are answered in threads, also while the loop is busy.
    """

    def __init__(self, registering: Registering) -> None:
        self.registering = registering
        self._plugins: dict[str, ResourcePlugin] = {}
        self._shown: dict[str, OfferedResource] = {}  # what each of them shows
        self._refused: dict[str, str] = {}  # resources whose list is too large for the kubelet: name -> why
        self._one_at_a_time = asyncio.Lock()
        self._stale_removed = False
        self._handing_over: set[asyncio.Task[bool]] = set()

    async def set_plan(self, plan: Plan, *, allow_next: bool = False) -> None:
        """Send the kubelet this plan.

        `allow_next`: this plan is to be served although another plugin serves these names; they are taken over from it.
        Returns when the resources that are gone are stopped, at most about a second each; registering goes on by
        itself, see `registrations`.
        """
        async with self._one_at_a_time:
            desired = {
                resource.name: resource
                for resource in plan.resources
                if resource.ids or resource.retained or resource.name in self._plugins
            }
            changed = {name: resource for name, resource in desired.items() if resource != self._shown.get(name)}
            refused_before = self._refused
            shown = self._encoded(changed, desired)
            before, self._shown = self._shown, desired
            self._remove_stale_sockets()
            for task in self._handing_over if desired else ():
                task.cancel()
            kept = {  # the kubelet reads a plugin's options once: where they change, it is registered again
                name
                for name, resource in desired.items()
                if name in self._plugins and self._plugins[name].pre_start is resource.sharing.cores
            }
            gone = [self._plugins.pop(name) for name in self._plugins.keys() - kept]
            await self._end(gone, before, hand_over=not desired)
            if allow_next:
                self.registering.guard.allow_next(desired.keys() - self._plugins.keys())
            for name, encoded in shown.items():
                healthy = any(schedulable.healthy for schedulable in desired[name].ids)
                if name in self._plugins:
                    self._plugins[name].show(encoded, healthy=healthy)
                else:
                    pre_start = desired[name].sharing.cores
                    plugin = ResourcePlugin(name, encoded, self.registering, healthy=healthy, pre_start=pre_start)
                    self._plugins[name] = plugin
                    plugin.start()
            if gone or self._refused != refused_before:
                self.registering.on_change()

    def _encoded(self, changed: Mapping[str, OfferedResource], desired: dict[str, OfferedResource]) -> dict[str, bytes]:
        """The lists of these. One that cannot be is refused, and `desired` has what stays of it: the ids that the
        kubelet has, with the health of now."""
        shown, self._refused = {}, {}
        for name, resource in changed.items():
            try:
                shown[name] = snapshot(resource)
            except SnapshotError as error:
                log.error("resource refused, keeping what the kubelet has of it", resource=name, error=str(error))  # noqa: TRY400
                self._refused[name] = str(error)
                del desired[name]
                if name in self._shown:
                    desired[name] = _with_health_of(resource, self._shown[name])
                    shown[name] = snapshot(desired[name])
        return shown

    def show_again(self) -> bool:
        """Send the kubelet the list of one resource once more: at each list it writes its checkpoint. False where no
        resource of ours is registered."""
        return any(plugin.show_again() for plugin in self._plugins.values())

    def registrations(self) -> tuple[Registration, ...]:
        """Return the state of each offered resource's registration, sorted by name."""

        def registration(name: str) -> Registration:
            if name not in self._refused:
                return self._plugins[name].registration
            return Registration(resource=name, state=RegistrationState.REJECTED, message=self._refused[name])

        return tuple(registration(name) for name in sorted({*self._plugins, *self._refused}))

    @property
    def let_through(self) -> bool:
        """True when a resource is registered, or about to be: no other plugin serves it."""
        return any(plugin.let_through for plugin in self._plugins.values())

    async def stop(self) -> None:
        """Stop serving; the kubelet shows 0 allocatable, running pods keep their devices."""
        async with self._one_at_a_time:
            plugins, before = list(self._plugins.values()), self._shown
            self._plugins, self._shown, self._refused = {}, {}, {}
            await self._end(plugins, before, hand_over=True)
            if self._handing_over:
                await asyncio.wait(self._handing_over, timeout=LEAVING_SECONDS)
            for task in self._handing_over:
                task.cancel()

    async def _end(
        self, plugins: Collection[ResourcePlugin], shown: Mapping[str, OfferedResource], *, hand_over: bool
    ) -> None:
        """Stop these plugins. A handover runs in the background: nothing waits for another plugin."""
        served = [plugin.name for plugin in plugins if plugin.let_through]
        await asyncio.gather(*(plugin.stop() for plugin in plugins))
        for name in served if hand_over else ():
            task = asyncio.create_task(self._hand_over(shown[name]), name=f"hand over {name}")
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self, resource: OfferedResource) -> bool:
        healthy = [schedulable.id for schedulable in resource.ids if schedulable.healthy]
        try:
            return await hand_over(
                resource.name,
                healthy,
                folder=self.registering.folder,
                kubelet_socket=self.registering.kubelet_socket,
                lists=self.registering.guard.lists,
            )
        except OSError as error:
            log.warning("handover failed", resource=resource.name, error=str(error))
            return False

    def _remove_stale_sockets(self) -> None:
        if not self._stale_removed:
            self._stale_removed = True
            if removed := sockets.remove_stale(self.registering.folder):
                log.info("removed sockets of ended processes", sockets=removed)


def _with_health_of(now: OfferedResource, before: OfferedResource) -> OfferedResource:
    """Return the earlier resource; of its ids those are healthy that are healthy now."""
    fit = {schedulable.id for schedulable in now.ids if schedulable.healthy}
    blocked = {schedulable.id: schedulable.blocked for schedulable in now.ids if schedulable.blocked is not None}
    ids = (
        replace(schedulable, blocked=blocked.get(schedulable.id, None if schedulable.id in fit else _LIST_NOT_SENT))
        for schedulable in before.ids
    )
    return replace(before, ids=tuple(ids))
