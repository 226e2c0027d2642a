"""Flags and environment: what is wrong is named with its place, its value and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_common.address import Address, parse_address
from nodedevices_common.errors import InputError
from nodedevices_operator import settings
from support.cases import cases


def test_defaults_and_all_that_is_wrong_at_once_each_with_its_place() -> None:
    found = settings.read([], {})
    assert (found.command, found.kubeconfig) == ("run", None)
    assert (found.relist_seconds, found.retired_seconds) == (600.0, 360.0)
    assert (found.http_address, found.health_address) == (Address("", 9736), Address("", 9738))
    with pytest.raises(InputError) as caught:
        settings.read(["--http-address=9736"], {"NODEDEVICES_HEALTH_ADDRESS": "0", "KUBECONFIG": "/none"})
    assert [each.partition(":")[0] for each in caught.value.problems] == [
        "environment variable KUBECONFIG",
        "--http-address",
        "environment variable NODEDEVICES_HEALTH_ADDRESS",
    ]


def test_a_flag_is_stronger_than_its_variable(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    other.touch()
    environment = {"NODEDEVICES_LOG_LEVEL": "debug", "NODEDEVICES_NAMESPACE": "one", "KUBECONFIG": str(one)}
    found = settings.read(["--namespace=other", f"--kubeconfig={other}"], environment)
    assert (found.log_level, found.namespace, found.kubeconfig) == ("debug", "other", str(other))
    assert settings.read([], environment).kubeconfig == str(one)


@cases(
    ("arguments", "environment", "words"),
    ([], {"NODEDEVICES_RELIST_SECONDS": "0"}, ["NODEDEVICES_RELIST_SECONDS: unknown setting"]),
    (["--log-level=loud"], {}, ["--log-level", "'loud'", "debug or info"]),
    (["--http-address=9736"], {}, ["--http-address", "'9736'", "give 127.0.0.1:PORT"]),
    ([], {"NODEDEVICES_HEALTH_ADDRESS": "here"}, ["HEALTH_ADDRESS: 'here'", "give 127.0.0.1:PORT"]),
    (["--health-address=:1"], {}, ["unknown flag; give environment variable NODEDEVICES_HEALTH_ADDRESS"]),
    ([], {"NODEDEVICES_LOG_LEVL": "debug"}, ["NODEDEVICES_LOG_LEVL", "NODEDEVICES_LOG_LEVEL"]),
    (["--loglevel=debug"], {}, ["--loglevel: unknown flag", "did you mean --log-level?"]),
    (["--kube-config", "/tmp/x"], {}, ["--kube-config: unknown flag", "did you mean --kubeconfig?"]),
    (["--zzz"], {}, ["--zzz: unknown flag; known: ", "--metrics-tls-dir"]),
    (["run", "cleanup"], {}, ["cleanup", "--help"]),
    (["clean"], {}, ["clean", "cleanup"]),
    (["--dry-run"], {}, ["--dry-run", "cleanup"]),
    (["--agents-gone"], {}, ["--agents-gone", "cleanup"]),
    (["--metrics-cert-file=/x"], {}, ["--metrics-cert-file: unknown flag; give --metrics-tls-dir"]),
    ([], {"NODEDEVICES_METRICS_TOKEN_FILE": "/x"}, ["METRICS_TOKEN_FILE: only valid with --metrics-tls-dir"]),
    (["--kubeconfig=/none"], {}, ["--kubeconfig", "'/none'", "path"]),
    ([], {"KUBECONFIG": "/none"}, ["KUBECONFIG", "'/none'"]),
    (["--namespace=Ops.Team"], {}, ["--namespace", "'Ops.Team'", "lower-case letters, digits and '-', at most 63"]),
    (["--namespace", "n" * 64], {}, ["--namespace", "at most 63"]),
    (["--namespace=-ops"], {}, ["'-ops'", "a letter or digit first and last"]),
)
def test_what_is_wrong_is_named(arguments: list[str], environment: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        settings.read(arguments, environment)
    assert [word for word in words if word not in str(caught.value)] == []


@cases("text", "127.0.0.1:0", ":9736", "[::1]:80", "localhost:65535")
def test_addresses(text: str) -> None:
    assert parse_address(text).port == int(text.rsplit(":", 1)[1])


@cases("text", "", "9736", "host", "host:", "host:port", ":70000", "::1:80", ":-1")
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse_address(text)
