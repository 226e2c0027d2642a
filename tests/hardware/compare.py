"""Each field of a probe's line beside `nvidia-smi -q -x`: equal, different, or not there.

Pure. NVIDIA's XML is read in the forms of its drivers 450 to 590 (nvsmi_device_v10.dtd to v13.dtd). What moves between
the two readings (temperature, power, clocks) is equal when it is near.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

Json = dict[str, Any]
EQUAL, DIFFERENT = "equal", "different"
NOT_IN_SMI, NOT_IN_PROBE, NOT_THERE = "not in nvidia-smi", "not in the probe", "not there"
NOTHING = frozenset({"", "N/A", "[N/A]", "None", "ERR!", "Requested functionality has been deprecated", "Not Found"})
MEBIBYTE = 1 << 20
_ACTIVE = {"Active": True, "Not Active": False, "Yes": True, "No": False, "Enabled": True, "Disabled": False}
_ACTIONS = {  # nvidia-smi's words for NVML_GPU_RECOVERY_ACTION_*, without spaces and in small letters
    "none": "None",
    "reset": "ResetDevice",
    "gpureset": "ResetDevice",
    "reboot": "RebootNode",
    "nodereboot": "RebootNode",
    "drainp2p": "DrainP2P",
    "drainandreset": "DrainAndReset",
}
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Field:
    """One comparison. `paths`: in the XML, the first that says something, or all of them added up with `total`."""

    name: str
    paths: tuple[str, ...]
    smi: Callable[[str], Value]
    probe: Callable[[Json], Value]
    near: float = 0.0
    total: bool = False
    none_is_text: bool = False  # "None" is what the field says, and not that it says nothing


@dataclass(frozen=True, slots=True)
class Compared:
    field: str
    outcome: str
    smi: Value = None
    probe: Value = None


def number(text: str) -> float | None:
    """`81559 MiB`, `71.52 W`, `-2 C`, `16x` -> the number."""
    found = re.match(r"-?[0-9]+(\.[0-9]+)?", text)
    return float(found[0]) if found else None


def truth(text: str) -> bool | None:
    return _ACTIVE.get(text)


def word(text: str) -> str:
    """GeForce RTX and GeForceRTX are the same."""
    return text.replace(" ", "").lower()


def bus_id(text: str) -> str:
    """00000000:1B:00.0 -> 0000:1b:00.0, as sysfs has it."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def action(text: str) -> str:
    return _ACTIONS.get(word(text), text)


def _reading(key: str, scale: float = 1.0) -> Callable[[Json], Value]:
    def read(device: Json) -> Value:
        value = device.get("readings", {}).get(key)
        return value if value is None or isinstance(value, bool | str) else float(value) * scale

    return read


def _said(key: str) -> Callable[[Json], Value]:
    return lambda device: device.get(key) if device.get(key) != "" else None


def _word_said(key: str) -> Callable[[Json], Value]:
    return lambda device: word(device[key]) if device.get(key) else None


def _memory(device: Json) -> Value:
    text = device.get("capacity", {}).get("memory", "")
    units = {"Ki": 1 / 1024, "Mi": 1.0, "Gi": 1024.0, "Ti": 1024.0**2, "": 1 / MEBIBYTE}
    found = re.fullmatch(r"([0-9]+)([KMGT]i)?", text)
    return float(found[1]) * units[found[2] or ""] if found else None


def _mig(device: Json) -> Value:
    extra = device.get("extra", {})
    if not extra.get("migCapable", {}).get("bool"):
        return None
    enabled: Value = extra.get("migEnabled", {}).get("bool")
    return enabled


def _fabric(device: Json) -> Value:
    state = device.get("readings", {}).get("fabricState")
    return None if state in {None, "NotSupported"} else word(state)


_ECC = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")
_REASONS = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
_LINK = "pci/pci_gpu_link_info"


def _errors(counter: str) -> tuple[str, ...]:
    return tuple(f"ecc_errors/{counter}/{kind}" for kind in _ECC)


def _reason(name: str) -> tuple[str, ...]:
    return tuple(f"{place}{name}" for place in _REASONS)


