"""Hands a name that we stop serving to another plugin that runs here and knows its devices.

Up to Kubernetes 1.36 the end of any stream of a name ends its newest registration, of any plugin, and that plugin does
not notice (registration.py). So where a vendor's plugin runs beside ours and we leave, the name would have no devices
until that plugin is restarted: when it registered after us our end takes its registration down, and when it registered
before us it has none any more. We cannot tell the two cases apart, and the same step mends both: the agent sends the
kubelet the Register for that plugin, with the request that the plugin itself would make.

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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc.aio
import structlog

from nodedevices_plugin.kubelet import rpc, sockets
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api

SETTLE_SECONDS = 0.1  # the kubelet has then done with our stream; its late end would take the new registration down
CHECK_SECONDS = 1.0  # from Register to the check whether the kubelet lists its devices
ATTEMPTS = 3
IDS_TRIED = 3  # of ours; a plugin need not answer for one that is broken
PREFERRED_SECONDS = 1.0
REGISTER_SECONDS = 15.0  # the kubelet dials for up to 10 s inside Register
UNKNOWN_ID = "nodedevices-unknown-id"
ALREADY = "already connected"  # 1.37's answer, where the kubelet's list could not be read

log = structlog.get_logger(__name__)


async def hand_over(
    resource: str,
    ids: Sequence[str],
    *,
    folder: Path,
    kubelet_socket: Path,
    lists: Callable[[str], Awaitable[bool | None]],
) -> bool:
    """Return whether another plugin has the name again. Called after our own server has stopped; takes a second."""
    await asyncio.sleep(SETTLE_SECONDS)
    if await lists(resource):
        await asyncio.sleep(CHECK_SECONDS)  # a busy kubelet may not have noticed yet that we have left
        if await lists(resource):
            return True
    for _ in range(ATTEMPTS):
        plugin = await _plugin_of(resource, ids, folder)
        if plugin is None:
            return False
        request = api.RegisterRequest(version=rpc.VERSION, endpoint=plugin.name, resource_name=resource)
        try:
            await rpc.register(kubelet_socket, request, timeout_seconds=REGISTER_SECONDS)
        except grpc.aio.AioRpcError as error:
            if ALREADY in (error.details() or ""):
                return True
            log.warning("handover failed", resource=resource, socket=plugin.name, error=rpc.reason(error))
            await asyncio.sleep(CHECK_SECONDS)
            continue
        log.info("handed over to the other device plugin", resource=resource, socket=plugin.name)
        await asyncio.sleep(CHECK_SECONDS)
        if await lists(resource) is not False:
            return True
    log.warning("the kubelet lists nothing of the other device plugin; delete its pod", resource=resource)
    return False


async def _plugin_of(resource: str, ids: Sequence[str], folder: Path) -> Path | None:
    """Return the socket of another plugin that knows these ids; None: no socket answers so."""
    for path in sockets.of_others(folder, resource):
        returns_any_id = await _prefers(path, UNKNOWN_ID)
        if not returns_any_id and any([await _prefers(path, id_) for id_ in ids[:IDS_TRIED]]):
            return path
        log.warning(
            "another device plugin listens but does not know these devices", resource=resource, socket=path.name
        )
    return None


async def _prefers(plugin: Path, id_: str) -> bool:
    try:
        return await rpc.preferred(plugin, [id_], timeout_seconds=PREFERRED_SECONDS) == (id_,)
    except grpc.aio.AioRpcError:
        return False
