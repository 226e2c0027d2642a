"""What lines of NVIDIA's driver in the kernel's log mean: SXIDs, GPUs that do not start, and what they say of an XID
beside its number.

An SXID names a link of a switch, not the GPU at its other end. NVIDIA's guide says that a fatal one reaches that GPU as
XID 74, which NVML reports: so an SXID is shown on the GPUs that are linked to a switch, and withdraws none of them. One
that is always fatal to the whole fabric makes them Unhealthy, if the driver calls it fatal, too: the guide requires the
host's restart, or a reset of all GPUs and switches.

The registers in the line of an XID 74 are read as NVIDIA's workflow for NVLink errors does (WORKFLOW_NVLINK_ERR of its
XID catalogue, for Hopper GPUs; NVSentinel has its text): the first, third, fourth and fifth of seven. They add to the
XID, which is judged as any other, and never change a state by themselves; where the workflow says "if repeated", a
person decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from nodedevices_probe import kmsg as kinds
from nodedevices_probe.protocol import ProbeEvent

from nodedevices_plugin.vendors.faults import Effect, Meaning
from nodedevices_plugin.vendors.nvidia.sxids import SXIDS, Reach, Sxid

UNLISTED = "SxidUnlisted"
GRAPHICS, NVLINK = 13, 74  # XIDs with details

_GRAPHICS_KIND = "graphics-exception"


class _Bits(Struct, frozen=True):
    """One kind of NVLink error: `registers` by their number, from 1, with the bits that show it."""

    kind: str
    reason: str
    message: str
    registers: Mapping[int, tuple[int, ...]]


# What needs most first: of several kinds in one line the first one is shown.
_NVLINK_BITS = (
    _Bits(
        "nvlink-connection",
        "NvlinkConnection",
        "NVLink error that a loose connection can cause: check it; if it continues, run field diagnostics",
        {1: (8, 9, 12, 16, 17, 24, 28)},
    ),
    _Bits(
        "nvlink-signal",
        "NvlinkSignal",
        "NVLink signal is marginal: unless other errors explain it, check the connection and run field diagnostics",
        {1: (21, 22)},
    ),
    _Bits(
        "nvlink-ecc",
        "NvlinkEcc",
        "NVLink ECC or parity error, likely of the hardware: run field diagnostics if one link has it more than twice",
        {1: (4, 5), 3: (0, 1, 2, 6), 5: (18, 19, 21, 22, 24, 25, 27, 28)},
    ),
    _Bits(
        "nvlink-error",
        "NvlinkError",
        "NVLink error: run field diagnostics if it is repeated",
        {1: (27, 29), 3: (13, 16, 17, 18, 19)},
    ),
    _Bits(
        "nvlink-threshold",
        "NvlinkThreshold",
        "NVLink had more corrected ECC errors than its threshold: operation continues",
        {5: (20, 23, 26, 29)},
    ),
    _Bits(
        "nvlink-secondary",
        "NvlinkSecondary",
        "NVLink error that follows another one: see the other XIDs and SXIDs",
        {1: (1, 20), 4: (16, 17, 18)},
    ),
)
_NVLINK_IGNORED = {1: (0, 23, 30)}
_OTHER = _Bits(
    "nvlink-other", "NvlinkOther", "NVLink error with register bits that NVIDIA's workflow does not list", {}
)
_READ = (1, 3, 4, 5)  # the registers that the workflow reads


def kind_of(event: ProbeEvent) -> str:
    """Return what an XID's details say, as a kind of event; other events keep theirs."""
    if event.kind != kinds.XID_DETAIL:
        return event.kind
    if event.xid == GRAPHICS:
        return _GRAPHICS_KIND
    return _nvlink_kind(event.details) if event.xid == NVLINK else event.kind


def _nvlink_kind(details: Mapping[str, str]) -> str:
    values = {number: _register(details.get(f"register{number}", "")) for number in _READ}
    found = next((bits for bits in _NVLINK_BITS if _any(values, bits.registers)), None)
    if found is not None:
        return found.kind
    rest = {number: value & ~_mask(_NVLINK_IGNORED.get(number, ())) for number, value in values.items()}
    return _OTHER.kind if any(rest.values()) else kinds.XID_DETAIL


def _register(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:  # left out because it is 0, or of a probe of another maker
        return 0


def _any(values: Mapping[int, int], registers: Mapping[int, tuple[int, ...]]) -> bool:
    return any(values[number] & _mask(bits) for number, bits in registers.items())


def _mask(bits: tuple[int, ...]) -> int:
    return sum(1 << bit for bit in bits)


def event(kind: str, code: int | None) -> Meaning | None:
    if kind in {kinds.SXID, kinds.SXID_FATAL}:
        return None if code is None else _switch(SXIDS.get(code), code, fatal=kind == kinds.SXID_FATAL)
    return _DETAILS.get(kind)


def _switch(row: Sxid | None, number: int, *, fatal: bool) -> Meaning:
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


_DETAILS: Mapping[str, Meaning] = {
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
REASONS = (
    *(f"Sxid{number}" for number in sorted(SXIDS)),
    UNLISTED,
    *(meaning.reason for meaning in _DETAILS.values()),
)
