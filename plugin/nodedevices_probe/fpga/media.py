"""MA35D media accelerators: `/dev/ama_transcoder<N>`, one for each of a card's two chips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nodedevices_api.bounds import MAX_INDEX

from nodedevices_probe.node.drm import missing
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICES
from nodedevices_probe.protocol import Readings, normal_bus_id, text

MISC = "sys/class/misc"
MODULE = "ama_transcoder"
NO_DRIVER = f"the driver {MODULE} does not list it: the module is not loaded, or its firmware must be written"
HANGS = "reading its driver's attributes has not finished"
_TRANSCODER = re.compile(rf"{MODULE}([0-9]{{1,4}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    bus_id: str
    number: int | None = None  # of its device node
    product: str = ""
    serial: str = ""
    nodes: tuple[str, ...] = ()
    readings: Readings


def transcoders(roots: Roots) -> dict[int, str]:
    """Return the driver's names of its devices, by number."""
    found = ((match[1], match[0]) for match in map(_TRANSCODER.fullmatch, roots.names(MISC)) if match)
    return {int(number): name for number, name in found if int(number) <= MAX_INDEX}


def read(roots: Roots, number: int, name: str) -> Media | None:
    """Read the card; None: what it is cannot be read."""
    bus_id = normal_bus_id(roots.word(f"{MISC}/{name}/bus_id"))
    if not bus_id:
        return None
    lines = (line.partition("=") for line in roots.read(f"{MISC}/{name}/device_info").splitlines())
    said = {key.strip().lower(): text(value.strip()) for key, _, value in lines}
    node = f"/dev/{name}"
    return Media(
        bus_id=bus_id,
        number=number,
        product=said.get("product name", ""),
        serial=said.get("product serial number", ""),
        nodes=(node,),
        readings=Readings(conditions=missing(roots, (node,))),
    )


def without_driver(bus_ids: Sequence[str], known: Sequence[Media]) -> list[Media]:
    """Return the cards on the bus that the driver does not have."""
    had = {media.bus_id for media in known}
    return [Media(bus_id=id_, readings=Readings(error=NO_DRIVER)) for id_ in bus_ids if id_ not in had]


def device_id(roots: Roots, bus_id: str) -> str:
    return roots.word(f"{PCI_DEVICES}/{bus_id}/device").removeprefix("0x")
