"""Asking an API server without kubectl."""

from __future__ import annotations

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from support.direct import Direct, DirectError, collection, path
from support.kubectl import wait_until
from support.tlsapi import TlsApi


async def test_where_the_server_has_closed_the_connection_a_request_goes_by_a_new_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        async with TlsApi(tmp_path) as api:

            async def code() -> int:
                server = yaml.safe_load(api.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
                direct = Direct(server, ssl.create_default_context(cafile=str(api.ca)))
                with pytest.raises(DirectError, match="Unauthorized") as caught:
                    await asyncio.get_running_loop().run_in_executor(thread, direct.request, "GET", "/api")
                return caught.value.code

            assert [await code(), await code()] == [401, 401]
            await api.rotate()
            api.hand_out()
            assert await code() == 401


async def test_what_the_server_refuses_for_now_is_tried_again_when_it_says(tmp_path: Path) -> None:
    async with TlsApi(tmp_path) as api:
        server = yaml.safe_load(api.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        direct = Direct(server, ssl.create_default_context(cafile=str(api.ca)))
        api.retry_after = 1
        with ThreadPoolExecutor(1) as thread:
            answer = asyncio.get_running_loop().run_in_executor(thread, direct.request, "GET", "/api")
            await asyncio.to_thread(wait_until, "a first try", lambda: api.calls)
            api.retry_after = 0
            with pytest.raises(DirectError, match="Unauthorized"):
                await answer


def test_a_kind_is_found_by_every_word_that_kubectl_takes() -> None:
    for kind in ("Pod", "pods"):
        assert path(kind, "a", None) == "/api/v1/namespaces/default/pods/a"
        assert collection(kind, None) == "/api/v1/pods"
    for kind in ("DevicePolicy", "devicepolicies", "dp"):
        assert path(kind, "a", None, "status") == "/apis/nodedevices.io/v1alpha1/devicepolicies/a/status"
    for kind in ("NodeDevices", "nodedevices", "nd"):
        assert collection(kind, None) == "/apis/nodedevices.io/v1alpha1/nodedevices"
