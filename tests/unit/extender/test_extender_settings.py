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
from support.there import there


def test_without_flags_it_serves_loopback_alone_and_bodies_are_small() -> None:
    found = settings.read([], {})
    assert (found.address, found.certificate) == (Address("127.0.0.1", 9739), None)
    assert (found.http_address, found.health_address) == (Address("", 9736), Address("", 9738))
    assert settings.read([], {}).limits == ServerLimits()
    assert settings.read(["--whole-nodes"], {}).limits.body_bytes > 10 * ServerLimits().body_bytes


@cases("address", "127.0.0.1:1", "127.0.0.9:1", "[::1]:1", "localhost:1")
def test_loopback_needs_no_tls(address: str) -> None:
    assert settings.read([f"--address={address}"], {}).certificate is None


def test_any_address_with_tls_or_where_something_else_protects_it(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    folder = f"--tls-dir={tmp_path}"
    anybody = settings.read(["--address=:9739", folder, "--any-client"], {}).certificate
    assert anybody == Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    for address in (":9739", "127.0.0.1:9739"):
        with pytest.raises(InputError, match=r"--tls-dir: .*/ca.crt: not a file; .* or --any-client"):
            settings.read([f"--address={address}", folder], {})
    (tmp_path / "ca.crt").touch()
    both = there(settings.read(["--address=:9739", folder], {}).certificate)
    assert both.client_ca == tmp_path / "ca.crt"
    assert settings.read(["--address=:9739", folder, "--any-client"], {}).certificate == anybody
    variables = {"NODEDEVICES_ADDRESS": ":9739", "NODEDEVICES_INSECURE_HTTP": "true"}
    assert settings.read([], variables).address == Address("", 9739)


@cases(
    ("arguments", "words"),
    (["--address=:9739"], ["--address", "':9739'", "not a loopback address", "--tls-dir", "--insecure-http"]),
    (["--address=10.0.0.1:9739"], ["'10.0.0.1:9739'", "no TLS"]),
    (["--address=9739"], ["--address", "'9739'", "host:port"]),
    (["--tls-dir=/none"], ["--tls-dir: /none/tls.crt, /none/tls.key, /none/ca.crt: not a file"]),
    (["--tls-client-ca-file=/x"], ["--tls-client-ca-file: unknown flag; give --tls-dir"]),
    (["--kubeconfig=/none"], ["--kubeconfig", "'/none'"]),
    (["--relist-seconds=5"], ["--relist-seconds: unknown flag"]),
    (["--insecure-http=maybe"], ["--insecure-http", "true or false"]),
    (["run"], ["run", "extender --help"]),
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


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.read(["--help"], {})
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for flag in (
        "--address",
        "--tls-dir",
        "--insecure-http",
        "--any-client",
    ):
        assert flag in shown
