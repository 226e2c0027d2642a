"""FPGAs: the PCI functions of each, and what its driver says of it: its shell, device nodes, and readings.

XRT's drivers make a file `user_pf` or `mgmt_pf` in a function's folder, which says what it is (since 2018.3, whatever
its number): the user function, which programs open, or the management function. Both of one FPGA have the same domain,
bus and device. A machine may have both, or the user function alone (a virtual machine, AWS), or the management function
alone: of a card with its golden image, or while its user function is off the bus. Names, links and PCI ids are kept by
the kernel: reading them (`on_bus`) waits for no card.

Reading a card (`read`) may hang. Sources: XRT's sysfs, as its tools read it: `rom.u.*` (shell), `xmc.u.*` or, of Versal
cards, `hwmon_sdm.u.*` (serial number, sensors), `firewall.m.*` of the management function. While a card is reset these
folders are gone, or empty.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nodedevices_probe.fpga import FIREWALL, NO_SHELL
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE, PCI_DEVICES, drm, node_conditions, sensors, slot
from nodedevices_probe.protocol import MAX_INTEGER, Readings, text, within

# --- PCI functions ----------------------------------------------------------------------------------------------------
MAKERS = {"0x10ee": "Xilinx", "0x13fe": "Advantech", "0x1d0f": "AWS", "0x3475": "Arista"}
XILINX = "0x10ee"
# xocl-devices.h: cards as they leave the factory, without a shell.
GOLDEN_IDS = frozenset({"0xd000", "0xd004", "0xd008", "0xd00c", "0xd020", "0xd030", "0xd03c", "0xd04c"})
U30_IDS = frozenset({"0x503d", "0x513d", "0xd03c"})  # a U30's user functions, and what it has from the factory
MEDIA_IDS = frozenset({"0x5070"})  # MA35D
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


def on_bus(roots: Roots, last_users: Mapping[str, str]) -> tuple[list[FpgaFunctions], list[str], int]:
    """Return FPGAs and media accelerators, by PCI address, in its order, and how many cards there are, whatever driver
    they have. `last_users`: of each slot (domain, bus and device), the user function that it last had."""
    slots = defaultdict[str, list[str]](list)
    media: list[str] = []
    accelerators: set[str] = set()
    for bus_id in roots.names(PCI_DEVICES):
        if not PCI_DEVICE.fullmatch(bus_id) or (maker := _word(roots, bus_id, "vendor")) not in MAKERS:
            continue
        is_media = maker == XILINX and _word(roots, bus_id, "device") in MEDIA_IDS
        if is_media or _word(roots, bus_id, "class")[:6] == ACCELERATOR_CLASS:
            accelerators.add(slot(bus_id))
        if is_media:
            media.append(bus_id)
        else:
            slots[slot(bus_id)].append(bus_id)
    found = (_functions(roots, bus_ids, last_users.get(name, "")) for name, bus_ids in sorted(slots.items()))
    return [fpga for fpga in found if fpga is not None], sorted(media), len(accelerators)


def instance(bus_id: str) -> int:
    """The number that XRT's drivers give a function: domain, bus, device and function in one."""
    domain, bus, rest = bus_id.split(":")
    device, function = rest.split(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)


def _functions(roots: Roots, bus_ids: list[str], last_user: str) -> FpgaFunctions | None:
    """Return the functions of one slot. None: there is no FPGA, or a virtual machine has it."""
    user = next((id_ for id_ in bus_ids if roots.exists(f"{PCI_DEVICES}/{id_}/user_pf")), "")
    management = next((id_ for id_ in bus_ids if roots.exists(f"{PCI_DEVICES}/{id_}/mgmt_pf")), "")
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
        golden=not on_bus_now
        and (_word(roots, management, "device") in GOLDEN_IDS or _word(roots, management, "mfg") == "1"),
    )


def _word(roots: Roots, bus_id: str, file: str) -> str:
    return roots.word(f"{PCI_DEVICES}/{bus_id}/{file}").lower()


