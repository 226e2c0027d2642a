"""A probe's line beside nvidia-smi's XML: each field equal, different, or not there, by literals."""

from __future__ import annotations

from typing import Any

from hardware.compare import DIFFERENT, EQUAL, NOT_IN_PROBE, NOT_IN_SMI, NOT_THERE, compare
from support.cases import cases
from support.nvidia_smi import XML

Json = dict[str, Any]
ID = "GPU-00000000-0000-4000-8000-000000000000"
READINGS = {
    "recoveryAction": "None",
    "remapPending": False,
    "remapFailure": False,
    "remappedCorrectable": 0,
    "remappedUncorrectable": 0,
    "eccUncorrectableVolatile": 0,
    "eccUncorrectableAggregate": 0,
    "sramThresholdExceeded": False,
    "pcieReplays": 0,
    "hwSlowdown": False,
    "powerBrake": False,
    "clocksLimited": False,
    "temperatureCelsius": 41,
    "temperatureMarginCelsius": 45,
    "temperatureSlowdownMarginCelsius": -2,
    "powerMilliwatts": 71000,
    "powerLimitMilliwatts": 650000,
    "powerDefaultLimitMilliwatts": 700000,
    "persistenceMode": True,
    "pcieWidth": 16,
    "pcieWidthPossible": 16,
    "pcieGeneration": 5,
    "pcieGenerationPossible": 5,
    "utilizationPercent": 0,
    "smClockMhz": 1980,
    "memoryClockMhz": 2619,
}


def device(**readings: object) -> Json:
    return {
        "id": ID,
        "minor": 0,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "pciBusId": "0000:17:00.0",
        "capacity": {"memory": "81559Mi"},
        "extra": {"migCapable": {"bool": True}, "migEnabled": {"bool": False}},
        "readings": {key: value for key, value in {**READINGS, **readings}.items() if value is not None},
    }


def line(*devices: Json) -> Json:
    return {"driver": {"version": "570.148.08", "cudaVersion": "12.8"}, "devices": list(devices)}


def outcomes(xml: str, one: Json) -> dict[str, str]:
    _, card = compare(xml, line(one))
    return {field["field"]: field["outcome"] for field in card["fields"]}


def test_a_gpu_of_which_both_say_the_same_is_equal_in_every_field_that_both_have() -> None:
    found = outcomes(XML, device())
    assert [name for name, outcome in found.items() if outcome == NOT_THERE] == ["fabricState", "fanPercent"]
    assert {outcome for outcome in found.values() if outcome != NOT_THERE} == {EQUAL}


def test_the_driver_and_the_number_of_gpus_are_compared_too() -> None:
    driver, _ = compare(XML.replace("570.148.08", "580.65.06"), line(device()))
    assert [(field["field"], field["outcome"]) for field in driver["fields"]] == [
        ("version", DIFFERENT),
        ("cudaVersion", EQUAL),
        ("number of GPUs", EQUAL),
    ]


@cases(
    ("field", "reading", "outcome"),
    ("powerLimit (W)", {"powerLimitMilliwatts": 649000}, DIFFERENT),
    ("remapPending", {"remapPending": True}, DIFFERENT),
    ("recoveryAction", {"recoveryAction": "ResetDevice"}, DIFFERENT),
    ("recoveryAction", {"recoveryAction": None}, NOT_IN_PROBE),
    ("fanPercent", {"fanPercent": 30}, NOT_IN_SMI),
    ("fabricState", {"fabricState": "NotSupported"}, NOT_THERE),
    ("temperatureCelsius", {"temperatureCelsius": 46}, EQUAL),  # it moves between two readings
    ("temperatureCelsius", {"temperatureCelsius": 60}, DIFFERENT),
)
def test_a_reading_beside_nvidia_smis(field: str, reading: Json, outcome: str) -> None:
    assert outcomes(XML, device(**reading))[field] == outcome


@cases(
    ("field", "old", "new", "reading"),
    (
        "eccUncorrectableVolatile",
        "<volatile>",
        "<volatile><sram_uncorrectable>3</sram_uncorrectable>",
        {"eccUncorrectableVolatile": 3},
    ),
    ("recoveryAction", "action>None<", "action>Drain and Reset<", {"recoveryAction": "DrainAndReset"}),
    ("clocksLimited", "clocks_event_reason", "clocks_throttle_reason", {}),  # before driver 535
    ("power (W)", "gpu_power_readings", "power_readings", {}),
    ("fabricState", "<state>N/A<", "<state>Completed<", {"fabricState": "Completed"}),
    ("remappedCorrectable", "corr>0<", "corr>7<", {"remappedCorrectable": 7}),
)
def test_nvidia_smis_words_in_other_states_and_releases(field: str, old: str, new: str, reading: Json) -> None:
    xml = XML.replace("average_power_draw", "power_draw").replace(old, new)
    assert outcomes(xml, device(**reading))[field] == EQUAL


def test_a_gpu_that_only_one_of_them_lists_is_named() -> None:
    other = {**device(), "id": "GPU-1"}
    found = {card["id"]: card.get("missing") for card in compare(XML, line(other))}
    assert found == {"driver": None, ID: NOT_IN_PROBE, "GPU-1": NOT_IN_SMI}
