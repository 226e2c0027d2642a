"""The conditions and counters that a simulated device may have: those that its real probe reports.

A word that no probe reports means nothing to the agent, so that a typo would be a fault that never comes. Devices of
makers and types that no built-in probe reports may have any word: they stand for those of a vendor of one's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from nodedevices_probe import amd, fpga, generic, intel, nic, nvidia, remote
from nodedevices_probe.files.check import CheckError, shown
from nodedevices_probe.nic.counters import COUNTERS
from nodedevices_probe.nic.models import MAKERS
from nodedevices_probe.node.drm import NODE_MISSING


@dataclass(frozen=True, slots=True)
class Words:
    conditions: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()


_GPU = "gpu"
_NIC = Words(
    conditions=(
        nic.LINK_DOWN,
        nic.NO_LINK,
        nic.DRIVER_UNBOUND,
        nic.FEWER_PORTS,
        nic.ONLOAD_MISSING,
        NODE_MISSING,
    ),
    counters=(nic.CARRIER_DOWN_COUNT, *COUNTERS),
)
KNOWN: Mapping[tuple[str, str], Words] = {  # by maker and type
    (nvidia.VENDOR, _GPU): Words(),
    (amd.VENDOR, _GPU): Words((amd.EXPORTER_UNHEALTHY, NODE_MISSING)),
    (intel.VENDOR, _GPU): Words((NODE_MISSING,)),
    (fpga.VENDOR, fpga.FPGA): Words((fpga.FIREWALL, fpga.NO_SHELL, NODE_MISSING)),
    (fpga.VENDOR, fpga.MEDIA): Words((NODE_MISSING,)),
    (generic.VENDOR, generic.TYPE): Words((NODE_MISSING,)),
    (remote.VENDOR, remote.TYPE): Words((remote.UNREACHABLE, remote.UNCHECKED)),
    **{(maker, kind): _NIC for maker in sorted(MAKERS) for kind in sorted(nic.TYPES)},
}


def check(place: str, vendor: str, kind: str, *, conditions: Iterable[str], counters: Iterable[str]) -> None:
    """`place`: of the device, `kind`: its type. Raises CheckError for a word that its probe does not report."""
    words = KNOWN.get((vendor, kind))
    if words is None:
        return
    whose = f"a {kind} of {vendor}"
    for number, condition in enumerate(conditions):
        if condition not in words.conditions:
            why = _why("condition", condition, words.conditions, whose)
            raise CheckError(f"{place}.conditions[{number}]: {shown(condition)} is not allowed; {why}")
    for counter in counters:
        if counter not in words.counters:
            raise CheckError(
                f"{place}.counters.{counter}: no such counter; {_why('counter', counter, words.counters, whose)}"
            )


def _why(what: str, given: str, known: tuple[str, ...], whose: str) -> str:
    if not known:
        return f"{whose} has no {what}s: give its readings, such as thermalSlowdown or error"
    close = get_close_matches(given, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}{what}s of {whose}: {', '.join(known)}"
