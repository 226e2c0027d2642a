"""Flags and variables of `nodedevices-operator extender`."""

from __future__ import annotations

import pytest
from nodedevices_common.address import Address
from nodedevices_common.errors import InputError
from nodedevices_operator.extender import settings
from nodedevices_operator.extender.server import ServerLimits
from nodedevices_operator.main import main
from support.cases import cases


def test_without_flags_it_serves_loopback_alone_and_bodies_are_small() -> None:
    found = settings.read([], {})
    assert found.address == Address("127.0.0.1", 9739)
    assert (found.http_address, found.health_address) == (Address("", 9736), Address("", 9738))
    assert settings.read([], {}).limits == ServerLimits()
    assert settings.read(["--whole-nodes"], {}).limits.body_bytes > 10 * ServerLimits().body_bytes


@cases("address", "127.0.0.1:1", "127.0.0.9:1", "[::1]:1", "localhost:1")
def test_any_loopback_address_will_do(address: str) -> None:
    assert settings.read([f"--address={address}"], {}).address.port == 1


@cases(
    ("arguments", "words"),
    (["--address=:9739"], ["--address: ':9739' is not host:port on loopback", "; give 127.0.0.1:9739"]),
    (["--address=10.0.0.1:9739"], ["'10.0.0.1:9739' is not host:port on loopback"]),
    (["--address=[::]:9739"], ["'[::]:9739' is not"]),
    (["--address=localhost.example.com:1"], ["is not host:port on loopback"]),
    (["--address=9739"], ["--address: '9739' is not host:port"]),
    (["--tls-dir=/none"], ["--tls-dir: unknown flag"]),
    (["--kubeconfig=/none"], ["--kubeconfig", "'/none'"]),
    (["--relist-seconds=5"], ["--relist-seconds: unknown flag"]),
    (["--whole-nodes=maybe"], ["--whole-nodes", "true or false"]),
    (["run"], ["run", "extender --help"]),
)
def test_what_is_wrong_is_named(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        settings.read(arguments, {})
    assert all(word in str(caught.value) for word in words)


def test_the_command_comes_first_and_what_is_wrong_ends_it_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extender", "--address=:9739"]) == 2
    assert "not host:port on loopback" in capsys.readouterr().err
    assert main(["--log-level=info", "extender"]) == 2
    assert "extender before all flags" in capsys.readouterr().err


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.read(["--help"], {})
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for flag in ("--address", "--whole-nodes"):
        assert flag in shown
