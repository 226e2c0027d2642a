"""FPGA cards that XRT's drivers have (Alveo, Versal, AWS F1, Advantech, Arista), and MA35D media accelerators.

A card is one device, by the PCI address of its user function, as Xilinx' device plugin has it. A U30 has two FPGAs and
one serial number: the card is the device, `u30-<serial number>`, and its FPGAs are partitions, by their PCI addresses.

Each is read by itself and for a bounded time, so that a card that is being reset keeps no other waiting. It stays in
the list with an error while that lasts. What must be known to call it the same (the user function of a slot, the
serial number of a U30) is remembered for that; a U30 of which this process has read no serial number is a problem of
the probe and no device, until it has one.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from nodedevices_probe.fpga import (
    DEVICE_ID,
    DEVICE_TYPE,
    FPGA,
    MANAGEMENT_FUNCTION,
    MANAGEMENT_NODES,
    MEDIA,
    PCI_VENDOR,
    SERIAL,
    SHELL,
    SHELL_UUID,
    TIMESTAMP,
    U30,
    VENDOR,
    card,
)
from nodedevices_probe.fpga.card import MAKERS, U30_IDS, Fpga, FpgaFunctions, on_bus
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICES, System, node_conditions, slot
from nodedevices_probe.protocol import (
    MAX_MESSAGE,
    Attribute,
    DeviceFact,
    Partition,
    Problem,
    Readings,
    normal_bus_id,
    problem,
    text,
)
from nodedevices_probe.source import BoundedReads, Found, SysfsSource, attributes

MISC = "sys/class/misc"
MEDIA_MODULE = "ama_transcoder"  # its devices are /dev/ama_transcoder<N>, one for each of a card's two chips
MODULES = ("xocl", "xclmgmt", MEDIA_MODULE)
MAX_PROBLEMS = 16
NO_SERIAL = "it has no serial number, which shows what belongs to a U30"
GOLDEN = "it is a U30 with only its golden image: program a shell"
NO_MEDIA_DRIVER = (
    f"the driver {MEDIA_MODULE} does not list it: the module is not loaded, or its firmware must be written"
)
_TRANSCODER = re.compile(rf"{MEDIA_MODULE}[0-9]{{1,4}}")
_U30_SHELL = "xilinx_u30"


@dataclass(slots=True, kw_only=True)
class FpgaSource(SysfsSource):
    name: str = "fpga"
    fpga_reads: BoundedReads[Fpga] = field(default_factory=BoundedReads)
    media_reads: BoundedReads[DeviceFact | None] = field(default_factory=BoundedReads)
    _users: dict[str, str] = field(default_factory=dict)  # of each slot, its user function
    _serials: dict[str, str] = field(default_factory=dict)  # of U30s, by user function
    _members: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of U30s, user functions by serial number
    _transcoders: dict[str, str] = field(default_factory=dict)  # PCI addresses, by the driver's name

    def poll(self) -> SourceFacts:
        fpgas, media, accelerators = on_bus(self.roots, self._users)
        return self.facts(MODULES, partial(self._found, fpgas, media), on_bus=accelerators)

    def _found(self, on_bus: Sequence[FpgaFunctions], media: Sequence[str]) -> Found:
        cards, problems = self._cards(self.roots, on_bus)
        return sorted(
            [*cards, *self._media(self.roots, media)], key=lambda device: (device.type, device.pci_bus_id, device.id)
        ), problems[:MAX_PROBLEMS]

    def _cards(self, roots: Roots, on_bus: Sequence[FpgaFunctions]) -> tuple[list[DeviceFact], list[Problem]]:
        functions = {fpga.user: fpga for fpga in on_bus}
        self._users = {slot(user): user for user in functions}
        read = self.fpga_reads.read({user: partial(card.read, roots, fpga) for user, fpga in functions.items()})
        fpgas = [read[user] or card.unread(fpga, card.HANGS) for user, fpga in functions.items()]
        serials = {fpga.functions.user: fpga.serial for fpga in fpgas if fpga.serial}
        self._serials = {user: serial for user, serial in self._serials.items() if user in functions} | serials
        cards, unread, u30s = list[DeviceFact](), dict[str, str](), dict[str, list[Fpga]]()
        for fpga in fpgas:
            user = fpga.functions.user
            if fpga.functions.device not in U30_IDS and _U30_SHELL not in fpga.shell:
                cards.append(_card(fpga))
            elif serial := self._serials.get(user):
                u30s.setdefault(serial, []).append(fpga)
            else:
                unread[user] = GOLDEN if fpga.functions.golden else fpga.readings.error or NO_SERIAL
        for serial, both in u30s.items():
            cards.append(_u30(serial, both, self._lacking(serial, [fpga.functions.user for fpga in both], unread)))
        self._members = {serial: users for serial, users in self._members.items() if serial in u30s}
        return cards, [problem("CardNotRead", f"{user}: {why}") for user, why in unread.items()]

    def _lacking(self, serial: str, here: Sequence[str], unread: Collection[str]) -> list[str]:
        """Why a U30 is not all there: FPGAs that it had are not on the bus, or one that may be its second is not
        readable yet. One that is in another place now has nothing of what it had."""
        before = self._members.get(serial, ())
        left = [user for user in before if user not in here]
        if left and len(left) < len(before):
            return [f"{user}: it is not on the bus" for user in left]
        self._members[serial] = tuple(here)
        return ["its other FPGA cannot be read yet"] if len(here) == 1 and unread else []

    def _media(self, roots: Roots, on_bus: Sequence[str]) -> list[DeviceFact]:
        """The media accelerators that the driver has, a chip each, and those on the bus that it does not have."""
        names = [name for name in roots.names(MISC) if _TRANSCODER.fullmatch(name)]
        read = self.media_reads.read({name: partial(_transcoder, roots, name) for name in names})
        self._transcoders = {name: bus_id for name, bus_id in self._transcoders.items() if name in read}
        media: dict[str, DeviceFact] = {}
        for name, device in read.items():
            if device is not None:
                self._transcoders[name] = device.pci_bus_id
                media.setdefault(device.pci_bus_id, device)
            elif bus_id := self._transcoders.get(name):
                media.setdefault(bus_id, _chip(roots, bus_id, Readings(error=card.HANGS)))
        for bus_id in on_bus:
            media.setdefault(bus_id, _chip(roots, bus_id, Readings(error=NO_MEDIA_DRIVER)))
        return list(media.values())


def _card(fpga: Fpga) -> DeviceFact:
    functions = fpga.functions
    return DeviceFact(
        id=functions.user,
        index=0,
        type=FPGA,
        vendor=VENDOR,
        product_name=fpga.board or _device_type(fpga.shell).upper(),
        brand=MAKERS.get(functions.maker, ""),
        pci_bus_id=functions.user if functions.present else functions.management,
        extra=_extra([fpga], fpga.serial),
        device_nodes=fpga.nodes,
        readings=fpga.readings,
    )


def _u30(serial: str, fpgas: Sequence[Fpga], lacking: Sequence[str]) -> DeviceFact:
    return replace(
        _card(fpgas[0]),
        id=f"{U30}-{serial}",
        extra=_extra(fpgas, serial),
        partitions=tuple(
            Partition(id=fpga.functions.user, profile=U30, index=index, device_nodes=fpga.nodes)
            for index, fpga in enumerate(fpgas)
        ),
        device_nodes=tuple(node for fpga in fpgas for node in fpga.nodes),
        readings=_together(fpgas, lacking),
    )


def _together(fpgas: Sequence[Fpga], lacking: Sequence[str]) -> Readings:
    """Return the readings of a card with several FPGAs."""
    errors = [f"{fpga.functions.user}: {fpga.readings.error}" for fpga in fpgas if fpga.readings.error]
    if errors := [*errors, *lacking]:
        return Readings(error=text("; ".join(errors), MAX_MESSAGE))
    readings = [fpga.readings for fpga in fpgas]
    hot = [reading.thermal_slowdown for reading in readings if reading.thermal_slowdown is not None]
    celsius = [reading.temperature_celsius for reading in readings if reading.temperature_celsius is not None]
    milliwatts = [reading.power_milliwatts for reading in readings if reading.power_milliwatts is not None]
    return Readings(
        thermal_slowdown=any(hot) if hot else None,
        temperature_celsius=max(celsius, default=None),
        power_milliwatts=max(milliwatts, default=None),  # both say the card's
        conditions=tuple(dict.fromkeys(condition for reading in readings for condition in reading.conditions)),
    )


def _extra(fpgas: Sequence[Fpga], serial: str) -> dict[str, Attribute]:
    first, nodes = fpgas[0], ",".join(fpga.management_node for fpga in fpgas)
    return attributes(
        {
            PCI_VENDOR: first.functions.maker.removeprefix("0x"),
            DEVICE_ID: first.functions.device.removeprefix("0x"),
            SHELL: first.shell,
            TIMESTAMP: first.timestamp,
            SHELL_UUID: first.uuid,
            DEVICE_TYPE: _device_type(first.shell),
            SERIAL: serial,
            MANAGEMENT_FUNCTION: ",".join(fpga.functions.management for fpga in fpgas if fpga.functions.management),
            MANAGEMENT_NODES: nodes if any(fpga.management_node for fpga in fpgas) else "",
        }
    )


def _device_type(shell: str) -> str:
    """Return the type in a shell's name: u250 of xilinx_u250_gen3x16_xdma_shell_4_1."""
    return next(iter(shell.split("_")[1:]), "")


