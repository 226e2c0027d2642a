"""PCI functions by the FPGA that they belong to: the user function, which programs open, and the management function.

XRT's drivers make a file `user_pf` or `mgmt_pf` in a function's folder, which says what it is (since 2018.3, whatever
its number). Both of one FPGA have the same domain, bus and device. A machine may have both, or the user function alone
(a virtual machine, AWS), or the management function alone: of a card with its golden image, or while its user function
is off the bus. Names, links and PCI ids are kept by the kernel: reading them here waits for no card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE, PCI_DEVICES

MAKERS = {"0x10ee": "Xilinx", "0x13fe": "Advantech", "0x1d0f": "AWS", "0x3475": "Arista"}
XILINX = "0x10ee"
# xocl-devices.h: cards as they leave the factory, without a shell.
GOLDEN_IDS = frozenset({"0xd000", "0xd004", "0xd008", "0xd00c", "0xd020", "0xd030", "0xd03c", "0xd04c"})
U30_IDS = frozenset({"0x503d", "0x513d", "0xd03c"})  # a U30's user functions, and what it has from the factory
MEDIA_IDS = frozenset({"0x5070"})  # MA35D
USER_FILE, MANAGEMENT_FILE = "user_pf", "mgmt_pf"
ACCELERATOR_CLASS = "0x1200"
FOR_MACHINES = "vfio-pci"  # the driver of functions that virtual machines have
USUAL_USER = 1  # the number of the user function, in all shells since 2018.3


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaFunctions:
    """PCI functions of one FPGA. `user`: where it has, or last had, its user function; `present`: it has it, `bound`:
    XRT's driver has that. `management`: "" where the machine does not have it."""

    user: str
    management: str = ""
    maker: str = XILINX
    device: str = ""  # PCI device id of the user function
    present: bool = True
    bound: bool = True
    golden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnBus:
    """`fpgas` and `media` by PCI address, in its order. `accelerators`: cards' chips, whatever driver they have."""

    fpgas: tuple[FpgaFunctions, ...] = ()
    media: tuple[str, ...] = ()
    accelerators: int = 0


def on_bus(roots: Roots, last_users: Mapping[str, str]) -> OnBus:
    """`last_users`: of each slot (domain, bus and device), the user function that it last had."""
    slots: dict[str, list[str]] = {}
    media: list[str] = []
    accelerators: set[str] = set()
    for bus_id in roots.names(PCI_DEVICES):
        if not PCI_DEVICE.fullmatch(bus_id) or (maker := _word(roots, bus_id, "vendor")) not in MAKERS:
            continue
        if _word(roots, bus_id, "class")[:6] == ACCELERATOR_CLASS:
            accelerators.add(slot(bus_id))
        if maker == XILINX and _word(roots, bus_id, "device") in MEDIA_IDS:
            media.append(bus_id)
            accelerators.add(slot(bus_id))
        else:
            slots.setdefault(slot(bus_id), []).append(bus_id)
    found = (_functions(roots, bus_ids, last_users.get(name, "")) for name, bus_ids in sorted(slots.items()))
    return OnBus(
        fpgas=tuple(fpga for fpga in found if fpga is not None),
        media=tuple(sorted(media)),
        accelerators=len(accelerators),
    )


def slot(bus_id: str) -> str:
    """Return the slot of an address: 0000:3b:00."""
    return bus_id.rpartition(".")[0]


def instance(bus_id: str) -> int:
    """The number that XRT's drivers give a function: domain, bus, device and function in one."""
    domain, bus, rest = bus_id.split(":")
    device, function = rest.split(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)


def _functions(roots: Roots, bus_ids: list[str], last_user: str) -> FpgaFunctions | None:
    """Return the functions of one slot. None: there is no FPGA, or a virtual machine has it."""
    user = next((id_ for id_ in bus_ids if _has(roots, id_, USER_FILE)), "")
    management = next((id_ for id_ in bus_ids if _has(roots, id_, MANAGEMENT_FILE)), "")
    if not user and not management:
        return None
    # Without XRT's driver the user function is the other one beside the management function.
    others = [id_ for id_ in bus_ids if id_ != management]
    on_bus_now = user or next((id_ for id_ in others if id_ == last_user), "") or next(iter(others), "")
    if not user and on_bus_now and roots.link(f"{PCI_DEVICES}/{on_bus_now}/driver") == FOR_MACHINES:
        return None
    here = on_bus_now or management
    return FpgaFunctions(
        user=on_bus_now or last_user or f"{slot(management)}.{USUAL_USER}",
        management=management,
        maker=_word(roots, here, "vendor"),
        device=_word(roots, here, "device"),
        present=bool(on_bus_now),
        bound=bool(user),
        golden=not on_bus_now and _golden(roots, management),
    )


def _golden(roots: Roots, management: str) -> bool:
    return _word(roots, management, "device") in GOLDEN_IDS or _word(roots, management, "mfg") == "1"


def _has(roots: Roots, bus_id: str, file: str) -> bool:
    return roots.exists(f"{PCI_DEVICES}/{bus_id}/{file}")


def _word(roots: Roots, bus_id: str, file: str) -> str:
    return roots.word(f"{PCI_DEVICES}/{bus_id}/{file}").lower()
