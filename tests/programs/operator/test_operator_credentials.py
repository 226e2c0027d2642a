"""Tokens that are renewed and a CA that is replaced under the running operator: its client, and kopf's watches."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from nodedevices_operator.kube import client as client_module
from nodedevices_operator.kube.client import KubeClient, load_credentials
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.kube.watch import Watch
from nodedevices_operator.records.names import (
    NODE_DEVICES,
    NODES,
    POLICIES,
    named,
    namespaced,
    pod_path,
    resource_of,
)
from support.patience import PATIENCE_SECONDS
from support.tlsapi import TlsApi

KINDS = {"nodes", "nodedevices", "devicepolicies"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[TlsApi]:
    async with TlsApi(tmp_path) as serving:
        yield serving


@pytest.fixture
async def kube(api: TlsApi) -> AsyncIterator[KubeClient]:
    """It looks at its files twenty times a second; its clock runs fast, so that it reads them again as often."""
    path = str(api.kubeconfig)
    client = KubeClient(path, await load_credentials(path), lambda: 20 * time.monotonic())
    looking = asyncio.create_task(client.watch_credentials(0.05))
    yield client
    looking.cancel()
    await client.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():  # noqa: ASYNC110  a test's patience
            await asyncio.sleep(0.05)


async def answers(kube: KubeClient) -> None:
    """Wait until the client gets through."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(KubeError):
                await kube.get(NODES)
                return
            await asyncio.sleep(0.1)


async def test_a_renewed_token_is_used_by_the_very_call_that_was_refused(api: TlsApi, kube: KubeClient) -> None:
    await kube.get(NODES)
    for token in ("second", "third"):
        api.token = token
        api.hand_out()
        await asyncio.sleep(0.06)
        await kube.get(NODES)


async def test_every_request_is_observed_with_verb_resource_status_and_duration(api: TlsApi, kube: KubeClient) -> None:
    seen: list[tuple[str, str, int]] = []
    kube.requested = lambda verb, resource, status, seconds: seen.append(
        (verb, resource, status if seconds > 0 else -1)
    )
    await kube.get(NODES)
    with pytest.raises(KubeError):
        await kube.json_patch(f"{named(NODES, 'n1')}/status", [])  # this one answers nothing but GET
    await api.stop()
    with pytest.raises(KubeError):
        await kube.get(named(NODES, "n1"))
    assert seen == [("get", "nodes", 200), ("patch", "nodes/status", 405), ("get", "nodes", 0)]


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (NODES, "nodes"),
        (f"{named(NODES, 'a/b')}/status", "nodes/status"),
        (NODE_DEVICES, "nodedevices"),
        (f"{named(POLICIES, 'p')}/status", "devicepolicies/status"),
        (pod_path("ml", "train"), "pods"),
        (f"{pod_path('ml', 'train')}/eviction", "pods/eviction"),
        (namespaced("ml", "events"), "events"),
        (namespaced("ml", "configmaps", "c"), "configmaps"),
    ],
)
def test_a_path_is_counted_by_its_resource_and_never_by_a_name(path: str, resource: str) -> None:
    assert resource_of(path) == resource


async def test_a_token_that_is_refused_for_good_is_said_as_such(api: TlsApi, kube: KubeClient) -> None:
    api.token = "another"
    await asyncio.sleep(0.06)
    with pytest.raises(KubeError) as refused:
        await kube.get(NODES)
    assert (refused.value.status, api.refused) == (401, 1)


async def test_a_new_ca_is_trusted_without_a_restart(api: TlsApi, kube: KubeClient) -> None:
    notified: list[bool] = []
    kube.trust_changed = lambda: notified.append(True)
    await kube.get(NODES)
    await api.rotate()
    with pytest.raises(KubeError, match="certificate"):
        await kube.get(NODES)  # the new CA is not known yet
    api.hand_out()
    await answers(kube)
    assert notified == [True]


async def test_a_ca_file_that_cannot_be_used_leaves_the_one_before_in_use(api: TlsApi, kube: KubeClient) -> None:
    for broken in ("", "-----BEGIN CERTIFICATE-----\nhalf"):
        api.ca.write_text(broken)
        await asyncio.sleep(0.2)
        await kube.get(NODES)
    api.hand_out()
    await asyncio.sleep(0.2)
    await kube.get(NODES)


async def test_the_watches_follow_a_new_token_and_a_new_ca(api: TlsApi, kube: KubeClient) -> None:
    ended: list[str] = []
    watch = Watch(str(api.kubeconfig), lambda *_: None, ended.append)
    kube.trust_changed = lambda: watch.restart("another CA")
    watch.start()
    try:
        await until(lambda: set(api.watches) == KINDS)
        assert watch.running
        api.watches.clear()
        api.token = "second"
        api.hand_out()
        await api.rotate()
        await asyncio.sleep(0.5)
        api.hand_out()
        await until(lambda: ended == ["another CA"])
        await until(lambda: not watch.running)
        watch.start()
        await until(lambda: set(api.watches) == KINDS)
    finally:
        await watch.stop()
        gc.collect()  # what is left unclosed is this test's


async def test_after_too_many_requests_nothing_is_sent_until_the_time_is_over(api: TlsApi) -> None:
    now = [100.0]
    client = KubeClient(str(api.kubeconfig), await load_credentials(str(api.kubeconfig)), lambda: now[0])
    api.retry_after = 30
    with pytest.raises(KubeError) as refused:
        await client.get(NODES)
    assert refused.value.retry_after == 30
    calls, api.retry_after = api.calls, 0
    now[0] += 10
    with pytest.raises(KubeError) as waiting:
        await client.get(NODES)
    assert (waiting.value.status, waiting.value.retry_after, api.calls) == (429, 20, calls)
    now[0] += 20
    await client.get(NODES)
    await client.close()


async def test_nothing_but_events_waits_where_too_many_events_were_written(api: TlsApi) -> None:
    client = KubeClient(str(api.kubeconfig), await load_credentials(str(api.kubeconfig)))
    api.retry_after = 30
    with pytest.raises(KubeError) as refused:
        await client.create("/api/v1/namespaces/ml/events", {"kind": "Event"})
    assert refused.value.retry_after == 30
    api.retry_after = 0
    await client.get(NODES)
    await client.close()


async def test_a_watch_ends_and_can_begin_anew_when_its_credentials_have_been_replaced(
    api: TlsApi, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiohttp 3.14 wakes no reader whose session is closed: the watch of rejected pods stood still until a restart."""
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(client_module, "ANSWER_SECONDS", 0.1)

    async def watch() -> None:
        async for _ in kube.watch(NODES, {}):
            pass

    watching = asyncio.create_task(watch())
    await until(lambda: bool(api.watches))
    api.token = "second"
    api.hand_out()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await watching
    monkeypatch.undo()
    await kube.get(NODES)
