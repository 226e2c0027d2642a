"""Texts for the simulated probe's file, as the end-to-end tests and the demo write them (docs/simulated-devices.md).

Written out here, with the numbers that a user would look up, instead of imported: these tests know the format as users
do. An event happens when its id first appears in the file, so every strike has its own id.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence

import yaml

H100_MIB = 81559
L4_MIB = 23034
NUMA = (0, 0, 0, 0, 1, 1, 1, 1)  # of the eight H100s: half of them on each socket
_strikes = itertools.count(1)


def strike(index: int, xid: int) -> dict[str, object]:
    """An XID, once."""
    return {"id": f"strike-{os.getpid()}-{next(_strikes)}", "device": index, "xid": xid}


def h100s(
    *,
    xid79: int | None = None,
    lost: int | None = None,
    ecc: int | None = None,
    field_230: bool = True,
    silent: bool = False,
) -> str:
    """Eight H100s; one struck by XID 79, lost, or with an uncorrectable error, under which it stays. `field_230` False:
    an old driver cannot say what would help. `silent`: the probe says nothing more."""
    text: dict[str, object] = {"profile": "h100 x 8"} | ({"silent": True} if silent else {})
    if not field_230:
        text["recoveryActionSupported"] = False
    if xid79 is not None:
        text["events"] = [strike(xid79, 79)]
        if field_230:
            text["devices"] = [{"index": xid79, "recoveryAction": "ResetBus"}]
    if lost is not None:
        text["devices"] = [{"index": lost, "lost": True}]
    if ecc is not None:
        text["devices"] = [{"index": ecc, "eccUncorrectableVolatile": 1}]
    return yaml.safe_dump(text)


def used(text: str, by_pods: Sequence[int], count: int = 8) -> str:
    """The same devices, of which those with these indices compute, and the others stand still."""
    content = yaml.safe_load(text)
    devices = {each["index"]: each for each in content.get("devices", ())}
    for index in range(count):
        reading = (
            {"utilizationPercent": 97, "processes": 1}
            if index in by_pods
            else {"utilizationPercent": 0, "processes": 0}
        )
        devices[index] = {"index": index, **devices.get(index, {}), **reading}
    return yaml.safe_dump(content | {"devices": list(devices.values())})


def cut_h100s(*, lost: int | None = None, cut: Mapping[int, Sequence[Mapping[str, object]]]) -> str:
    """Eight H100s, some of them in MIG mode with these MIG devices; one may be lost."""
    devices = [
        {"index": index, "migEnabled": True, "mig": [dict(part) for part in parts]} for index, parts in cut.items()
    ]
    for device in devices:
        if device["index"] == lost:
            device["lost"] = True
    return yaml.safe_dump({"profile": "h100 x 8", "devices": devices})


def l4s(*, lost: int | None = None, without: int | None = None) -> str:
    """Four L4s; one of them lost (NVML says so) or no longer listed."""
    text: dict[str, object] = {"profile": "l4 x 4"}
    if lost is not None:
        text["devices"] = [{"index": lost, "lost": True}]
    if without is not None:
        text["devices"] = [{"index": without, "absent": True}]
    return yaml.safe_dump(text)


def one_of_each(*, struck: Mapping[str, int] | None = None) -> str:
    """Two H100s, an MI300X in CPX mode, two ConnectX-7 and a U250. `struck`: these of their kinds (gpu, partitioned,
    nic, fpga; by index) have a fault each: XID 79, an uncorrectable error, no link, a tripped firewall."""
    text: dict[str, object] = {"profile": "h100 x 2, mi300x-cpx, connectx-7 x 2, u250"}
    if struck is not None:
        text["events"] = [strike(struck["gpu"], 79)]
        text["devices"] = [
            {"index": struck["gpu"], "recoveryAction": "ResetBus"},
            {"index": struck["partitioned"], "eccUncorrectableVolatile": 1},
            {"index": struck["nic"], "conditions": ["linkDown"]},
            {"index": struck["fpga"], "conditions": ["firewallTripped"]},
        ]
    return yaml.safe_dump(text)
