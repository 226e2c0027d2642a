"""Through which interfaces the node's own traffic goes: those that default routes name, and what is below them.

Source: fib_trie.c and route.c of the Linux kernel (/proc/net/route, /proc/net/ipv6_route). IPv6 counts where IPv4 has
no default route: any router may announce one on a network that is not the node's own.
"""

from __future__ import annotations

from nodedevices_probe.nic.interfaces import NET
from nodedevices_probe.node.roots import Roots

MAX_ROUTES_BYTES = 1 << 20
MAX_INTERFACES = 64
_UP, _REJECT = 0x1, 0x200
_LOWER = "lower_"  # of a bond, a VLAN, a bridge: what it sends through


def default_interfaces(roots: Roots, folder: str) -> frozenset[str] | None:
    """`folder`: /proc/<pid>/net of the host's network. None: there are no such files."""
    if not roots.exists(f"{folder}/route"):
        return None
    lines = (each.split() for each in roots.read(f"{folder}/route", MAX_ROUTES_BYTES).splitlines()[1:])
    named = {line[0] for line in lines if len(line) > 7 and _is_default(line[1], line[7], line[3])}
    if not named:
        lines = (each.split() for each in roots.read(f"{folder}/ipv6_route", MAX_ROUTES_BYTES).splitlines())
        named = {
            line[9] for line in lines if len(line) > 9 and line[9] != "lo" and _is_default(line[0], line[1], line[8])
        }
    return frozenset(_with_lower(roots, named))


def _is_default(destination: str, mask: str, flags: str) -> bool:
    try:
        known = int(flags, 16)
    except ValueError:
        return False
    return not (destination + mask).strip("0") and bool(known & _UP) and not known & _REJECT


def _with_lower(roots: Roots, named: set[str]) -> set[str]:
    found, left = set[str](), sorted(named)
    while left and len(found) < MAX_INTERFACES:
        name = left.pop()
        if "/" in name or name in found:
            continue
        found.add(name)
        below = (each.removeprefix(_LOWER) for each in roots.names(f"{NET}/{name}") if each.startswith(_LOWER))
        left.extend(below)
    return found
