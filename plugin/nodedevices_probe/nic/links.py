"""Links of a card that are a condition of it.

A port that was never connected is none: only one that is administratively up is judged, and one that never had a link
is told from one that lost it.
"""

from __future__ import annotations

from nodedevices_probe.nic.attributes import INFINIBAND, LINK_DOWN, NO_LINK
from nodedevices_probe.nic.interfaces import Interface
from nodedevices_probe.nic.rdma import PhysicalState, PortState, RdmaDevice


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
