"""The flags and variables of `nodedevices-operator extender`. What is wrong ends the program with status 2.

Without TLS it listens on loopback only, beside the scheduler: a process that can answer in its place decides where pods
go. Elsewhere it serves clients with a certificate only: to reach a port is no reason to be told who has which GPU.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodedevices_common.address import Address, parse_address
from nodedevices_common.errors import InputError
from nodedevices_common.guard import Certificate
from nodedevices_common.options import (
    PREFIX,
    Parser,
    defaults,
    from_environment,
    options_of,
    setting,
    settings_of,
)

from nodedevices_operator.extender.server import WHOLE_NODES, ServerLimits
from nodedevices_operator.settings import COMMON, Common, check_together

COMMAND = "extender"
ADDRESS = "127.0.0.1:9739"


def _pem(path: str) -> Path | None:
    if path and not Path(path).is_file():
        raise ValueError(f"{path!r} is not a file; give the path of a PEM file")
    return Path(path) if path else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings(Common):
    address: Address = setting(
        "address for the scheduler; without TLS only on loopback",
        default=ADDRESS,
        metavar="HOST:PORT",
        read=parse_address,
    )
    tls_cert_file: Path | None = setting(
        "TLS certificate (PEM) of `--address`; reloaded within ten seconds of a change; an invalid new pair is ignored",
        metavar="FILE",
        read=_pem,
    )
    tls_key_file: Path | None = setting("private key of `--tls-cert-file`", metavar="FILE", read=_pem)
    tls_client_ca_file: Path | None = setting(
        "serve only clients with a certificate of this CA; required except on loopback or with `--any-client`",
        metavar="FILE",
        read=_pem,
    )
    any_client: bool = setting(
        "also serve clients without a certificate, where something else restricts access", default=False
    )
    whole_nodes: bool = setting(
        "accept 64 MiB bodies instead of 3, from schedulers that send whole Nodes (nodeCacheCapable: false); needs 2 "
        "GiB of memory",
        default=False,
    )
    insecure_http: bool = setting(
        "allow other addresses without TLS, such as behind an encrypting proxy", default=False
    )

    @property
    def certificate(self) -> Certificate | None:
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return Certificate(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)

    @property
    def limits(self) -> ServerLimits:
        return WHOLE_NODES if self.whole_nodes else ServerLimits()


OWN = options_of(ExtenderSettings)[len(COMMON) :]
OPTIONS = (*COMMON, *OWN)


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
    given = defaults(OPTIONS) | variables | flags
    check_together(given)
    found = ExtenderSettings(**settings_of(ExtenderSettings, given))
    if found.certificate is None and (found.tls_cert_file or found.tls_key_file or found.tls_client_ca_file):
        absent = "tls-key-file" if found.tls_cert_file else "tls-cert-file"
        raise InputError(f"--{absent}: absent; --tls-cert-file and --tls-key-file go together")
    if _loopback(found.address.host):
        return found
    if found.certificate is None and not found.insecure_http:
        raise InputError(
            f"{given['address'].place}: {str(found.address)!r} is not a loopback address, and there is no TLS: a "
            f"process that answers in the extender's place decides where pods run; give --tls-cert-file and "
            f"--tls-key-file, or "
            f"{ADDRESS}, or --insecure-http if something else protects the connection"
        )
    if found.certificate is not None and found.certificate.client_ca is None and not found.any_client:
        raise InputError(
            f"{given['address'].place}: {str(found.address)!r} is not a loopback address, and clients need no "
            f"certificate: who has which GPU would be told to any client; give --tls-client-ca-file, or "
            f"--any-client if something else says who that is"
        )
    return found


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
