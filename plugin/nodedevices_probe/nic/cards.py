"""Conditions of a card: it has fewer ports than others of its model (one that its firmware or driver did not bring up
at boot), or a port lost its link.

A card is a slot of PCI, and its ports are the physical functions in it. Cards are alike where their boards have the
same id (PSID; /sys/class/infiniband/<device>/board_id): by the number of its chip alone a card of one port cannot be
told from one of two, and a DGX has both.

A port that was never connected is no condition: only one that is administratively up is judged, and one that never had
a link is told from one that lost it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nodedevices_probe.nic.attributes import INFINIBAND, LINK_DOWN, NO_LINK
from nodedevices_probe.nic.interfaces import Interface
from nodedevices_probe.nic.rdma import PhysicalState, PortState, RdmaDevice


def with_fewer_ports(functions: Iterable[str], boards: Mapping[str, str]) -> frozenset[str]:
    """Return the functions of cards with fewer ports than more than half of the other cards of that board.
    `functions`: addresses of physical functions. `boards`: ids of boards by address, those that are known."""
    every = list(functions)
    ports = Counter(map(_slot, every))
    by_board: dict[str, set[str]] = {}
    for function in every:
        if function in boards:
            by_board.setdefault(boards[function], set()).add(_slot(function))
    fewer = {
        slot
        for alike in by_board.values()
        for slot in alike
        if sum(ports[other] > ports[slot] for other in alike) * 2 > len(alike) - 1
    }
    return frozenset(function for function in every if _slot(function) in fewer)


def _slot(address: str) -> str:
    return address.rpartition(".")[0]


def link_condition(own: Interface | None, rdma: RdmaDevice | None) -> str | None:
    """LINK_DOWN, NO_LINK, or None. An InfiniBand port needs no interface, so its own state counts. An active port of
    Ethernet has a link, although the interface may have none: that of the other port, with which it is bonded."""
    every = rdma.said.ports if rdma is not None else ()
    if any(port.state == PortState.ACTIVE for port in every):
        return None
    if ports := [port for port in every if port.link_type == INFINIBAND]:
        wanted = [port for port in ports if port.physical != PhysicalState.DISABLED]
        if not wanted or any(port.state != PortState.DOWN for port in wanted):
            return None
        return LINK_DOWN if any(port.was_up for port in wanted) else NO_LINK
    if own is None or not own.is_wanted_up or own.has_carrier is not False:
        return None
    return LINK_DOWN if own.was_up else NO_LINK