FIELDS = (
    Field("id", ("uuid",), str, _said("id")),
    Field("productName", ("product_name",), str, _said("productName")),
    Field("brand", ("product_brand",), word, _word_said("brand")),
    Field("architecture", ("product_architecture",), word, _word_said("architecture")),
    Field("minor", ("minor_number",), number, _said("minor")),
    Field("pciBusId", ("pci/pci_bus_id",), bus_id, _said("pciBusId")),
    Field("capacity.memory (MiB)", ("fb_memory_usage/total",), number, _memory),
    Field("extra.migEnabled", ("mig_mode/current_mig",), truth, _mig),
    Field("partitions", (), number, lambda device: float(len(device.get("partitions", ())))),
    Field("recoveryAction", ("gpu_recovery_action",), action, _reading("recoveryAction"), none_is_text=True),
    Field("remapPending", ("remapped_rows/remapped_row_pending",), truth, _reading("remapPending")),
    Field("remapFailure", ("remapped_rows/remapped_row_failure",), truth, _reading("remapFailure")),
    Field("remappedCorrectable", ("remapped_rows/remapped_row_corr",), number, _reading("remappedCorrectable")),
    Field("remappedUncorrectable", ("remapped_rows/remapped_row_unc",), number, _reading("remappedUncorrectable")),
    Field("eccUncorrectableVolatile", _errors("volatile"), number, _reading("eccUncorrectableVolatile"), total=True),
    Field("eccUncorrectableAggregate", _errors("aggregate"), number, _reading("eccUncorrectableAggregate"), total=True),
    Field(
        "sramThresholdExceeded",
        ("ecc_errors/aggregate/sram_threshold_exceeded",),
        truth,
        _reading("sramThresholdExceeded"),
    ),
    Field("pcieReplays", ("pci/replay_counter",), number, _reading("pcieReplays")),
    Field("hwSlowdown", _reason("hw_slowdown"), truth, _reading("hwSlowdown")),
    Field("powerBrake", _reason("hw_power_brake_slowdown"), truth, _reading("powerBrake")),
    Field("clocksLimited", _reason("applications_clocks_setting"), truth, _reading("clocksLimited")),
    Field("temperatureCelsius", ("temperature/gpu_temp",), number, _reading("temperatureCelsius"), near=5),
    Field("temperatureMargin", ("temperature/gpu_temp_tlimit",), number, _reading("temperatureMarginCelsius"), near=5),
    Field(
        "temperatureSlowdownMargin",
        ("temperature/gpu_temp_slow_tlimit_threshold",),
        number,
        _reading("temperatureSlowdownMarginCelsius"),
    ),
    Field(
        "power (W)",
        (
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        number,
        _reading("powerMilliwatts", 0.001),
        near=40,
    ),
    Field(
        "powerLimit (W)",
        ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
        number,
        _reading("powerLimitMilliwatts", 0.001),
        near=0.01,
    ),
    Field(
        "powerDefaultLimit (W)",
        ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        number,
        _reading("powerDefaultLimitMilliwatts", 0.001),
        near=0.01,
    ),
    Field("persistenceMode", ("persistence_mode",), truth, _reading("persistenceMode")),
    Field("pcieWidth", (f"{_LINK}/link_widths/current_link_width",), number, _reading("pcieWidth")),
    Field("pcieWidthPossible", (f"{_LINK}/link_widths/max_link_width",), number, _reading("pcieWidthPossible")),
    Field("pcieGeneration", (f"{_LINK}/pcie_gen/current_link_gen",), number, _reading("pcieGeneration")),
    Field("pcieGenerationPossible", (f"{_LINK}/pcie_gen/max_link_gen",), number, _reading("pcieGenerationPossible")),
    Field("fabricState", ("fabric/state",), word, _fabric),
    Field("fanPercent", ("fan_speed",), number, _reading("fanPercent"), near=10),
    Field("utilizationPercent", ("utilization/gpu_util",), number, _reading("utilizationPercent"), near=10),
    Field("smClockMhz", ("clocks/sm_clock",), number, _reading("smClockMhz"), near=500),
    Field("memoryClockMhz", ("clocks/mem_clock",), number, _reading("memoryClockMhz"), near=5),
)


def compare(xml: str, line: Json) -> list[Json]:
    """Return of each GPU of either: its id, and every field. ElementTree.ParseError: it is no XML."""
    root = ElementTree.fromstring(xml)
    cards = {_text(gpu, "uuid"): gpu for gpu in root.findall("gpu")}
    devices = {device["id"]: device for device in line.get("devices", ())}
    driver = line.get("driver", {})
    found: list[Json] = [
        {
            "id": "driver",
            "fields": [
                vars_of(_compared("version", _known(_text(root, "driver_version")), driver.get("version") or None)),
                vars_of(_compared("cudaVersion", _known(_text(root, "cuda_version")), driver.get("cudaVersion"))),
                vars_of(_compared("number of GPUs", len(cards), len(devices))),
            ],
        }
    ]
    for id_ in dict.fromkeys((*cards, *devices)):
        if id_ in cards and id_ in devices:
            fields = [vars_of(field) for field in compare_card(cards[id_], devices[id_])]
            found.append({"id": id_, "fields": fields})
        else:
            found.append({"id": id_, "fields": [], "missing": NOT_IN_PROBE if id_ in cards else NOT_IN_SMI})
    return found


def compare_card(card: ElementTree.Element, device: Json) -> list[Compared]:
    """Return the fields of one GPU, and those that its XML has in lists."""
    found = []
    for field in FIELDS:
        smi = _partitions(card) if field.name == "partitions" else _of_smi(card, field)
        found.append(_compared(field.name, smi, field.probe(device), near=field.near))
    return found


def vars_of(compared: Compared) -> Json:
    return {
        "field": compared.field,
        "outcome": compared.outcome,
        "nvidia-smi": compared.smi,
        "probe": compared.probe,
    }


def _compared(name: str, smi: Value, probe: Value, *, near: float = 0.0) -> Compared:
    if smi is None and probe is None:
        outcome = NOT_THERE
    elif smi is None:
        outcome = NOT_IN_SMI
    elif probe is None:
        outcome = NOT_IN_PROBE
    elif isinstance(smi, float) and isinstance(probe, float | int):
        outcome = EQUAL if abs(smi - probe) <= near else DIFFERENT
    else:
        outcome = EQUAL if smi == probe else DIFFERENT
    return Compared(name, outcome, smi, probe)


def _of_smi(card: ElementTree.Element, field: Field) -> Value:
    texts = [_text(card, path) for path in field.paths]
    known = [text for text in texts if text not in NOTHING or (field.none_is_text and text == "None")]
    values = [value for value in map(field.smi, known) if value is not None]
    if not values:
        return None
    return sum(float(value) for value in values) if field.total else values[0]


def _partitions(card: ElementTree.Element) -> Value:
    return float(len(card.findall("mig_devices/mig_device")))


def _known(text: str) -> str | None:
    return None if text in NOTHING else text


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()
