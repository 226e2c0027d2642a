"""README.md's "Equal means", word for word: what the agent did beside what was recorded.

A mismatch names its part: `outcome`, `resources`, a scenario, `after_watch`, `cdi_specs` or `then`. In a part that is
marked as a quirk, the recorded answer is a defect. There the better answer is required where it can be said what it
is (a fault marks all that it concerns and nothing else, a lost GPU costs one GPU, a request that can be met is), and
the recorded one is as good only where nothing is wrong with it but its form (an empty list for an error).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from conformance.nvidia_device_plugin.play import Observed
from conformance.nvidia_device_plugin.vectors import Vector


@dataclass(frozen=True)
class Mismatch:
    part: str
    text: str

    def __str__(self) -> str:
        return f"{self.part}: {self.text}"


def mismatches(vector: Vector, seen: Observed) -> list[Mismatch]:
    """Everything in which the two are not equal; empty: the case passes."""
    if vector.quirks is None:
        return _whole_case(vector, seen)
    if vector.quirky("outcome"):
        return _survived(vector, seen)
    if vector.registered != seen.registered:
        said = "registered" if seen.registered else "not registered" + ("" if seen.alive else ", and ended")
        return [Mismatch("outcome", f"{said}; recorded: {vector.raw['outcome']}")]
    if not vector.registered:
        return []
    return _answers(vector, seen)


def _answers(vector: Vector, seen: Observed) -> list[Mismatch]:
    found: list[Mismatch] = []
    theirs = {each["resource_name"]: each for each in vector.resources}
    ours = {each["resource_name"]: each for each in seen.resources}
    if set(theirs) != set(ours):
        return [Mismatch("resources", f"{sorted(ours)}; recorded: {sorted(theirs)}")]
    for name, recorded in theirs.items():
        found += _resource(vector, recorded, ours[name])
    if seen.cdi_specs != (expected := _specs(vector)):
        found.append(Mismatch("cdi_specs", f"{seen.cdi_specs}; recorded: {expected}"))
    found += _then(vector, seen)
    return found


def _resource(vector: Vector, recorded: dict[str, Any], ours: dict[str, Any]) -> list[Mismatch]:
    found = [
        Mismatch("resources", f"{recorded['resource_name']}: {key}: {ours[key]}; recorded: {recorded[key]}")
        for key in ("version", "endpoint_is_basename", "register_options", "options")
        if ours[key] != recorded[key]
    ]
    mine, expected = (sorted((each["id"], each["numa"]) for each in side["devices"]) for side in (ours, recorded))
    if mine != expected:
        found.append(Mismatch("resources", f"ids and NUMA nodes: {mine}; recorded: {expected}"))
    answers = {each["name"]: each["answer"] for each in ours["scenarios"]}
    for scenario in recorded["scenarios"]:
        if not _answered(vector, scenario, answers[scenario["name"]]):
            text = f"{answers[scenario['name']]}; recorded: {scenario['answers']}"
            found.append(Mismatch(scenario["name"], text))
    if "after_watch" in recorded:
        found += _after_watch(vector, recorded["after_watch"]["devices"], ours["after_watch"]["devices"])
    return found


def _after_watch(vector: Vector, recorded: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[Mismatch]:
    if [each["id"] for each in ours] != [each["id"] for each in recorded]:
        return [Mismatch("after_watch", f"{ours}; recorded: {recorded}")]
    expected = vector.unhealthy(recorded)
    unhealthy = {each["id"] for each in ours if each["health"] != "Healthy"}
    if unhealthy != expected:
        return [Mismatch("after_watch", f"Unhealthy: {sorted(unhealthy)}; right: {sorted(expected)}")]
    return []


# --- scenarios ------------------------------------------------------------------------------------------------------
def _answered(vector: Vector, scenario: dict[str, Any], answer: dict[str, Any]) -> bool:
    recorded = scenario["answers"]
    errors = all("error" in each for each in recorded)
    quirky = vector.quirky(scenario["name"])
    if scenario["op"] == "pre_start":
        return ("error" in answer) == errors
    if scenario["op"] == "allocate":
        if errors or "error" in answer:
            return errors and "error" in answer
        loose = len(recorded) > 1 or vector.ids_are_indices
        mine = [_container(each, loose=loose) for each in answer["containers"]]
        return any(mine == [_container(one, loose=loose) for one in each["containers"]] for each in recorded)
    if quirky and errors:  # NVIDIA's fails where it could answer
        return "error" not in answer and all(map(_possible, scenario["request"], _ids(answer)))
    if errors or "error" in answer:
        return "error" in answer and (errors or quirky)
    if quirky and _ids(answer) == [frozenset(each["must_include"]) for each in scenario["request"]]:
        return True
    return any(_preferred(vector, scenario, _ids(answer), _ids(each)) for each in recorded)


def _container(answer: dict[str, Any], *, loose: bool) -> dict[str, Any]:
    """In a form in which equal is equal. `loose`: the order of devices does not count."""

    def ids(text: str) -> object:
        return sorted(text.split(",")) if loose else text

    cdi = answer.get("cdi_devices", [])
    return {
        "envs": {
            key: ids(value) if key == "NVIDIA_VISIBLE_DEVICES" else value for key, value in answer["envs"].items()
        },
        "mounts": sorted(tuple(sorted(each.items())) for each in answer.get("mounts", ())),
        "devices": {tuple(sorted(each.items())) for each in answer.get("devices", ())},
        "annotations": {key: ids(value) for key, value in answer.get("annotations", {}).items()},
        "cdi_devices": sorted(cdi) if loose else cdi,
    }


def _ids(answer: dict[str, Any]) -> list[frozenset[str]]:
    return [frozenset(each["ids"]) for each in answer["containers"]]


def _possible(request: dict[str, Any], ids: frozenset[str]) -> bool:
    available, must = set(request["available"]), set(request["must_include"])
    return len(ids) == request["size"] and must <= ids <= available


def _preferred(
    vector: Vector, scenario: dict[str, Any], ours: list[frozenset[str]], theirs: list[frozenset[str]]
) -> bool:
    several = len(scenario["answers"]) > 1
    return len(ours) == len(theirs) and all(
        mine == recorded or (_possible(request, mine) and _as_good(vector, request, mine, recorded, several=several))
        for request, mine, recorded in zip(scenario["request"], ours, theirs, strict=True)
    )


def _as_good(
    vector: Vector, request: dict[str, Any], mine: frozenset[str], recorded: frozenset[str], *, several: bool
) -> bool:
    if any("::" in each for each in mine):

        def per_gpu(ids: frozenset[str]) -> Counter[str]:
            return Counter(each.partition("::")[0] for each in ids)

        return several and per_gpu(mine) == per_gpu(recorded)
    if any(vector.gpu_of.get(each) != each for each in mine):
        return several  # MIG devices: any of the right size
    available = frozenset(request["available"])
    return (vector.score(mine), vector.score(available - mine)) == (
        vector.score(recorded),
        vector.score(available - recorded),
    )


# --- files and what comes afterwards --------------------------------------------------------------------------------
def _specs(vector: Vector) -> dict[str, dict[str, list[list[str]]]]:
    return {
        kind: {name: sorted(map(list, nodes)) for name, nodes in spec["devices"].items()}
        for kind, spec in vector.raw["cdi_specs"].items()
    }


def _then(vector: Vector, seen: Observed) -> list[Mismatch]:
    found = []
    for recorded, ours in zip(vector.then, seen.then, strict=True):
        expected = {key: recorded[key] for key in ("do", "alive", "resources", "unhealthy")}
        if vector.quirky("then"):  # it lives on, with all that there is, and what is lost is Unhealthy
            ids = {each["resource_name"]: sorted(one["id"] for one in each["devices"]) for each in vector.resources}
            expected |= {"alive": True, "resources": ids, "unhealthy": sorted(vector.struck)}
        if ours != expected:
            found.append(Mismatch("then", f"{ours}; right: {expected}"))
    return found


# --- quirks of more than one answer ---------------------------------------------------------------------------------
def _survived(vector: Vector, seen: Observed) -> list[Mismatch]:
    """One device takes the whole node out. Better: the agent lives, and what is lost is Unhealthy, nothing else is."""
    if not seen.alive:
        return [Mismatch("outcome", "ended")]
    shown = {each["id"]: each["health"] for resource in seen.resources for each in resource["devices"]}
    gpus = {each["uuid"] for each in vector.inventory["devices"] if not each["mig_enabled"]}
    if not gpus <= set(shown):
        return [Mismatch("outcome", f"{sorted(shown)} are offered; here are {sorted(gpus)}")]
    unhealthy = {id_ for id_, health in shown.items() if health != "Healthy"}
    if unhealthy != vector.struck:
        return [Mismatch("outcome", f"Unhealthy: {sorted(unhealthy)}; lost: {sorted(vector.struck)}")]
    return []


def _whole_case(vector: Vector, seen: Observed) -> list[Mismatch]:
    """The configuration contradicts itself. Better than choosing silently: nothing is offered, and the agent lives."""
    if not seen.registered:
        return [] if seen.alive else [Mismatch("outcome", "ended")]
    return _answers(vector, seen)
