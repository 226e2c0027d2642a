"""The device nodes and sensors of GPUs, by the folders DRM and hwmon of a device, which all drivers of GPUs have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.protocol import MAX_INTEGER, Readings, within

NODE_MISSING = "deviceNodeMissing"  # in readings.conditions: a node that containers need is not in /dev
_CARD, _RENDER = re.compile(r"card([0-9]{1,5})"), re.compile(r"renderD([0-9]{1,5})")
_SENSORS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drm:
    """By minor number: /dev/dri/card<N>, /dev/dri/renderD<N>."""

    card: int | None = None
    render: int | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        card = () if self.card is None else (f"/dev/dri/card{self.card}",)
        return card if self.render is None else (*card, f"/dev/dri/renderD{self.render}")


def drm(roots: Roots, device: str) -> Drm:
    """Return the DRM nodes of the device with this folder."""
    names = roots.names(f"{device}/drm")
    cards = [int(match[1]) for match in map(_CARD.fullmatch, names) if match]
    renders = [int(match[1]) for match in map(_RENDER.fullmatch, names) if match]
    return Drm(card=min(cards, default=None), render=min(renders, default=None))


def missing(roots: Roots, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return what is missing, for readings.conditions."""
    return () if all(roots.has_node(node) for node in nodes) else (NODE_MISSING,)


def hwmon(roots: Roots, device: str) -> str:
    """The folder of its sensors; "" where there is none."""
    return next((f"{device}/hwmon/{name}" for name in roots.names(f"{device}/hwmon")), "")


def sensors(roots: Roots, device: str, *, shown: str = "") -> Readings:
    """Return what the sensors of the device with this folder say (millidegrees, microwatts). Drivers slow a GPU down
    where any sensor is at its critical temperature. The temperature is that of the sensor labelled `shown`, else of the
    first one."""
    folder = hwmon(roots, device)
    if not folder:
        return Readings()
    values = {sensor: roots.number(f"{folder}/temp{sensor}_input") for sensor in _SENSORS}
    limits = {sensor: roots.number(f"{folder}/temp{sensor}_crit") for sensor in _SENSORS}
    pairs = [(value, limits[sensor]) for sensor, value in values.items() if value is not None]
    hot = [value >= limit for value, limit in pairs if limit]
    labelled = [sensor for sensor in _SENSORS if shown and roots.word(f"{folder}/temp{sensor}_label") == shown]
    first = next((value for sensor in (*labelled, *_SENSORS) if (value := values[sensor]) is not None), None)
    watts = roots.number(f"{folder}/power1_average")
    if watts is None:
        watts = roots.number(f"{folder}/power1_input")
    return Readings(
        thermal_slowdown=any(hot) if hot else None,
        temperature_celsius=None if first is None else within(first // 1000, -300, 1000),
        power_milliwatts=None if watts is None else within(watts // 1000, 0, MAX_INTEGER),
    )
