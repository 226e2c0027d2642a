"""Machines by name, for the simulated probe: `h100 x 8`, `h100 x 2, mi300x-cpx, connectx-7 x 2, u250`.

What each board is like is in `boards` and `nvidia`; here is which devices a profile has, and where in the machine they
are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodedevices_api.bounds import MAX_DEVICES

from nodedevices_probe.simulated import boards, nvidia
from nodedevices_probe.simulated.boards import Board

MODELS: Mapping[str, Board] = {**nvidia.BOARDS, **boards.BOARDS}
FUNCTION = "-vf"  # e810-vf is what a virtual function of an e810 is
MAX_PROFILE = 256

# The longest name first: mi300x-cpx is not a mi300x.
_PART = re.compile(
    rf"\s*({'|'.join(sorted(map(re.escape, MODELS), key=len, reverse=True))})\s*(?:x\s*(-?[0-9]{{1,9}})\s*)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One device of a profile. `place`: which of its kind; of a virtual function, which of its physical one. `beside`:
    the index of the device whose PCIe root and NUMA node it shares; its own index, where it shares with none.
    `first_half`: it is at the first of two CPUs. `parent`: index of a virtual function's physical one."""

    index: int
    model: str
    place: int
    beside: int
    first_half: bool
    parent: int | None = None


def parse_profile(profile: str) -> tuple[Planned, ...]:
    """`h100` alone is what one machine has. Raises ValueError for people."""
    wanted = [_part(profile, part) for part in profile.split(",")]
    total = sum(count * (1 + MODELS[name].functions) for name, count in wanted)
    if total > MAX_DEVICES or any(count < 1 for _, count in wanted):
        bad = next((count for _, count in wanted if count < 1), total)
        raise ValueError(f"{profile!a}: {bad} devices are not possible; give 1 to {MAX_DEVICES}")
    names = [name for name, count in wanted for _ in range(count)]
    in_all, places = Counter(names), Counter[str]()
    planned, gpus = list[Planned](), list[Planned]()
    for name in names:
        board, place, index = MODELS[name], places[name], len(planned)
        places[name] += 1
        by = gpus[place] if board.beside_gpus and place < len(gpus) else None
        device = Planned(
            index=index,
            model=name,
            place=place,
            beside=index if by is None else by.index,
            first_half=place < (in_all[name] + 1) // 2 if by is None else by.first_half,
        )
        planned.append(device)
        if board.type == "gpu":
            gpus.append(device)
        planned += [
            replace(device, index=index + 1 + number, model=name + FUNCTION, place=number, parent=index)
            for number in range(board.functions)
        ]
    return tuple(planned)


def _part(profile: str, part: str) -> tuple[str, int]:
    match = _PART.fullmatch(part)
    if match is None:
        known = ", ".join(sorted(MODELS))
        raise ValueError(f"{profile!a} is not a known profile; give a model and a number, such as 'h100 x 8': {known}")
    name = match.group(1).lower()
    return name, int(match.group(2)) if match.group(2) else MODELS[name].count
