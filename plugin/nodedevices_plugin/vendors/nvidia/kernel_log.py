"""The meaning of lines of NVIDIA's driver in the kernel's log: SXIDs, GPUs that do not start, and details of an XID
beside its number.

SXIDs are the errors of an NVSwitch: NVIDIA's list as data, and our class for each. Source: NVIDIA's Fabric Manager user
guide, appendix D, "NVSwitch SXid errors". Its chapters are the classes here. Which error is fatal on a machine the
driver itself says in the line, so that the list decides only what is fatal to more than one link. An SXID names a link
of a switch, not the GPU at its other end. NVIDIA's guide says that a fatal one reaches that GPU as XID 74, which NVML
reports: so an SXID is shown on the GPUs that are linked to a switch, and withdraws none of them. One that is always
fatal to the whole fabric makes them Unhealthy, if the driver calls it fatal, too: the guide requires the host's
restart, or a reset of all GPUs and switches.

The registers in the line of an XID 74 are read as NVIDIA's workflow for NVLink errors does (WORKFLOW_NVLINK_ERR of its
XID catalogue, for Hopper GPUs; NVSentinel has its text): the first, third, fourth and fifth of seven. They add to the
XID, which is judged as any other, and never change a state by themselves; where the workflow says "if repeated", a
person decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType

from msgspec import Struct
from nodedevices_probe import kmsg as kinds
from nodedevices_probe.protocol import ProbeEvent

from nodedevices_plugin.vendors.faults import Effect, Meaning


class Reach(Enum):
    """What an error comes to. Where a link fails, its GPU reports XID 74 itself, and is judged by that."""

    CORRECTED = auto()  # or repeated, or to be ignored: no workload notices
    LINK = auto()  # the traffic of one link stalls or fails
    FABRIC = auto()  # "always fatal to the entire fabric/system": all GPUs and switches have to be reset


class Sxid(Struct, frozen=True):
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
        number: Sxid(meaning, reach)
        for reach, some in ((Reach.CORRECTED, _CORRECTED), (Reach.LINK, _LINK), (Reach.FABRIC, _FABRIC))
        for number, meaning in some.items()
    }
)


UNLISTED = "SxidUnlisted"
GRAPHICS, NVLINK = 13, 74  # XIDs with details

_GRAPHICS_KIND = "graphics-exception"


class _Bits(Struct, frozen=True):
    """One kind of NVLink error: `registers` by their number, from 1, with a mask of the bits that show it."""

    kind: str
    reason: str
    message: str
    registers: Mapping[int, int]


def _mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


# What needs most first: of several kinds in one line the first one is shown.
_NVLINK_BITS = (
    _Bits(
        "nvlink-connection",
        "NvlinkConnection",
        "NVLink error that a loose connection can cause: check it; if it continues, run field diagnostics",
        {1: _mask(8, 9, 12, 16, 17, 24, 28)},
    ),
    _Bits(
        "nvlink-signal",
        "NvlinkSignal",
        "NVLink signal is marginal: unless other errors explain it, check the connection and run field diagnostics",
        {1: _mask(21, 22)},
    ),
    _Bits(
        "nvlink-ecc",
        "NvlinkEcc",
        "NVLink ECC or parity error, likely of the hardware: run field diagnostics if one link has it more than twice",
        {1: _mask(4, 5), 3: _mask(0, 1, 2, 6), 5: _mask(18, 19, 21, 22, 24, 25, 27, 28)},
    ),
    _Bits(
        "nvlink-error",
        "NvlinkError",
        "NVLink error: run field diagnostics if it is repeated",
        {1: _mask(27, 29), 3: _mask(13, 16, 17, 18, 19)},
    ),
    _Bits(
        "nvlink-threshold",
        "NvlinkThreshold",
        "NVLink had more corrected ECC errors than its threshold: operation continues",
        {5: _mask(20, 23, 26, 29)},
    ),
    _Bits(
        "nvlink-secondary",
        "NvlinkSecondary",
        "NVLink error that follows another one: see the other XIDs and SXIDs",
        {1: _mask(1, 20), 4: _mask(16, 17, 18)},
    ),
)
_NVLINK_IGNORED = {1: _mask(0, 23, 30)}
_OTHER = _Bits(
    "nvlink-other", "NvlinkOther", "NVLink error with register bits that NVIDIA's workflow does not list", {}
)


def kind_of_detail(event: ProbeEvent) -> str:
    """Return what an XID's details say, as a kind of event."""
    if event.xid == GRAPHICS:
        return _GRAPHICS_KIND
    return _nvlink_kind(event.details) if event.xid == NVLINK else event.kind


def _nvlink_kind(details: Mapping[str, str]) -> str:
    # The registers that the workflow reads.
    values = {number: _register(details.get(f"register{number}", "")) for number in (1, 3, 4, 5)}
    for bits in _NVLINK_BITS:
        if any(values[number] & mask for number, mask in bits.registers.items()):
            return bits.kind
    rest = {number: value & ~_NVLINK_IGNORED.get(number, 0) for number, value in values.items()}
    return _OTHER.kind if any(rest.values()) else kinds.XID_DETAIL


def _register(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:  # left out because it is 0, or of a probe of another maker
        return 0


def switch(number: int, *, fatal: bool) -> Meaning:
    """Return the meaning of an SXID."""
    row = SXIDS.get(number)
    reason = f"Sxid{number}" if row is not None else UNLISTED
    what = row.meaning if row is not None else "an error that NVIDIA's guide does not list"
    if row is not None and row.reach is Reach.FABRIC and fatal:
        return Meaning(
            reason=reason,
            effect=Effect.UNHEALTHY,
            message=f"an NVSwitch reports {what} (SXID {number}), fatal to the whole NVLink fabric of the node",
            action="RebootNode",
            domain="Node",
        )
    harmless = not fatal and (row is None or row.reach is Reach.CORRECTED)
    return Meaning(
        reason=reason,
        effect=Effect.COUNTED if harmless else Effect.NOTICE,
        message=f"an NVSwitch reports {what} (SXID {number})",
        repair="RebootNode",
        domain="Node",
    )


MEANINGS: Mapping[str, Meaning] = {
    _GRAPHICS_KIND: Meaning(
        reason="GraphicsException",
        effect=Effect.NOTICE,
        message="where a graphics engine exception (XID 13) occurred; always at the same place: the hardware",
        domain="Application",
    ),
    kinds.NVIDIA_OFF_BUS: Meaning(
        reason="OffBusAtStart", effect=Effect.NOTICE, message="GPU did not answer when the driver tried to attach it"
    ),
    kinds.NVIDIA_PROBE_FAILED: Meaning(
        reason="DriverProbeFailed", effect=Effect.NOTICE, message="driver could not attach the GPU"
    ),
    kinds.NVIDIA_INIT_FAILED: Meaning(
        reason="DriverInitFailed", effect=Effect.NOTICE, message="driver could not start the GPU"
    ),
    **{
        bits.kind: Meaning(reason=bits.reason, effect=Effect.NOTICE, message=f"{bits.message} (registers of XID 74)")
        for bits in (*_NVLINK_BITS, _OTHER)
    },
}