# --- what the driver says of a card -----------------------------------------------------------------------------------
NO_DRIVER = "no driver has its user function (XRT's xocl)"
NO_USER = "its user function is not on the bus: the card is being reset or programmed"
RESETTING = "its shell cannot be read: the card is being reset, or the driver has only just found it"
NO_NODE = "the driver made no device node for it"
HANGS = "reading its driver's attributes has not finished"
_SERIAL = re.compile(r"[A-Za-z0-9-]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fpga:
    """Texts are "" where the driver does not say. `management_node` goes to no container by itself."""

    functions: FpgaFunctions
    shell: str = ""
    timestamp: str = ""
    uuid: str = ""
    serial: str = ""
    board: str = ""
    nodes: tuple[str, ...] = ()
    management_node: str = ""
    readings: Readings = field(default_factory=Readings)


def unread(functions: FpgaFunctions, why: str) -> Fpga:
    return Fpga(functions=functions, readings=Readings(error=why))


def read(roots: Roots, functions: FpgaFunctions) -> Fpga:
    if functions.golden:
        return Fpga(functions=functions, readings=Readings(conditions=(NO_SHELL,)))
    if not functions.present or not functions.bound:
        return unread(functions, NO_DRIVER if functions.present else NO_USER)
    at = f"{PCI_DEVICES}/{functions.user}"
    rom = _folder(roots, at, "rom.")
    shell, timestamp = roots.word(f"{rom}/VBNV"), roots.word(f"{rom}/timestamp")
    if not rom or not shell or not timestamp or roots.number(f"{at}/dev_offline") == 1:
        return unread(functions, RESETTING)
    controller = _folder(roots, at, "hwmon_sdm.") or _folder(roots, at, "xmc.")
    render = drm(roots, at).render
    qdma = (f"/dev/xfpga/dma.qdma.u{instance(functions.user)}.0",) if _folder(roots, at, "dma.qdma.u") else ()
    serial = roots.word(f"{controller}/serial_num") if controller else ""
    nodes = (f"/dev/dri/renderD{render}", *qdma) if render is not None else ()
    return Fpga(
        functions=functions,
        shell=shell,
        timestamp=timestamp,
        uuid=text(roots.read(f"{at}/logic_uuids").rpartition("\n")[2]),
        serial=serial if _SERIAL.fullmatch(serial) else "",
        board=roots.word(f"{controller}/bd_name") if controller else "",
        nodes=nodes,
        management_node=_management_node(roots, functions.management),
        readings=_readings(roots, functions, controller, nodes),
    )


def _readings(roots: Roots, functions: FpgaFunctions, controller: str, nodes: tuple[str, ...]) -> Readings:
    if not nodes:
        return Readings(error=NO_NODE)
    felt = sensors(roots, controller) if controller else Readings()
    celsius = roots.number(f"{controller}/xmc_fpga_temp") if controller else None
    microwatts = roots.number(f"{controller}/xmc_power") if controller else None
    firewall = _folder(roots, f"{PCI_DEVICES}/{functions.management}", "firewall.") if functions.management else ""
    tripped = (FIREWALL,) if firewall and roots.number(f"{firewall}/detected_status", 0) else ()
    return replace(
        felt,
        temperature_celsius=within(celsius, -300, 1000) if celsius else felt.temperature_celsius,
        power_milliwatts=within(microwatts, 0, MAX_INTEGER, per=1000) if microwatts else felt.power_milliwatts,
        conditions=(*tripped, *node_conditions(roots, nodes)),
    )


def _management_node(roots: Roots, management: str) -> str:
    number = roots.number(f"{PCI_DEVICES}/{management}/instance") if management else None
    return f"/dev/xclmgmt{number}" if number is not None and 0 <= number < 1 << 32 else ""


def _folder(roots: Roots, at: str, prefix: str) -> str:
    """Return the folder of one of a function's sub-devices: `rom.u.12582912`; "" where it has none."""
    return next((f"{at}/{name}" for name in roots.names(at) if name.startswith(prefix)), "")
