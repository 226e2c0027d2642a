"""Boards of AMD, Intel, Xilinx and makers of NICs: what a device of each has where the simulated file says nothing.
NVIDIA's are in `nvidia`.

A board of the base class is what most makers' devices are: known by its PCI address, with attributes and amounts that
are the same for all of a kind, and without device nodes, so that a container starts on a machine that has no such
hardware. What the file says of a device (`entry`) comes first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nodedevices_probe import amd, fpga, intel, nic
from nodedevices_probe.nic.models import maker, model
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, Partition
from nodedevices_probe.source import attributes

KERNEL = "6.8.0-45-generic"
_NAMESPACE = uuid.UUID("3d0a9d3e-3f5c-5a0e-9d0b-6e6f64646576")  # any constant: it keeps our ids apart from others'


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a device is. `index`: its number in the file. `place`: which of its kind in the profile; of a virtual
    function, which of its physical one. `parent`: of a virtual function, its physical one. `mig_minors`: the machine's
    capability nodes, as its driver numbers them; none: as drivers usually do."""

    node: str
    index: int
    bus_id: str
    place: int = 0
    parent: Seat | None = None
    mig_minors: Mapping[tuple[int, int, int | None], int] = field(default_factory=dict)


More = Callable[[Seat], Mapping[str, str | int | bool]]  # attributes of one device


