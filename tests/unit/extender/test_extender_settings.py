"""Flags and variables of `nodedevices-operator extender`."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_common.address import Address
from nodedevices_common.errors import InputError
from nodedevices_common.guard import Certificate
from nodedevices_operator.extender import settings
from nodedevices_operator.extender.server import ServerLimits
from nodedevices_operator.main import main
from support.cases import cases


def test_without_flags_it_serves_loopback_alone() -> None:
    found = settings.read([], {})
    assert (found.address, found.certificate) == (Address("127.0.0.1", 9739), None)
    assert (found.http_address, found.health_address) == (Address("", 9736), Address("", 9738))


@cases("address", ["127.0.0.1:1", "127.0.0.9:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_tls(address: str) -> None:
    assert settings.read([f"--address={address}"], {}).certificate is None


def test_any_address_with_tls_or_where_something_else_protects_it(tmp_path: Path) -> None:
    for name in ("crt", "key", "ca"):
        (tmp_path / name).touch()
    files = [f"--tls-cert-file={tmp_path / 'crt'}", f"--tls-key-file={tmp_path / 'key'}"]
    anybody = settings.read(["--address=:9739", *files, "--any-client"], {}).certificate
    assert anybody == Certificate(tmp_path / "crt", tmp_path / "key")
    assert settings.read(["--address=127.0.0.1:9739", *files], {}).certificate == anybody
    both = settings.read(["--address=:9739", *files, f"--tls-client-ca-file={tmp_path / 'ca'}"], {}).certificate
    assert both is not None
    assert both.client_ca == tmp_path / "ca"
    variables = {"NODEDEVICES_ADDRESS": ":9739", "NODEDEVICES_INSECURE_HTTP": "true"}
    assert settings.read([], variables).address == Address("", 9739)


@cases(
    ("arguments", "words"),
    [
        (["--address=:9739"], ["--address", "':9739'", "not a loopback address", "--tls-cert-file", "--insecure-http"]),
        (["--address=10.0.0.1:9739"], ["'10.0.0.1:9739'", "no TLS"]),
        (
            ["--address=:9739", "--tls-cert-file=/etc/passwd", "--tls-key-file=/etc/passwd"],
            ["--address", "':9739'", "clients need no certificate", "--tls-client-ca-file", "--any-client"],
        ),
        (["--address=9739"], ["--address", "'9739'", "host:port"]),
        (["--tls-cert-file=/none"], ["--tls-cert-file", "'/none'", "not a file"]),
        (["--tls-cert-file=/etc/passwd"], ["--tls-key-file", "go together"]),
        (["--tls-key-file=/etc/passwd"], ["--tls-cert-file", "go together"]),
        (["--tls-client-ca-file=/etc/passwd"], ["go together"]),
        (["--kubeconfig=/none"], ["--kubeconfig", "'/none'"]),
        (["--relist-seconds=5"], ["--relist-seconds: unknown flag"]),
        (["--insecure-http=maybe"], ["--insecure-http", "true or false"]),
        (["run"], ["run", "extender --help"]),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        settings.read(arguments, {})
    assert all(word in str(caught.value) for word in words)


def test_the_command_comes_first_and_what_is_wrong_ends_it_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extender", "--address=:9739"]) == 2
    assert "not a loopback address" in capsys.readouterr().err
    assert main(["--log-level=info", "extender"]) == 2
    assert "extender before all flags" in capsys.readouterr().err


def test_bodies_are_small_unless_whole_nodes_are_sent() -> None:
    assert settings.read([], {}).limits == ServerLimits()
    assert settings.read(["--whole-nodes"], {}).limits.body_bytes > 10 * ServerLimits().body_bytes


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.read(["--help"], {})
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for flag in (
        "--address",
        "--tls-cert-file",
        "--tls-key-file",
        "--tls-client-ca-file",
        "--insecure-http",
        "--any-client",
    ):
        assert flag in shown
