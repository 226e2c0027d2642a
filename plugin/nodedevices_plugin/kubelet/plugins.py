"""DevicePlugins: sends the plan to the kubelet, one served and registered device plugin for each resource.

A plan is compared by resource name: new names are served, names that are gone are stopped (the kubelet then shows 0
allocatable, and removes the resource after 5 minutes), all others get their list renewed. Names that are gone stop
before new ones start, because kubelets identify a device by its id alone and an id must not be in two resources at
once. Where nothing is left to serve (this agent only observes from now on, or it ends), the names go to another plugin
that runs beside this one and has the same devices (hand_over).
A resource that never had a device is not registered at all: the kubelet would show `0` on nodes that have nothing.
One that loses its last device is shown empty. A resource whose list is too large for the kubelet is refused alone: it
keeps the ids that it had before, as far as they are still healthy.

A name that we stop serving is handed over to another plugin that runs here and knows its devices. Up to Kubernetes
1.36 the end of any stream of a name ends its newest registration, of any plugin, and that plugin does not notice
(registration.py). So where a vendor's plugin runs beside ours and we leave, the name would have no devices until that
plugin is restarted: when it registered after us our end takes its registration down, and when it registered before us
it has none any more. We cannot tell the two cases apart, and the same step mends both: the agent sends the kubelet the
Register for that plugin, with the request that the plugin itself would make.

From 1.37 on the kubelet keeps both registrations and promotes the one that is left. It must not get that request: it
refuses one for a socket that is connected, and forgets the client by that (1.37.2, deregisterClient in connectClient):
the end of that plugin would go unnoticed, and its devices would be offered for ever. So we ask first: where the kubelet
still lists the name when it has finished with our stream, there is nothing to hand over.

A socket does not say which plugin it belongs to, and a wrong plugin would be offered as these devices. So its name must
follow the resource's (`nvidia-gpu.sock`), and the plugin must choose our id when GetPreferredAllocation offers it
alone, and must not choose an id that does not exist.
A preference is a hint and changes nothing. ListAndWatch would: NVIDIA's plugin sends a change of health to one stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import grpc.aio
import structlog
from msgspec.structs import replace
from nodedevices_api.withheld import UNHEALTHY

from nodedevices_plugin.kubelet import rpc, sockets
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.registration import Registering, ResourcePlugin
from nodedevices_plugin.kubelet.server import SnapshotError, snapshot
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, Registration, RegistrationState

LEAVING_SECONDS = 3.0  # for a handover while the agent ends
SETTLE_SECONDS = 0.1  # the kubelet has then done with our stream; its late end would take the new registration down
CHECK_SECONDS = 1.0  # from Register to the check whether the kubelet lists its devices
ATTEMPTS = 3
IDS_TRIED = 3  # of ours; a plugin need not answer for one that is broken
PREFERRED_SECONDS = 1.0
REGISTER_SECONDS = 15.0  # the kubelet dials for up to 10 s inside Register
UNKNOWN_ID = "nodedevices-unknown-id"
ALREADY = "already connected"  # 1.37's answer, where the kubelet's list could not be read

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
        self._handing_over: set[asyncio.Task[None]] = set()

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
            if not self._stale_removed:
                self._stale_removed = True
                if removed := sockets.remove_stale(self.registering.folder):
                    log.info("removed sockets of ended processes", sockets=removed)
            for task in self._handing_over if desired else ():
                task.cancel()
            kept = {  # the kubelet reads a plugin's options once: where they change, it is registered again
                name
                for name, resource in desired.items()
                if name in self._plugins and self._plugins[name].pre_start is resource.sharing.cores
            }
            gone = [self._plugins.pop(name) for name in self._plugins.keys() - kept]
            await self._end(gone, before, leaving=not desired)
            if allow_next:
                self.registering.guard.allow_next(desired.keys() - self._plugins.keys())
            for name, encoded in shown.items():
                healthy = any(schedulable.healthy for schedulable in desired[name].ids)
                if name in self._plugins:
                    self._plugins[name].show(encoded, healthy=healthy)
                else:
                    self._plugins[name] = ResourcePlugin(
                        name, encoded, self.registering, healthy=healthy, pre_start=desired[name].sharing.cores
                    )
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

        served = (plugin.registration for name, plugin in self._plugins.items() if name not in self._refused)
        refused = (
            Registration(resource=name, state=RegistrationState.REJECTED, message=why)
            for name, why in self._refused.items()
        )
        return tuple(sorted((*served, *refused), key=lambda registration: registration.resource))

    @property
    def let_through(self) -> bool:
        """True when a resource is registered, or about to be: no other plugin serves it."""
        return any(plugin.let_through for plugin in self._plugins.values())

    async def stop(self) -> None:
        """Stop serving; the kubelet shows 0 allocatable, running pods keep their devices."""
        async with self._one_at_a_time:
            plugins, before = list(self._plugins.values()), self._shown
            self._plugins, self._shown, self._refused = {}, {}, {}
            await self._end(plugins, before, leaving=True)
            if self._handing_over:
                await asyncio.wait(self._handing_over, timeout=LEAVING_SECONDS)
            for task in self._handing_over:
                task.cancel()

    async def _end(
        self, plugins: Collection[ResourcePlugin], shown: Mapping[str, OfferedResource], *, leaving: bool
    ) -> None:
        """Stop these plugins. `leaving`: for good; a handover then runs in the background: nothing waits for another
        plugin."""
        served = [plugin.name for plugin in plugins if plugin.let_through]
        await asyncio.gather(*(plugin.stop() for plugin in plugins))
        for name in served if leaving else ():
            task = asyncio.create_task(hand_over(shown[name], self.registering), name=f"hand over {name}")
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)


def _with_health_of(now: OfferedResource, before: OfferedResource) -> OfferedResource:
    """Return the earlier resource; of its ids those are healthy that are healthy now."""
    fit = {schedulable.id for schedulable in now.ids if schedulable.healthy}
    blocked = {schedulable.id: schedulable.blocked for schedulable in now.ids if schedulable.blocked is not None}
    ids = (
        replace(schedulable, blocked=blocked.get(schedulable.id, None if schedulable.id in fit else _LIST_NOT_SENT))
        for schedulable in before.ids
    )
    return replace(before, ids=tuple(ids))


# --- the handover of a name ------------------------------------------------------------------------------------------
async def hand_over(resource: OfferedResource, registering: Registering) -> None:
    """Give the name to another plugin. Called after our own server has stopped; takes a second."""
    name, lists = resource.name, registering.guard.lists
    await asyncio.sleep(SETTLE_SECONDS)
    if await lists(name):
        await asyncio.sleep(CHECK_SECONDS)  # a busy kubelet may not have noticed yet that we have left
        if await lists(name):
            return
    for _ in range(ATTEMPTS):
        plugin = await _plugin_of(resource, registering.folder)
        if plugin is None:
            return
        request = api.RegisterRequest(version=rpc.VERSION, endpoint=plugin.name, resource_name=name)
        try:
            await rpc.register(registering.kubelet_socket, request, timeout_seconds=REGISTER_SECONDS)
        except grpc.aio.AioRpcError as error:
            if ALREADY in (error.details() or ""):
                return
            log.warning("handover failed", resource=name, socket=plugin.name, error=rpc.reason(error))
            await asyncio.sleep(CHECK_SECONDS)
            continue
        log.info("handed over to the other device plugin", resource=name, socket=plugin.name)
        await asyncio.sleep(CHECK_SECONDS)
        if await lists(name) is not False:
            return
    log.warning("the kubelet lists nothing of the other device plugin; delete its pod", resource=name)


async def _plugin_of(resource: OfferedResource, folder: Path) -> Path | None:
    """Return the socket of another plugin that knows these ids; None: no socket answers so."""
    ids = [schedulable.id for schedulable in resource.ids if schedulable.healthy][:IDS_TRIED]
    for path in sockets.of_others(folder, resource.name):
        returns_any_id = await _prefers(path, UNKNOWN_ID)
        if not returns_any_id and any([await _prefers(path, id_) for id_ in ids]):
            return path
        what = "another device plugin listens but does not know these devices"
        log.warning(what, resource=resource.name, socket=path.name)
    return None


async def _prefers(plugin: Path, id_: str) -> bool:
    try:
        return await rpc.preferred(plugin, [id_], timeout_seconds=PREFERRED_SECONDS) == (id_,)
    except grpc.aio.AioRpcError:
        return False