def _transcoder(roots: Roots, name: str) -> DeviceFact | None:
    """Return the chip that the driver calls by this name; None: what it is cannot be read."""
    bus_id = normal_bus_id(roots.word(f"{MISC}/{name}/bus_id"))
    if not bus_id:
        return None
    lines = (line.partition("=") for line in roots.read(f"{MISC}/{name}/device_info").splitlines())
    said = {key.strip().lower(): text(value.strip()) for key, _, value in lines}
    device = _chip(roots, bus_id, Readings(conditions=node_conditions(roots, (f"/dev/{name}",))))
    return replace(
        device,
        product_name=said.get("product name", ""),
        extra=device.extra | attributes({SERIAL: said.get("product serial number", "")}),
        device_nodes=(f"/dev/{name}",),
    )


def _chip(roots: Roots, bus_id: str, readings: Readings) -> DeviceFact:
    return DeviceFact(
        id=bus_id,
        index=0,
        type=MEDIA,
        vendor=VENDOR,
        brand="AMD",
        pci_bus_id=bus_id,
        extra=attributes({DEVICE_ID: roots.word(f"{PCI_DEVICES}/{bus_id}/device").removeprefix("0x")}),
        readings=readings,
    )


def source(options: argparse.Namespace) -> FpgaSource:
    return FpgaSource(
        system=System(options.root, Path(options.driver_root_ctr_path)), poll_seconds=options.interval_seconds
    )