def loaded(name: str, version: str, cuda_version: str = "") -> Driver:
    return Driver(state=DriverState.LOADED, name=name, version=version, cuda_version=cuda_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """`well`: the readings of a device that nothing is wrong with. A reading that is not there says nothing, so that a
    fault that is taken out of the file would never end. `extra`: attributes, as YAML has them. `xgmi`: all of them are
    linked. `function`: of its PCI address. `functions`: virtual ones that a profile has for each. `beside_gpus`: in a
    profile each is on the PCIe root of a GPU."""

    type: str = "gpu"
    vendor: str
    driver: Driver
    product_name: str = ""
    brand: str = ""
    architecture: str = ""
    firmware: str = ""
    machine_type: str = ""
    clique: str = ""
    memory_mib: int = 0
    capacity: Mapping[str, str] = field(default_factory=dict)  # beside memory
    extra: Mapping[str, str | int | bool] = field(default_factory=dict)
    well: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1  # in one machine
    xgmi: bool = False
    bridged: int = 0  # NVLinks that a bridge makes between devices 0 and 1, 2 and 3, ...
    function: int = 0
    functions: int = 0
    beside_gpus: bool = False
    more: More = lambda seat: {}

    def device(self, seat: Seat, entry: Mapping[str, Any], place: str) -> DeviceFact:
        """Return a device without its readings, and without what the file says of any. `place`: of `entry`, for errors.
        Raises CheckError."""
        return DeviceFact(
            id=seat.bus_id,
            index=seat.index,
            type=self.type,
            vendor=self.vendor,
            product_name=self.product_name,
            brand=self.brand,
            architecture=self.architecture,
            firmware=self.firmware,
            pci_bus_id=seat.bus_id,
            extra=attributes({**self.extra, **self.more(seat)}),
        )


def identity(node: str, *what: int | str) -> uuid.UUID:
    """The same after every restart, different on every node."""
    return uuid.uuid5(_NAMESPACE, "/".join((node, *map(str, what))))


def pci_bus_id(index: int) -> str:
    """Two devices every 16 buses, as on the machines these boards come in; 64 in a PCI domain."""
    domain, index = divmod(index, 64)
    return f"{domain:04x}:{0x17 + 0x10 * (index // 2) % 0xE0 + index % 2 + 2 * (index // 28):02x}:00.0"


def function_bus_id(parent: str, number: int) -> str:
    """The address of a virtual function, from its physical one's."""
    device, function = divmod(number, 8)
    return f"{parent[:-4]}{1 + device:02x}.{function}"


# --- AMD's Instinct GPUs, whole or cut into compute partitions, all linked by XGMI ------------------------------------
SIMDS_OF_UNIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdBoard(Board):
    """`parts`: so many compute partitions; 1: it is whole."""

    parts: int = 1
    compute_units: int

    def device(self, seat: Seat, entry: Mapping[str, Any], place: str) -> DeviceFact:
        amounts = {"memory": f"{self.memory_mib // self.parts}Mi"} | _units(self.compute_units // self.parts)
        profile = str(self.extra[amd.PROFILE])
        return replace(
            Board.device(self, seat, entry, place),
            uuid=f"{identity(seat.node, seat.index).int >> 64:016x}",
            partitions=tuple(
                Partition(id=f"{seat.bus_id}-xcp-{number}", profile=profile, index=number, capacity=amounts)
                for number in range(self.parts if self.parts > 1 else 0)
            ),
        )


def _units(count: int) -> dict[str, str]:
    return {"computeUnits": str(count), "simds": str(count * SIMDS_OF_UNIT)}


def _mi300x(profile: str, parts: int = 1) -> AmdBoard:
    """`profile`: compute and memory partitions."""
    return AmdBoard(
        vendor=amd.VENDOR,
        driver=loaded("amdgpu", "6.12.12"),
        brand="AMD",
        product_name="AMD Instinct MI300X OAM",
        architecture="gfx942",
        firmware="113-M3000100-103",
        memory_mib=196_592,
        capacity=_units(304),
        extra={"deviceID": "74a1", amd.PROFILE: profile, "partitionable": True, "memoryPartitionable": True},
        well={
            "remap_pending": False,
            "remap_failure": False,
            "remapped_uncorrectable": 0,
            "ecc_uncorrectable_volatile": 0,
            "thermal_slowdown": False,
        },
        xgmi=True,
        parts=parts,
        compute_units=304,
    )


# --- Intel's Data Center GPUs. The kernel has no name of a model, and so they have none here --------------------------
def _intel(driver: str, device_id: str, memory_mib: int) -> Board:
    return Board(
        vendor=intel.VENDOR,
        driver=loaded(driver, KERNEL),
        brand="Intel",
        memory_mib=memory_mib,
        extra={intel.DRIVER: driver, "deviceID": device_id},
        well={"thermal_slowdown": False},
    )


# --- Xilinx' Alveo cards, by the user functions that containers get ---------------------------------------------------
def _alveo(seat: Seat) -> Mapping[str, str]:
    return {
        fpga.SERIAL: f"XFL1{identity(seat.node, seat.index).hex[:8].upper()}",
        fpga.MANAGEMENT_FUNCTION: f"{seat.bus_id[:-1]}0",
    }


# --- NICs: in a profile each is beside a GPU --------------------------------------------------------------------------
def _interface(first: int, suffix: str, rdma: str = "") -> More:
    """The interface of each card, ens<first + place><suffix>, and its RDMA device."""

    def more(seat: Seat) -> Mapping[str, str]:
        name = f"ens{first + seat.place}{suffix}"
        found = {nic.IF_NAME: name, nic.PF_NAME: name}
        if rdma:
            found |= {nic.RDMA_DEVICE: f"{rdma}{seat.place}", nic.NODE_GUID: _guid(seat)}
        return found

    return more


def _guid(seat: Seat) -> str:
    guid = f"{identity(seat.node, seat.index).int >> 64:016x}"
    return ":".join(guid[at : at + 4] for at in range(0, 16, 4))


_E810_INTERFACE = _interface(30, "f0", "irdma")


def _e810_function(seat: Seat) -> Mapping[str, str | int]:
    """One that the file has without its physical function has a number alone."""
    if seat.parent is None:
        return {nic.VF_INDEX: seat.place}
    name = str(_E810_INTERFACE(seat.parent)[nic.IF_NAME])
    return {
        nic.IF_NAME: f"{name}v{seat.place}",
        nic.PF_NAME: name,
        nic.PHYSICAL_FUNCTION: seat.parent.bus_id,
        nic.VF_INDEX: seat.place,
    }


def _nic(
    vendor: str,
    device_id: str,
    driver: str,
    more: More,
    *,
    speed: int,
    most_functions: int = 0,
    functions: int = 0,
    **own: Any,
) -> Board:
    """`speed`: in Gbit/s. `own`: further fields of the board."""
    extra: dict[str, str | int] = {
        nic.PCI_VENDOR: vendor,
        nic.DEVICE_ID: device_id,
        nic.DRIVER: driver,
        nic.LINK_TYPE: nic.ETHER,
        nic.SPEED: speed,
    }
    return Board(
        **{"type": nic.PHYSICAL, **own},
        vendor=maker(vendor).word,
        brand=maker(vendor).brand,
        product_name=model(vendor, device_id),
        driver=loaded("linux", KERNEL),
        capacity={nic.VFS: str(most_functions)} if most_functions else {},
        extra=extra | ({nic.VIRTUAL_FUNCTIONS: functions} if functions else {}),
        more=more,
        beside_gpus=True,
        functions=functions,
    )


BOARDS = {
    "mi300x": _mi300x("spx_nps1"),
    "mi300x-cpx": _mi300x("cpx_nps4", 8),
    "flex": _intel("i915", "56c0", 14_248),  # Flex 170
    "pvc": _intel("xe", "0bd5", 131_072),  # Max 1550
    "connectx-7": _nic(
        "15b3", "1021", "mlx5_core", _interface(10, "np0", "mlx5_"), speed=400, firmware="28.39.1002", most_functions=16
    ),
    "e810": _nic("8086", "1592", "ice", _E810_INTERFACE, speed=100, firmware="1.71", most_functions=128, functions=4),
    "e810-vf": _nic("8086", "1889", "iavf", _e810_function, speed=100, type=nic.VIRTUAL),
    "sfn-x2": _nic(nic.SOLARFLARE, "0b03", "sfc", _interface(50, "f0np0"), speed=25),
    "u250": Board(
        type=fpga.FPGA,
        vendor=fpga.VENDOR,
        driver=loaded("xocl", "2.16.204"),
        brand="Xilinx",
        product_name="ALVEO U250 PQ",
        function=1,  # 0 is the management function
        extra={
            fpga.PCI_VENDOR: "10ee",
            fpga.DEVICE_ID: "5005",
            fpga.SHELL: "xilinx_u250_gen3x16_xdma_shell_4_1",
            fpga.TIMESTAMP: "1623351600",
            fpga.SHELL_UUID: "12c8fafb0632499db1c0c6676271b8a6",
            fpga.DEVICE_TYPE: "u250",
        },
        more=_alveo,
    ),
}
