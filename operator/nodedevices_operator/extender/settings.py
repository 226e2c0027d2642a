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
from nodedevices_common.guard import CERT, CLIENT_CA, KEY, RELOADED, Certificate
from nodedevices_common.options import (
    PREFIX,
    Parser,
    options_of,
    setting,
    settings_of,
)

from nodedevices_operator.extender.server import WHOLE_NODES, ServerLimits
from nodedevices_operator.settings import COMMON, Common, given_by

COMMAND = "extender"
ADDRESS = "127.0.0.1:9739"


def _folder(path: str) -> Path | None:
    return Path(path) if path else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings(Common):
    address: Address = setting(
        "address for the scheduler; without TLS only on loopback",
        default=ADDRESS,
        metavar="HOST:PORT",
        read=parse_address,
    )
    tls_dir: Path | None = setting(
        f"directory with `{CERT}` and `{KEY}` (PEM) of `--address`, and `{CLIENT_CA}`: only clients with a certificate "
        f"of this CA are served; {RELOADED}",
        metavar="DIR",
        formerly=("tls-cert-file", "tls-key-file", "tls-client-ca-file"),
        read=_folder,
    )
    any_client: bool = setting(
        f"also serve clients without a certificate, where something else restricts access: no `{CLIENT_CA}` is read",
        default=False,
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
        return None if self.tls_dir is None else Certificate.of_folder(self.tls_dir, client_ca=not self.any_client)

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
    _, flags = parser.read(arguments, rest=f"unknown argument; see nodedevices-operator {COMMAND} --help")
    given = given_by(OPTIONS, flags, environment)
    found = ExtenderSettings(**settings_of(ExtenderSettings, given))
    if found.certificate is not None:
        absent = [str(file) for file in found.certificate.files() if not file.is_file()]
        if absent:
            why = f", or --any-client if something else says who clients are, without {CLIENT_CA}"
            right = f"give a directory with {CERT}, {KEY} and {CLIENT_CA}{why}"
            raise InputError(f"{given['tls-dir'].place}: {', '.join(absent)}: not a file; {right}")
    elif not found.insecure_http and not _loopback(found.address.host):
        raise InputError(
            f"{given['address'].place}: {str(found.address)!r} is not a loopback address, and there is no TLS: a "
            f"process that answers in the extender's place decides where pods run; give --tls-dir, or {ADDRESS}, or "
            f"--insecure-http if something else protects the connection"
        )
    return found


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
