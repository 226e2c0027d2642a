"""Error counters of NICs as the probe's line has them, and cards with fewer ports than their peers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.node.roots import MAX_BYTES, Roots
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import MAX_COUNTERS, MAX_INTEGER
from support.changing_roots import SystemOf
from support.nic_trees import CONNECTX_7, CONNECTX_VF, MELLANOX, Nics

# The files of a port: Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/hw/mlx5/counters.c.
PORT = {
    "symbol_error": 7,
    "link_error_recovery": 1,
    "link_downed": 2,
    "port_rcv_errors": 3,
    "port_rcv_remote_physical_errors": 0,
    "port_rcv_switch_relay_errors": 0,
    "port_xmit_discards": 65535,
    "port_xmit_constraint_errors": 0,
    "port_rcv_constraint_errors": 0,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 0,
    "VL15_dropped": 0,
    "port_xmit_data": 18446744073709551615,
    "port_rcv_data": 39281740123,
    "port_xmit_packets": 1882117,
    "port_rcv_packets": 1881935,
    "port_xmit_wait": 4217,
}
OWN = {
    "lifespan": 10,
    "out_of_sequence": 12,
    "duplicate_request": 0,
    "packet_seq_err": 4,
    "rnr_nak_retry_err": 1,
    "local_ack_timeout_err": 5,
    "roce_adp_retrans": 8,
    "roce_slow_restart": 9,
    "np_cnp_sent": 77,
}
FILES: dict[str, str | int] = {
    **{f"counters/{name}": value for name, value in PORT.items()},
    **{f"hw_counters/{name}": value for name, value in OWN.items()},
}
OF_PORT = {
    "symbolError": 7,
    "linkErrorRecovery": 1,
    "linkDowned": 2,
    "portRcvErrors": 3,
    "portXmitDiscards": 65535,
    "localLinkIntegrityErrors": 15,
    "excessiveBufferOverrunErrors": 0,
}
OF_CONNECTIONS = {"rnrNakRetryErr": 1, "localAckTimeoutErr": 5, "roceSlowRestart": 9}
CARD = "0000:17:00.0"
RDMA = "sys/class/infiniband/mlx5_0"


@dataclass(slots=True)
class Machine:
    """A machine with one probe, which is polled."""

    root: Path
    nics: Nics = field(init=False)
    source: NicSource = field(init=False)

    def __post_init__(self) -> None:
        self.nics = Nics(self.root)
        self.source = NicSource(system=System(self.root))

    def card(self, bus_id: str = CARD, rdma: str = "mlx5_0", **more: Any) -> str:
        folder = self.nics.card(bus_id, vendor=MELLANOX, device=CONNECTX_7, driver="mlx5_core", sriov_totalvfs=16)
        self.nics.rdma(rdma, folder, **{"layer": "InfiniBand", "counters": FILES, **more})
        return folder

    def counters(self, id_: str = CARD) -> dict[str, int]:
        return next(each.readings.counters for each in self.source.poll().devices if each.id == id_)

    def conditions(self) -> dict[str, tuple[str, ...]]:
        return {each.id: each.readings.conditions for each in self.source.poll().devices}

    def file(self, path: str, value: str | int) -> None:
        self.nics.tree.file(path, value)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_card_says_the_errors_of_its_port_and_of_its_connections_and_no_traffic(machine: Machine) -> None:
    machine.card()
    assert machine.counters() == {**OF_PORT, **OF_CONNECTIONS}
    machine.file(f"{RDMA}/ports/1/counters/symbol_error", 8)
    assert machine.counters()["symbolError"] == 8
    assert len(machine.counters()) < MAX_COUNTERS


def test_a_virtual_function_says_what_its_own_connections_did_alone(machine: Machine) -> None:
    machine.card()
    (part,) = machine.nics.virtual_functions(CARD, 1, vendor=MELLANOX, device=CONNECTX_VF, driver="mlx5_core")
    machine.nics.rdma("mlx5_1", part, counters=FILES)
    machine.nics.interface("ens1f0v0", part, carrier_down_count=9)
    assert machine.counters("0000:17:00.1") == OF_CONNECTIONS


def test_a_sub_function_says_what_its_own_connections_did_alone(machine: Machine) -> None:
    folder = machine.card()
    name = "mlx5_core.sf.2"
    machine.file(f"{folder}/{name}/sfnum", 88)
    machine.nics.tree.link(f"sys/bus/auxiliary/devices/{name}", f"{folder}/{name}")
    machine.nics.rdma("mlx5_1", f"{folder}/{name}", counters=FILES)
    assert machine.counters(name) == OF_CONNECTIONS


def test_an_efa_says_what_its_driver_counts_as_errors_and_no_other_makers_file_is_read(machine: Machine) -> None:
    """The names: drivers/infiniband/hw/efa/efa_verbs.c."""
    errors = {
        "rdma_read_wr_err": 1,
        "rdma_write_wr_err": 2,
        "retrans_timeout_events": 3,
        "unresponsive_remote_events": 4,
        "impaired_remote_conn_events": 5,
        "rx_drops": 6,
    }
    traffic = {"lifespan": 12, "tx_bytes": 1 << 50, "retrans_pkts": 9, "retrans_bytes": 9000, "send_wrs": 7}
    files: dict[str, str | int] = {f"hw_counters/{name}": value for name, value in {**errors, **traffic}.items()}
    folder = machine.nics.card("0000:9a:00.0", vendor="0x1d0f", device="0xefa2", driver="efa")
    machine.nics.rdma("rdmap154s0", folder, kind="5: unspecified", layer="Unspecified", counters=files)
    machine.card(counters=files)
    assert machine.counters("0000:9a:00.0") == {
        "rdmaReadWrErr": 1,
        "rdmaWriteWrErr": 2,
        "retransTimeoutEvents": 3,
        "unresponsiveRemoteEvents": 4,
        "impairedRemoteConnEvents": 5,
        "rxDrops": 6,
        "linkDowned": 0,
    }
    assert machine.counters() == {"linkDowned": 0}


def test_the_ports_of_one_device_are_summed_up(machine: Machine) -> None:
    machine.card()
    machine.nics.tree.files(f"{RDMA}/ports/2", link_layer="InfiniBand", state="4: ACTIVE", **FILES)
    assert machine.counters() == {name: 2 * value for name, value in {**OF_PORT, **OF_CONNECTIONS}.items()}


@dataclass(frozen=True, slots=True)
class RefusingRoots(Roots):
    """As a kernel whose firmware does not give this file: EINVAL."""

    refused: str = ""

    def read(self, path: str | Path, limit: int = MAX_BYTES) -> str:
        return "" if str(path).endswith(self.refused) else super(RefusingRoots, self).read(path, limit)


def test_a_counter_that_one_port_does_not_say_is_left_out_until_it_does(machine: Machine) -> None:
    """Else the sum would rise by all that this port ever counted, as soon as it does."""
    machine.card()
    machine.nics.tree.files(f"{RDMA}/ports/2", link_layer="InfiniBand", state="4: ACTIVE", **FILES)
    before = machine.counters()
    machine.source.system = SystemOf(machine.root, below=RefusingRoots(machine.root, refused="2/counters/symbol_error"))
    assert machine.counters() == {name: value for name, value in before.items() if name != "symbolError"}
    machine.source.system = System(machine.root)
    assert machine.counters() == before


@pytest.mark.parametrize("value", ["N/A (no PMA)", "", "-1", "many", str(MAX_INTEGER + 1)])
def test_what_is_no_count_is_left_out(machine: Machine, value: str) -> None:
    machine.card()
    machine.file(f"{RDMA}/ports/1/counters/symbol_error", value)
    assert "symbolError" not in machine.counters()
    assert machine.counters()["linkDowned"] == 2, "the others are known"


def test_counters_of_a_driver_that_was_loaded_again_are_found(machine: Machine) -> None:
    folder = machine.card(counters={})
    assert machine.counters() == {"linkDowned": 0}
    machine.nics.forget(folder)
    assert machine.counters() == {}
    machine.nics.rdma("mlx5_0", folder, layer="InfiniBand", counters=FILES)
    assert machine.counters() == {**OF_PORT, **OF_CONNECTIONS}


def test_an_rdma_device_in_a_pods_namespace_has_no_counters_and_not_zero(machine: Machine) -> None:
    folder = machine.card()
    machine.nics.interface("ib0", folder, kind=32, carrier_down_count=4)
    assert machine.counters() == {**OF_PORT, **OF_CONNECTIONS, "carrierDownCount": 4}
    machine.nics.forget(folder, "infiniband")
    assert machine.counters() == {"carrierDownCount": 4}
    machine.nics.forget(folder, "net")
    assert machine.counters() == {}


def test_of_a_device_with_several_interfaces_no_loss_of_carrier_is_counted(machine: Machine) -> None:
    """A pod may have one of them, so that which are seen changes."""
    folder = machine.nics.card(CARD, vendor=MELLANOX, device="0x1007", driver="mlx4_core", sriov_totalvfs=8)
    machine.nics.interface("first", folder, carrier_down_count=4)
    machine.nics.interface("second", folder, carrier_down_count=9)
    machine.file(f"{folder}/net/second/dev_port", 1)
    assert machine.counters() == {}
    (machine.root / "sys/class/net/first").unlink()
    assert machine.counters() == {}, "the second port's alone are not the first one's"


# --- fewer ports -----------------------------------------------------------------------------------------------------
SINGLE, DUAL = "MT_0000000838", "MT_0000000834"  # board ids (PSID), /sys/class/infiniband/<device>/board_id


def dual(machine: Machine, slot: int, *, ports: int = 2, board: str = DUAL) -> list[str]:
    return [
        machine.card(f"0000:{slot:02x}:00.{port}", f"mlx5_{slot}{port}", board_id=board, counters={})
        for port in range(ports)
    ]


def with_fewer(machine: Machine) -> set[str]:
    return {id_ for id_, each in machine.conditions().items() if "fewerPorts" in each}


def test_a_card_with_one_port_where_its_peers_have_two_is_said(machine: Machine) -> None:
    for slot in (0x17, 0x2A, 0x3B):
        dual(machine, slot)
    dual(machine, 0x5D, ports=1)
    assert with_fewer(machine) == {"0000:5d:00.0"}


def test_cards_of_one_port_and_of_two_with_the_same_chip_are_all_well(machine: Machine) -> None:
    """As in a DGX H100: ConnectX-7 of one port for computing, of two ports for storage."""
    for slot in range(8):
        dual(machine, 0x10 + slot, ports=1, board=SINGLE)
    for slot in range(2):
        dual(machine, 0x30 + slot)
    assert with_fewer(machine) == set()


def test_a_single_card_has_no_peers(machine: Machine) -> None:
    dual(machine, 0x17, ports=1)
    assert with_fewer(machine) == set()


def test_a_card_is_compared_while_a_pods_namespace_has_its_rdma_device(machine: Machine) -> None:
    first, _ = dual(machine, 0x17)
    (lone,) = dual(machine, 0x5D, ports=1)
    assert with_fewer(machine) == {"0000:5d:00.0"}
    machine.nics.forget(lone)
    machine.nics.forget(first)
    assert with_fewer(machine) == {"0000:5d:00.0"}, "it has one port, whoever uses it"


def test_virtual_functions_are_no_ports(machine: Machine) -> None:
    dual(machine, 0x17, ports=1)
    dual(machine, 0x5D, ports=1)
    machine.nics.virtual_functions("0000:17:00.0", 4, vendor=MELLANOX, device=CONNECTX_VF, driver="mlx5_core")
    assert with_fewer(machine) == set()


# --- character devices -----------------------------------------------------------------------------------------------
def test_each_port_of_infiniband_has_a_umad_of_its_own(machine: Machine) -> None:
    machine.card()
    port = f"{RDMA}/ports/2"
    machine.nics.tree.files(port, link_layer="Ethernet", state="4: ACTIVE")
    assert machine.conditions()[CARD] == ()
    machine.nics.tree.files(port, link_layer="InfiniBand")
    assert machine.conditions()[CARD] == ("deviceNodeMissing",)
    machine.file("sys/class/infiniband_mad/umad7/ibdev", "mlx5_0")
    machine.nics.tree.node("/dev/infiniband/umad7")
    assert machine.conditions()[CARD] == ()
