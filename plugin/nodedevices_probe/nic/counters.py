"""Error counters of an RDMA device, as the kernel has them in sysfs.

Source: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel; drivers/infiniband/hw/mlx5/counters.c for
those of `hw_counters`, and hw/efa/efa_verbs.c for EFA's. `counters` are the port's, whichever function is asked, so
that a virtual or sub-function has only those of `hw_counters`, which count what its own connections did.

Each file of `counters` that is read is a command to the firmware, so that no others are read. Which files there are is
found once, and again after one of them could not be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodedevices_probe import nic as names
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.protocol import MAX_INTEGER, within

_PORT_FILES: Mapping[str, str] = {
    names.SYMBOL_ERROR: "counters/symbol_error",
    names.LINK_ERROR_RECOVERY: "counters/link_error_recovery",
    names.LINK_DOWNED: "counters/link_downed",
    names.PORT_RCV_ERRORS: "counters/port_rcv_errors",
    names.PORT_XMIT_DISCARDS: "counters/port_xmit_discards",
    names.LOCAL_LINK_INTEGRITY_ERRORS: "counters/local_link_integrity_errors",
    names.EXCESSIVE_BUFFER_OVERRUN_ERRORS: "counters/excessive_buffer_overrun_errors",
}
_OWN_FILES: Mapping[str, str] = {
    names.RNR_NAK_RETRY_ERR: "hw_counters/rnr_nak_retry_err",
    names.LOCAL_ACK_TIMEOUT_ERR: "hw_counters/local_ack_timeout_err",
    names.ROCE_SLOW_RESTART: "hw_counters/roce_slow_restart",
}
# Those that Amazon's own monitor takes for errors, but for what is sent again: without a timeout it reaches its peer.
_EFA_FILES: Mapping[str, str] = {
    names.RDMA_READ_WR_ERR: "hw_counters/rdma_read_wr_err",
    names.RDMA_WRITE_WR_ERR: "hw_counters/rdma_write_wr_err",
    names.RETRANS_TIMEOUT_EVENTS: "hw_counters/retrans_timeout_events",
    names.UNRESPONSIVE_REMOTE_EVENTS: "hw_counters/unresponsive_remote_events",
    names.IMPAIRED_REMOTE_CONN_EVENTS: "hw_counters/impaired_remote_conn_events",
    names.RX_DROPS: "hw_counters/rx_drops",
}
COUNTERS = (*_PORT_FILES, *_OWN_FILES, *_EFA_FILES)
_AMAZON = "0x1d0f"
_PARTS = ("physfn", "sfnum")  # in the folder of a virtual function, of a sub-function
CounterFiles = Mapping[str, Sequence[str]]  # by counter: a file of each port that has it


def counter_files(roots: Roots, device: str, ports: Sequence[str]) -> CounterFiles:
    """Return the files of the RDMA device with this folder. `ports`: their folders."""
    is_part = any(roots.exists(f"{device}/device/{part}") for part in _PARTS)
    files = _OWN_FILES if is_part else {**_PORT_FILES, **_OWN_FILES}
    if roots.word(f"{device}/device/vendor") == _AMAZON:
        files = {**files, **_EFA_FILES}
    found = {name: [path for port in ports if roots.exists(path := f"{port}/{file}")] for name, file in files.items()}
    return {name: paths for name, paths in found.items() if paths}


def read_counters(roots: Roots, files: CounterFiles) -> dict[str, int]:
    """Return each counter's sum over the ports. One that a port does not say is left out: the sum of the others would
    jump as soon as it does."""
    found = {}
    for name, paths in files.items():
        said = [within(roots.number(path), 0, MAX_INTEGER) for path in paths]
        values = [value for value in said if value is not None]
        if len(values) == len(said):
            found[name] = min(sum(values), MAX_INTEGER)
    return found
