"""RDMA devices and their error counters: /sys/class/infiniband has those of every driver, soft-RoCE and iWARP, too.

Sources: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel; drivers/infiniband/hw/mlx5/counters.c for
the counters of `hw_counters`, and hw/efa/efa_verbs.c for EFA's. A device's character devices are those whose `ibdev`
says its name; /dev/infiniband/rdma_cm is everybody's.

What ports and sensors say is asked of the device's firmware, which may not answer: each device is read for a bounded
time, and of one that does not return what it said last holds.

`counters` are the port's, whichever function is asked, so that a virtual or sub-function has only those of
`hw_counters`, which count what its own connections did. Each file of `counters` that is read is a command to the
firmware, so that no others are read. Which files there are is found once, and again after one of them could not be
read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nodedevices_probe.nic import ETHER, INFINIBAND
from nodedevices_probe.nic.functions import NET, SysfsOwner, owner
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import sensors
from nodedevices_probe.protocol import MAX_INTEGER, MAX_SMALL, Readings, camel, within
from nodedevices_probe.source import BoundedReads


# --- error counters ---------------------------------------------------------------------------------------------------
def _files(folder: str, *files: str) -> dict[str, str]:
    """Return the files of counters by the counters' names in a line, which are the files' own: symbolError."""
    return {camel(file): f"{folder}/{file}" for file in files}


_PORT_FILES = _files(
    "counters",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_OWN_FILES = _files("hw_counters", "rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart")
# Those that Amazon's own monitor takes for errors, but for what is sent again: without a timeout it reaches its peer.
_EFA_FILES = _files(
    "hw_counters",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
    "rx_drops",
)
COUNTERS = (*_PORT_FILES, *_OWN_FILES, *_EFA_FILES)
_AMAZON = "0x1d0f"
CounterFiles = Mapping[str, Sequence[str]]  # by counter: a file of each port that has it


def counter_files(roots: Roots, device: str, ports: Sequence[str]) -> CounterFiles:
    """Return the files of the RDMA device with this folder. `ports`: their folders."""
    # A virtual function has the one in its folder, a sub-function the other.
    is_part = any(roots.exists(f"{device}/device/{part}") for part in ("physfn", "sfnum"))
    is_efa = roots.word(f"{device}/device/vendor") == _AMAZON
    files = {**({} if is_part else _PORT_FILES), **_OWN_FILES, **(_EFA_FILES if is_efa else {})}
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


# --- devices ----------------------------------------------------------------------------------------------------------
INFINIBAND_CLASS = "sys/class/infiniband"
NETNS_MODE = "sys/module/ib_core/parameters/netns_mode"  # Y: all namespaces share all RDMA devices
RDMA_CM = "rdma_cm"
DEV = "/dev/infiniband"
MAX_RDMA = 512
MAX_PORTS = 8
MAX_P_KEYS = 8  # each one read is a command to the device
_CLASSES = {"infiniband_verbs": ("uverbs",), "infiniband_mad": ("umad", "issm"), "infiniband_cm": ("ucm",)}
_NODE = re.compile(r"(uverbs|umad|issm|ucm)[0-9]{1,5}")
_SAID = re.compile(r"([0-9]{1,3}):.*")  # "4: ACTIVE"
_RATE = re.compile(r"([0-9]{1,5})(\.[0-9]+)? Gb/sec.*")  # "400 Gb/sec (4X NDR)"
_P_KEY = re.compile(r"0x[0-9a-f]{4}")
_LAYERS = {"InfiniBand": INFINIBAND, "Ethernet": ETHER}


PORT_DOWN, PORT_ACTIVE = 1, 4  # ib_verbs.h ib_port_state
PHYSICALLY_DISABLED = 3  # ib_verbs.h ib_port_phys_state: by an administrator
LAST_WITH_MANAGEMENT = 3  # rdma_node_type: up to it all have management datagrams; iWARP, usNIC and EFA have none


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    state: int
    physical: int
    link_type: str
    was_up: bool
    rate_gbps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirmwareAnswer:
    """The firmware's answer."""

    ports: tuple[Port, ...] = ()
    p_keys: tuple[str, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    sensors: Readings = field(default_factory=Readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    name: str
    owner: SysfsOwner
    kind: int = 0  # rdma_node_type; 0: not known
    node_guid: str = ""
    firmware: str = ""
    model: str = ""  # hca_type
    board: str = ""  # its board's id (PSID): MT_0000000838
    said: FirmwareAnswer
    answers: bool = True  # now
    netdev: str = ""  # whose packets it sends, as its GIDs have it
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by kind: uverbs -> /dev/infiniband/uverbs0

    def missing(self, roots: Roots, required: Collection[str]) -> bool:
        """True when one that it requires is not there; those that its kind never has are not required."""
        ports = sum(port.link_type == INFINIBAND for port in self.said.ports)
        for node in required:
            if node == RDMA_CM:
                paths: tuple[str, ...] = (f"{DEV}/{RDMA_CM}",)
            elif node != "uverbs" and self.kind > LAST_WITH_MANAGEMENT:
                continue
            else:
                paths = self.nodes.get(node, ())
            # A port of InfiniBand has a umad and an issm of its own.
            usual = max(ports, 1) if node in {"umad", "issm"} else 1
            if len(paths) < usual or not all(roots.has_node(path) for path in paths):
                return True
        return False

    def device_nodes(self, roots: Roots, required: Collection[str]) -> tuple[str, ...]:
        """Its own: those that it requires, and of the others those that are there."""
        return tuple(
            path for kind, paths in self.nodes.items() for path in paths if kind in required or roots.has_node(path)
        )


@dataclass(slots=True)
class FirmwareReads:
    reads: BoundedReads[FirmwareAnswer] = field(default_factory=BoundedReads)
    _last: dict[str, FirmwareAnswer] = field(default_factory=dict)  # by name
    _counters: dict[str, CounterFiles] = field(default_factory=dict)  # by name

    def read(self, roots: Roots, names: Collection[str]) -> dict[str, tuple[FirmwareAnswer, bool]]:
        """Return for each device its firmware's last answer, and whether it answered now."""
        self._counters = {name: self._counters.get(name, {}) for name in names}
        found = self.reads.read({name: partial(_ask, roots, name, self._counters) for name in names})
        self._last = {name: found[name] or self._last.get(name, FirmwareAnswer()) for name in names}
        return {name: (answer, found[name] is not None) for name, answer in self._last.items()}


def rdma_devices(roots: Roots, firmware: FirmwareReads) -> tuple[RdmaDevice, ...]:
    nodes = _character_devices(roots)
    said = firmware.read(roots, roots.names(INFINIBAND_CLASS)[:MAX_RDMA])
    found = (
        _device(roots, name, nodes.get(name, {}), answer, answers=answers) for name, (answer, answers) in said.items()
    )
    return tuple(device for device in found if device is not None)


def _character_devices(roots: Roots) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for folder, kinds in _CLASSES.items():
        for name in roots.names(f"sys/class/{folder}"):
            match = _NODE.fullmatch(name)
            if match and match[1] in kinds:
                nodes = found.setdefault(roots.word(f"sys/class/{folder}/{name}/ibdev"), {})
                nodes[match[1]] = (*nodes.get(match[1], ()), f"{DEV}/{name}")
    return found


def _device(
    roots: Roots, name: str, nodes: Mapping[str, tuple[str, ...]], said: FirmwareAnswer, *, answers: bool
) -> RdmaDevice | None:
    at = f"{INFINIBAND_CLASS}/{name}"
    found = RdmaDevice(
        name=name,
        owner=SysfsOwner(),
        kind=_said(roots, f"{at}/node_type"),
        node_guid=roots.word(f"{at}/node_guid"),
        firmware=roots.word(f"{at}/fw_ver"),
        model=roots.word(f"{at}/hca_type"),
        board=roots.word(f"{at}/board_id"),
        said=said,
        answers=answers,
        netdev=_netdev(roots, at),
        nodes=nodes,
    )
    its_owner = owner(roots, at)  # last, since what is gone by then was not read as a whole
    return None if its_owner is None else replace(found, owner=its_owner)


def _ask(roots: Roots, name: str, known: dict[str, CounterFiles]) -> FirmwareAnswer:
    """`known`: the files of the counters that were found before, by name; it is changed."""
    device = f"{INFINIBAND_CLASS}/{name}"
    numbers = [number for number in roots.names(f"{device}/ports") if number.isdecimal()][:MAX_PORTS]
    ports = tuple(_port(roots, f"{device}/ports/{number}") for number in numbers)
    is_infiniband = any(port.link_type == INFINIBAND for port in ports)
    files = known[name] or counter_files(roots, device, [f"{device}/ports/{number}" for number in numbers])
    counters = read_counters(roots, files)
    known[name] = files if len(counters) == len(files) else {}
    return FirmwareAnswer(
        ports=ports,
        counters=counters,
        p_keys=_p_keys(roots, f"{device}/ports/{numbers[0]}") if is_infiniband else (),
        sensors=sensors(roots, f"{device}/device", shown="asic"),
    )


def _port(roots: Roots, at: str) -> Port:
    state = _said(roots, f"{at}/state")
    rate = _RATE.fullmatch(roots.word(f"{at}/rate")) if state == PORT_ACTIVE else None
    # Every active port was up; the counter is a command to the device, so it is read where it matters.
    downed = roots.number(f"{at}/counters/link_downed") if state == PORT_DOWN else None
    return Port(
        state=state,
        physical=_said(roots, f"{at}/phys_state"),
        link_type=_LAYERS.get(roots.word(f"{at}/link_layer"), ""),
        was_up=(downed or 0) > 0,
        rate_gbps=within(int(rate[1]), 1, MAX_SMALL) if rate else None,
    )


def _p_keys(roots: Roots, port: str) -> tuple[str, ...]:
    """Return the first partition keys; empty entries are 0x0000."""
    keys = (roots.word(f"{port}/pkeys/{index}") for index in range(MAX_P_KEYS))
    return tuple(dict.fromkeys(key for key in keys if _P_KEY.fullmatch(key) and key != "0x0000"))


def _netdev(roots: Roots, at: str) -> str:
    """Return the interface whose packets it sends; rxe says it itself."""
    said = roots.word(f"{at}/parent") or roots.word(f"{at}/ports/1/gid_attrs/ndevs/0")
    return said if "/" not in said and said not in {".", ".."} and roots.exists(f"{NET}/{said}") else ""


def _said(roots: Roots, path: str) -> int:
    match = _SAID.fullmatch(roots.word(path))
    return int(match[1]) if match else 0
