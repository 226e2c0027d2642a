"""SXIDs, the errors of an NVSwitch in the kernel's log: NVIDIA's list as data, and our class for each.

Source: NVIDIA's Fabric Manager user guide, appendix D, "NVSwitch SXid errors". Its chapters are the classes here. Which
error is fatal on a machine the driver itself says in the line, so that the list decides only what is fatal to more than
one link.
"""

from __future__ import annotations

from enum import Enum, auto
from types import MappingProxyType

from msgspec import Struct


class Reach(Enum):
    """What an error comes to. Where a link fails, its GPU reports XID 74 itself, and is judged by that."""

    CORRECTED = auto()  # or repeated, or to be ignored: no workload notices
    LINK = auto()  # the traffic of one link stalls or fails
    FABRIC = auto()  # "always fatal to the entire fabric/system": all GPUs and switches have to be reset


class Sxid(Struct, frozen=True):
    number: int
    meaning: str
    reach: Reach


_CORRECTED = {
    **dict.fromkeys(
        (11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057), "single bit ECC error"
    ),
    **dict.fromkeys((19059, 19062, 19065, 19068, 19071, 24001, 24002, 24003), "single bit ECC error"),
    10001: "host PRIV error",
    10002: "host PRIV timeout",
    10005: "end of a thermal event",
    20001: "TX replay",
    20009: "RX short error rate",
    22013: "minion link DLREQ interrupt",
}
_LINK = {
    10004: "thermal event: links may run with fewer lanes",
    11001: "ingress invalid command",
    11004: "ingress invalid ACL",
    11009: "ingress invalid VC set",
    11013: "ingress header double bit ECC error",
    11018: "ingress RID double bit ECC error",
    11019: "ingress RLAN double bit ECC error",
    11020: "ingress control parity error",
    12001: "egress crossbar overflow",
    12002: "egress packet route error",
    12022: "egress input double bit ECC error",
    12024: "egress output double bit ECC error",
    12025: "egress credit overflow",
    12026: "egress destination request ID error",
    12027: "egress destination response ID error",
    12028: "egress non-posted PRIV error",
    12030: "egress control parity error",
    12031: "egress credit parity error",
    12032: "egress flit type mismatch",
    14017: "TS ATO timeout",
    15001: "route buffer overflow or underflow",
    15006: "route transdone overflow or underflow",
    15009: "route GLT double bit ECC error",
    15010: "route parity error",
    15012: "route incoming double bit ECC error",
    15013: "route credit parity error",
    19047: "NCISOC header double bit ECC error",
    19048: "NCISOC data double bit ECC error",
    **dict.fromkeys((19054, 19056, 19058), "link RAM double bit ECC error"),
    **dict.fromkeys((19060, 19061), "CREQ RAM double bit ECC error"),
    **dict.fromkeys((19063, 19064), "response RAM double bit ECC error"),
    **dict.fromkeys((19066, 19067), "COM RAM double bit ECC error"),
    **dict.fromkeys((19069, 19070), "RSP1 RAM double bit ECC error"),
    19084: "AN1 heartbeat timeout",
    20012: "broken or inconsistent connection",
    20034: "LTSSM fault up: the link is down",
    22012: "minion link NA interrupt",
    **dict.fromkeys((24004, 24005, 24006), "source track crumbstore double bit ECC error"),
    24007: "source track timeout",
}
_FABRIC = {
    10003: "unhandled interrupt of the host",
    12020: "egress sequence ID error",
    22003: "minion halt",
    22011: "minion external error",
    **dict.fromkeys((23001, 23010), "ingress SRC-VC buffer overflow"),
    **dict.fromkeys((23002, 23011), "ingress SRC-VC buffer underflow"),
    **dict.fromkeys((23003, 23012), "egress DST-VC credit overflow"),
    **dict.fromkeys((23004, 23013), "egress DST-VC credit underflow"),
    **dict.fromkeys((23005, 23014), "ingress packet burst error"),
    **dict.fromkeys((23006, 23015), "ingress packet sticky error"),
    **dict.fromkeys((23007, 23016), "possible bubbles at ingress"),
    23008: "ingress packet with an invalid destination",
    23009: "ingress packet parity error",
    23017: "ingress credit parity error",
}

SXIDS: MappingProxyType[int, Sxid] = MappingProxyType(
    {
        number: Sxid(number, meaning, reach)
        for reach, some in ((Reach.CORRECTED, _CORRECTED), (Reach.LINK, _LINK), (Reach.FABRIC, _FABRIC))
        for number, meaning in some.items()
    }
)
