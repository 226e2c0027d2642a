"""Facts of one FPGA from its driver: its shell, its device nodes, and what bears on its health. Reading it may hang.

Sources: XRT's sysfs, as its tools read it: `rom.u.*` (shell), `xmc.u.*` or, of Versal cards, `hwmon_sdm.u.*` (serial
number, sensors), `firewall.m.*` of the management function. While a card is reset these folders are gone, or empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nodedevices_probe.fpga import FIREWALL, NO_SHELL
from nodedevices_probe.fpga.functions import FpgaFunctions, instance
from nodedevices_probe.node.drm import drm, hwmon, missing, sensors
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICES
from nodedevices_probe.protocol import MAX_INTEGER, Readings, text, within

NO_DRIVER = "no driver has its user function (XRT's xocl)"
NO_USER = "its user function is not on the bus: the card is being reset or programmed"
RESETTING = "its shell cannot be read: the card is being reset, or the driver has only just found it"
NO_NODE = "the driver made no device node for it"
HANGS = "reading its driver's attributes has not finished"
MANAGEMENT_NODE = "/dev/xclmgmt"
QDMA_NODE = "/dev/xfpga/dma.qdma.u"
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


def hanging(functions: FpgaFunctions) -> Fpga:
    return Fpga(functions=functions, readings=Readings(error=HANGS))


def read(roots: Roots, functions: FpgaFunctions) -> Fpga:
    if functions.golden:
        return Fpga(functions=functions, readings=Readings(conditions=(NO_SHELL,)))
    if not functions.present or not functions.bound:
        return Fpga(functions=functions, readings=Readings(error=NO_DRIVER if functions.present else NO_USER))
    at = f"{PCI_DEVICES}/{functions.user}"
    rom = _folder(roots, at, "rom.")
    shell, timestamp = roots.word(f"{rom}/VBNV"), roots.word(f"{rom}/timestamp")
    if not rom or not shell or not timestamp or roots.number(f"{at}/dev_offline") == 1:
        return Fpga(functions=functions, readings=Readings(error=RESETTING))
    controller = _folder(roots, at, "hwmon_sdm.") or _folder(roots, at, "xmc.")
    render = drm(roots, at).render
    qdma = (f"{QDMA_NODE}{instance(functions.user)}.0",) if _folder(roots, at, "dma.qdma.u") else ()
    nodes = (f"/dev/dri/renderD{render}", *qdma) if render is not None else ()
    return Fpga(
        functions=functions,
        shell=shell,
        timestamp=timestamp,
        uuid=text(roots.read(f"{at}/logic_uuids").rpartition("\n")[2]),
        serial=_serial(roots.word(f"{controller}/serial_num")) if controller else "",
        board=roots.word(f"{controller}/bd_name") if controller else "",
        nodes=nodes,
        management_node=_management_node(roots, functions.management),
        readings=_readings(roots, functions, controller, nodes),
    )


def _readings(roots: Roots, functions: FpgaFunctions, controller: str, nodes: tuple[str, ...]) -> Readings:
    if not nodes:
        return Readings(error=NO_NODE)
    felt = sensors(roots, hwmon(roots, controller) if controller else "")
    celsius = roots.number(f"{controller}/xmc_fpga_temp") if controller else None
    microwatts = roots.number(f"{controller}/xmc_power") if controller else None
    tripped = (FIREWALL,) if _firewall_tripped(roots, functions.management) else ()
    return Readings(
        thermal_slowdown=felt.hot,
        temperature_celsius=within(celsius, -300, 1000) if celsius else felt.celsius,
        power_milliwatts=within(microwatts // 1000, 0, MAX_INTEGER) if microwatts else felt.milliwatts,
        conditions=(*tripped, *missing(roots, nodes)),
    )


def _firewall_tripped(roots: Roots, management: str) -> bool:
    folder = _folder(roots, f"{PCI_DEVICES}/{management}", "firewall.") if management else ""
    return bool(roots.number(f"{folder}/detected_status", 0)) if folder else False


def _management_node(roots: Roots, management: str) -> str:
    number = roots.number(f"{PCI_DEVICES}/{management}/instance") if management else None
    return f"{MANAGEMENT_NODE}{number}" if number is not None and 0 <= number < 1 << 32 else ""


def _folder(roots: Roots, at: str, prefix: str) -> str:
    """Return the folder of one of a function's sub-devices: `rom.u.12582912`; "" where it has none."""
    return next((f"{at}/{name}" for name in roots.names(at) if name.startswith(prefix)), "")


def _serial(value: str) -> str:
    return value if _SERIAL.fullmatch(value) else ""
