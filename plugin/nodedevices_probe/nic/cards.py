"""Cards with fewer ports than others of their model: a port that its firmware or driver did not bring up at boot.

A card is a slot of PCI, and its ports are the physical functions in it. Cards are alike where their boards have the
same id (PSID; /sys/class/infiniband/<device>/board_id): by the number of its chip alone a card of one port cannot be
told from one of two, and a DGX has both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def with_fewer_ports(functions: Iterable[str], boards: Mapping[str, str]) -> frozenset[str]:
    """Return the functions of cards with fewer ports than more than half of the other cards of that board.
    `functions`: addresses of physical functions. `boards`: ids of boards by address, those that are known."""
    every = list(functions)
    ports = Counter(map(_slot, every))
    by_board: dict[str, set[str]] = {}
    for each in every:
        if each in boards:
            by_board.setdefault(boards[each], set()).add(_slot(each))
    fewer = {
        slot
        for alike in by_board.values()
        for slot in alike
        if sum(ports[other] > ports[slot] for other in alike) * 2 > len(alike) - 1
    }
    return frozenset(each for each in every if _slot(each) in fewer)


def _slot(address: str) -> str:
    return address.rpartition(".")[0]
