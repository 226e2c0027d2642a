"""Metrics by TLS, for those alone who bring the token: files that change, and files that cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nodedevices_common.address import Address
from nodedevices_common.guard import CHECK_SECONDS, Guard
from nodedevices_common.http import HttpServer, Response, servers
from support.agentprocess import AgentProcess
from support.authority import self_signed
from support.clock import Clock

TOKEN = "not-for-everybody"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two certificates, each in a folder with its key."""
    found = {name: tmp_path_factory.mktemp(name) for name in ("old", "new")}
    for name, folder in found.items():
        self_signed(folder, name)
    return found


@pytest.fixture
def secret(pairs: dict[str, Path], tmp_path: Path) -> Path:
    folder = tmp_path / "secret"
    shutil.copytree(pairs["old"], folder)
    (folder / "token").write_text(f"{TOKEN}\n")
    return folder


def guard_of(secret: Path, clock: Clock | None = None) -> Guard:
    return Guard.from_folder(str(secret), str(secret / "token"), clock=clock or Clock())  # type: ignore[return-value]


@contextlib.asynccontextmanager
async def serving(guard: Guard | None) -> AsyncIterator[HttpServer]:
    [server] = servers(
        Address("127.0.0.1", 0),
        None,
        scrape=lambda: b"up 1\n" * 100_000,
        checks={"/healthz": lambda: Response(200, b"ok")},
        guard=guard,
    )
    task = asyncio.create_task(server.run())
    await asyncio.sleep(0)
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.wait([task])


async def asked(port: int | None, path: str, authority: Path | None, *headers: str) -> tuple[str, int]:
    """The status and the size of the body; ("", 0): the connection was closed without an answer."""
    context = ssl.create_default_context(cafile=authority / "tls.crt") if authority is not None else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write("\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", "")).encode())
        answer = await reader.read()
    except ConnectionResetError:
        return "", 0
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return " ".join(head.decode().split("\r\n")[0].split(" ")[1:2]), len(body)


async def test_metrics_are_served_by_tls_to_those_who_bring_the_token(secret: Path, pairs: dict[str, Path]) -> None:
    async with serving(guard_of(secret)) as server:
        for given in (f"Authorization: Bearer {TOKEN}", f"authorization:bearer  {TOKEN} "):
            assert await asked(server.port, "/metrics", pairs["old"], given) == ("200", 500_000)
        for given in (
            "X: y",
            "Authorization: Bearer",
            f"Authorization: Bearer {TOKEN}x",
            f"Authorization: Basic {TOKEN}",
        ):
            status, _ = await asked(server.port, "/metrics", pairs["old"], given)
            assert status == "401", given
        assert await asked(server.port, "/healthz", pairs["old"]) == ("200", 2)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asked(server.port, "/metrics", pairs["new"])
        assert await asked(server.port, "/metrics", None, f"Authorization: Bearer {TOKEN}") == ("", 0), "without TLS"


async def test_files_that_change_are_read_again_and_those_that_cannot_be_used_leave_what_was(
    secret: Path, pairs: dict[str, Path]
) -> None:
    clock = Clock()
    async with serving(guard_of(secret, clock)) as server:

        async def token_of(pair: str, token: str) -> str:
            clock.now += CHECK_SECONDS
            return (await asked(server.port, "/metrics", pairs[pair], f"Authorization: Bearer {token}"))[0]

        assert await token_of("old", TOKEN) == "200"
        shutil.copyfile(pairs["new"] / "tls.crt", secret / "tls.crt")  # and not its key yet
        assert await token_of("old", TOKEN) == "200"
        shutil.copyfile(pairs["new"] / "tls.key", secret / "tls.key")
        (secret / "token").write_text("another-one")
        assert await token_of("new", TOKEN) == "401"
        assert await token_of("new", "another-one") == "200"
        (secret / "token").write_text("")
        assert await token_of("new", "another-one") == "200", "an empty token is nobody's"


@pytest.mark.parametrize("lacking", ["tls.crt", "tls.key", "token"])
def test_nothing_is_served_without_a_file_that_is_configured(secret: Path, lacking: str) -> None:
    (secret / lacking).unlink()
    server = HttpServer("metrics", Address("127.0.0.1", 0), {}, guard=guard_of(secret))
    with pytest.raises(OSError, match=f"{lacking} is not there"):
        server.listen()
    assert server.port is None


def test_an_empty_token_is_refused_at_the_start(secret: Path) -> None:
    (secret / "token").write_text(" \n")
    with pytest.raises(OSError, match="is empty"):
        guard_of(secret).load()


def test_without_a_certificate_there_is_no_guard() -> None:
    assert Guard.from_folder(None, None) is None


async def test_the_agent_serves_its_metrics_so_where_flags_say_so(
    secret: Path, pairs: dict[str, Path], tmp_path: Path
) -> None:
    flags = (f"--metrics-tls-dir={secret}", f"--metrics-token-file={secret / 'token'}")
    with AgentProcess(tmp_path, arguments=("--standalone", *flags)) as agent:
        await agent.until(lambda: agent.lines("serving metrics and health"))
        port = agent.lines("serving metrics and health")[-1]["port"]
        status, size = await asked(port, "/metrics", pairs["old"], f"Authorization: Bearer {TOKEN}")
        assert (status, size > 1000) == ("200", True)
        assert (await asked(port, "/metrics", pairs["old"]))[0] == "401"
        health = agent.lines("serving the kubelet's probes")[-1]["port"]
        assert (await asked(health, "/healthz", None))[0] == "200", "the kubelet's probes are as before"
