"""What the simulated devices file may say: machines by name, `h100 x 8` or `h100 x 2, mi300x-cpx, connectx-7 x 2`; the
keys, and what each may hold, as data for `check`; and the conditions and counters that a simulated device may have:
those that its real probe reports.

docs/simulated-devices.md describes them for people. The bounds are the probe line's own. What each board is like is in
`boards` and `nvidia`.

A word that no probe reports means nothing to the agent, so that a typo would be a fault that never comes. Devices of
makers and types that no built-in probe reports may have any word: they stand for those of a vendor of one's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from nodedevices_api.bounds import (
    ATTRIBUTE_NAME_PATTERN,
    INT32_MAX,
    MAX_ATTRIBUTE_NAME,
    MAX_DEVICE_ID,
    MAX_DEVICES,
    MAX_EXTRA,
    MAX_INDEX,
    MAX_MINOR,
    MAX_NUMA_NODE,
    MAX_PARTITIONS,
    WORD_PATTERN,
)

from nodedevices_probe import amd, fpga, generic, intel, nic, nvidia, remote
from nodedevices_probe.files import (
    FLAG,
    CheckError,
    Rule,
    integer,
    keyed,
    list_of,
    map_of,
    one_of,
    or_null,
    shown,
    written,
)
from nodedevices_probe.nic.models import MAKERS
from nodedevices_probe.nic.rdma import COUNTERS
from nodedevices_probe.node.sysfs import NODE_MISSING
from nodedevices_probe.protocol import (
    DEVICE_ID,
    DEVICE_NODE,
    DEVICE_TYPE,
    MAX_COUNTERS,
    MAX_DEVICE_NODE,
    MAX_INTEGER,
    PLAIN_TEXT,
    WORD,
    Celsius,
    Count,
    DriverState,
    Message,
    PciePath,
    PlainWord,
    Readings,
    Small,
    UpTo16,
    camel,
)
from nodedevices_probe.simulated.boards import BOARDS, Board
from nodedevices_probe.simulated.nvidia import BOARDS as NVIDIA_BOARDS

# --- profiles: which devices one has, and where in the machine they are -----------------------------------------------
MODELS: Mapping[str, Board] = {**NVIDIA_BOARDS, **BOARDS}
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


# --- keys and words ---------------------------------------------------------------------------------------------------
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


def check_words(place: str, vendor: str, kind: str, *, conditions: Iterable[str], counters: Iterable[str]) -> None:
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


_TEXT = written(PLAIN_TEXT, "text")
_MESSAGE = written(PLAIN_TEXT, "text", 512)
_WORD = written(WORD, "letters, digits and hyphens")
_ID = written(DEVICE_ID, "A-Z a-z 0-9 . _ - with single colons between them", MAX_DEVICE_ID)
_NODE = written(DEVICE_NODE, "a path such as /dev/nvidia0", MAX_DEVICE_NODE)
_COUNT = integer(0, MAX_INTEGER)
_SMALL = integer(0, 65535)
_INDEX = integer(0, MAX_INDEX)
# Rules of readings by the types that they have in a line; of two, whose words are known, by name.
_READINGS_BY_TYPE: Mapping[Any, Rule] = {
    bool: FLAG,
    Count: _COUNT,
    Small: _SMALL,
    Celsius: integer(-300, 1000),
    Message: or_null(_MESSAGE),
    UpTo16[PlainWord]: list_of(written(WORD_PATTERN, "letters and digits, such as linkDown"), 16),
}
_READINGS_BY_NAME: Mapping[str, Rule] = {
    "recovery_action": one_of(*nvidia.RECOVERY_ACTIONS),
    "fabric_state": one_of(*nvidia.FABRIC_STATES),
    "counters": map_of(
        written(WORD_PATTERN, "letters and digits, such as symbolError"),
        _COUNT,
        MAX_COUNTERS,
        "a mapping such as {symbolError: 3}",
    ),
}


def _reading(name: str, hint: Any) -> Rule:
    kind = get_args(hint)[0] if get_origin(hint) in {Union, UnionType} else hint
    return _READINGS_BY_NAME.get(name) or _READINGS_BY_TYPE[kind]


_TYPES = get_type_hints(Readings, include_extras=True)
READINGS: Mapping[str, str] = {camel(reading.name): reading.name for reading in fields(Readings)}
TEXTS = ("product_name", "brand", "architecture", "firmware", "pcie_root")


def _check_value(place: str, value: Any) -> None:
    """Text, a whole number, true or false."""
    if not isinstance(value, bool):
        (integer(-MAX_INTEGER, MAX_INTEGER) if isinstance(value, int) else _TEXT)(place, value)


_MIG = keyed(
    {
        "profile": _TEXT,
        "id": _ID,
        **dict.fromkeys(("index", "gi", "ci"), _SMALL),
        **dict.fromkeys(("giSlices", "ciSlices", "size"), integer(1, 8)),
        "start": integer(0, 7),
        "memoryBytes": _COUNT,
        **dict.fromkeys(
            ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"), _SMALL
        ),
        "deviceNodes": list_of(_NODE, 4),
    },
    required=("profile",),
    what="a MIG device such as {profile: 1g.10gb}",
)
_DEVICE = keyed(
    {
        "index": _INDEX,
        "model": one_of(*sorted(MODELS)),
        "absent": FLAG,
        "id": _ID,
        "minor": integer(0, MAX_MINOR),
        "type": written(DEVICE_TYPE, "letters and digits, a letter first", 32),
        "vendor": _WORD,
        **dict.fromkeys((*map(camel, TEXTS), "computeCapability"), _TEXT),
        "pciBusId": _TEXT,
        "numaNode": or_null(integer(-1, MAX_NUMA_NODE)),
        "memoryBytes": _COUNT,
        "migCapable": FLAG,
        "migEnabled": FLAG,
        "mig": list_of(_MIG, MAX_PARTITIONS),
        "nvlinksToSwitch": integer(0, 64),
        "deviceNodes": list_of(_NODE, 16),
        "extra": map_of(
            written(ATTRIBUTE_NAME_PATTERN, "a name such as speedGbps", MAX_ATTRIBUTE_NAME),
            _check_value,
            MAX_EXTRA,
            "a mapping such as {speedGbps: 400}",
        ),
        **{key: _reading(name, _TYPES[name]) for key, name in READINGS.items()},
    },
    what="a device such as {index: 0, lost: true}",
)
RULES = keyed(
    {
        "profile": written(PLAIN_TEXT, "text", MAX_PROFILE),
        "driver": keyed(
            {
                "state": one_of(*DriverState),
                **dict.fromkeys(("name", "version", "cudaVersion"), _TEXT),
            }
        ),
        "machine": keyed(dict.fromkeys(("type", "mode", "clique", "vgpuVersion", "vgpuBranch"), _TEXT)),
        "devices": list_of(_DEVICE, MAX_DEVICES),
        "links": list_of(
            keyed(
                {
                    "a": _INDEX,
                    "b": _INDEX,
                    "pcie": one_of(*PciePath),
                    "nvlinks": integer(0, 64),
                },
                required=("a", "b"),
                what="a pair such as {a: 0, b: 1, nvlinks: 4}",
            ),
            MAX_DEVICES * (MAX_DEVICES - 1) // 2,
        ),
        "migMinors": list_of(_TEXT, 4096),
        "events": list_of(
            keyed(
                {
                    "id": _ID,
                    "device": _INDEX,
                    "kind": one_of(
                        "xid",
                        "recovery-action",
                        "gpu-unavailable",
                        "dram-retirement",
                        "poison",
                        "mig-config",
                        "ecc-storm",
                    ),
                    "xid": integer(0, INT32_MAX),
                    "gi": _SMALL,
                    "ci": _SMALL,
                    "count": integer(1, MAX_INTEGER),
                },
                required=("id",),
                what="an event such as {id: first, device: 3, xid: 79}",
            ),
            256,
        ),
        "recoveryActionSupported": FLAG,
        "acceleratorsOnBus": _SMALL,
        "problems": list_of(keyed({"code": _WORD, "message": _MESSAGE}, required=("code", "message")), 16),
        "silent": FLAG,
        "hang": FLAG,
    },
    what="a mapping such as {profile: h100 x 8}",
)
