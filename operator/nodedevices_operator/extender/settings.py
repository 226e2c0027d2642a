"""The flags and variables of `nodedevices-operator extender`. What is wrong ends the program with status 2.

Without TLS it listens on loopback only, beside the scheduler: whoever can answer in its place decides where pods go.
Elsewhere it serves clients with a certificate only: who has which GPU is nobody's business who merely reaches a port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nodedevices_common import logs
from nodedevices_common.errors import InputError
from nodedevices_common.http import Address
from nodedevices_common.options import Given, Parser, from_environment

from nodedevices_operator.extender.server import WHOLE_NODES, Certificate, Limits
from nodedevices_operator.settings import COMMON, PREFIX, address, kubeconfig, option

COMMAND = "extender"
ADDRESS = "127.0.0.1:9739"

OPTIONS = (
    *COMMON,
    option("address", "where the scheduler calls; without TLS on loopback only", ADDRESS, metavar="HOST:PORT"),
    option(
        "tls-cert-file", "certificate to serve the scheduler with, in PEM; read again when it changes", metavar="FILE"
    ),
    option("tls-key-file", "its key", metavar="FILE"),
    option(
        "tls-client-ca-file",
        "only clients with a certificate of this authority are served; needed where it is not on loopback",
        metavar="FILE",
    ),
    option(
        "any-client",
        "serve clients without a certificate, too, where something else says who reaches the port",
        default=False,
        kind="bool",
    ),
    option(
        "whole-nodes",
        "take bodies of 64 MiB instead of 3, from a scheduler that sends whole Nodes (nodeCacheCapable: false); needs "
        "2 GiB of memory",
        default=False,
        kind="bool",
    ),
    option(
        "insecure-http",
        "allow an address other than loopback without TLS, such as behind a proxy that encrypts",
        default=False,
        kind="bool",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings:
    kubeconfig: str | None
    address: Address
    certificate: Certificate | None
    limits: Limits
    http_address: Address
    health_address: Address
    log_level: logs.Level
    log_format: logs.Format


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> ExtenderSettings:
    """Flags over environment over defaults. InputError; `--help` prints and raises SystemExit(0)."""
    parser = Parser(
        prog=f"nodedevices-operator {COMMAND}",
        description="Tells the scheduler on which nodes one GPU has room for a pod's shares of memory.",
        epilog=f"Every flag can be given as a variable: {PREFIX}ADDRESS for --address.",
    )
    parser.add_options(OPTIONS, title="settings")
    variables = from_environment(OPTIONS, environment, prefix=PREFIX)
    _, flags = parser.read(arguments, rest=f"unknown argument; see nodedevices-operator {COMMAND} --help")
    given = {each.name: Given(each.default, f"--{each.name}") for each in OPTIONS} | variables | flags
    found = ExtenderSettings(
        kubeconfig=kubeconfig(given["kubeconfig"]),
        address=address(given["address"]),
        certificate=_certificate(given),
        limits=WHOLE_NODES if given["whole-nodes"].value else Limits(),
        http_address=address(given["http-address"]),
        health_address=address(given["health-address"]),
        log_level=cast("logs.Level", given["log-level"].value),
        log_format=cast("logs.Format", given["log-format"].value),
    )
    if _loopback(found.address.host):
        return found
    if found.certificate is None and not given["insecure-http"].value:
        raise InputError(
            f"{given['address'].place}: {str(found.address)!r} is no loopback address, and there is no TLS: whoever "
            f"can answer in the extender's place decides where pods run; give --tls-cert-file and --tls-key-file, or "
            f"{ADDRESS}, or --insecure-http if something else protects the connection"
        )
    if found.certificate is not None and found.certificate.client_ca is None and not given["any-client"].value:
        raise InputError(
            f"{given['address'].place}: {str(found.address)!r} is no loopback address, and clients need no "
            f"certificate: who has which GPU would be told to whoever reaches it; give --tls-client-ca-file, or "
            f"--any-client if something else says who that is"
        )
    return found


def _certificate(given: Mapping[str, Given]) -> Certificate | None:
    names = ("tls-cert-file", "tls-key-file", "tls-client-ca-file")
    texts = {name: str(given[name].value) for name in names}
    for name, text in texts.items():
        if text and not Path(text).is_file():
            raise InputError(f"{given[name].place}: {text!r} is not a file; give the path of a PEM file")
    file, key, authority = texts.values()
    if not file and not key and not authority:
        return None
    if not file or not key:
        absent = "tls-key-file" if file else "tls-cert-file"
        raise InputError(f"--{absent}: absent; --tls-cert-file and --tls-key-file go together")
    return Certificate(Path(file), Path(key), Path(authority) if authority else None)


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
