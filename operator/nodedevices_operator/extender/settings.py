"""The flags and variables of `nodedevices-operator extender`. What is wrong ends the program with status 2.

It listens on loopback only, beside the scheduler: a process that can answer in its place decides where pods go, and to
reach a port is no reason to be told who has which GPU.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodedevices_common.address import Address, parse_address
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


def _loopback(text: str) -> Address:
    try:
        address = parse_address(text)
        if address.host == "localhost" or ipaddress.ip_address(address.host).is_loopback:
            return address
    except ValueError:
        pass
    raise ValueError(
        f"{text!r} is not host:port on loopback, and a process that answers in the extender's place decides where pods "
        f"run; give {ADDRESS}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings(Common):
    address: Address = setting(
        "address for the scheduler, on loopback", default=ADDRESS, metavar="HOST:PORT", read=_loopback
    )
    whole_nodes: bool = setting(
        "accept 64 MiB bodies instead of 3, from schedulers that send whole Nodes (nodeCacheCapable: false); needs 2 "
        "GiB of memory",
        default=False,
    )

    @property
    def limits(self) -> ServerLimits:
        return WHOLE_NODES if self.whole_nodes else ServerLimits()


OPTIONS = options_of(ExtenderSettings)
OWN = OPTIONS[len(COMMON) :]  # for docs/flags.md


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> ExtenderSettings:
    """Flags over environment over defaults. InputError; `--help` prints and raises SystemExit(0)."""
    parser = Parser(
        prog=f"nodedevices-operator {COMMAND}",
        description="Tells the scheduler on which nodes one GPU has room for a pod's shares of memory.",
        epilog=f"Every flag can be given as a variable: {PREFIX}ADDRESS for --address.",
    )
    parser.add_options(OPTIONS, title="settings")
    _, flags = parser.read(arguments, rest=f"unknown argument; see nodedevices-operator {COMMAND} --help")
    return ExtenderSettings(**settings_of(ExtenderSettings, given_by(OPTIONS, flags, environment)))
