"""`resources` and `sharing` of NVIDIA's v1 configuration file, as our own sections.

Values as a YAML reader gives them go in; sections come out, or sentences in `problems` (all that is found, not the
first). What NVIDIA's plugin documents and then ignores is implemented here: renaming, and `devices` as a count or a
list. Two kinds of sharing at once are refused: there MPS silently wins. The third kind, by memory, is an extension: its
entries have every field of sharing.resources in a policy but replicas.

    resources: {gpus: [{pattern: "*H100*", name: h100}], mig: [{pattern: 1g.10gb, name: small}]}
    sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [0, "1:0", GPU-...]}]}}
    sharing: {memory: {resources: [{name: gpu, memoryUnit: 1Gi, packing: spread}]}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from nodedevices_api.errors import parse
from nodedevices_api.fields import GLOB_PATTERN
from nodedevices_api.sections import ALL_DEVICES, FIRST, MEMORY_UNITS, Resources, SharedResource, Sharing
from nodedevices_common.errors import InputError, InputProblem
from nodedevices_common.text import nearest

from nodedevices_plugin.model import PlanError, resource_names

M = TypeVar("M", Resources, Sharing)

# Key in the file -> what it gives. For NVIDIA's plugin, too, clients of MPS are counted one by one unless the file says
# otherwise.
KINDS: Mapping[str, Mapping[str, object]] = {
    "timeSlicing": {"strategy": "timeSlicing"},
    "mps": {"strategy": "mps", "failRequestsGreaterThanOne": True},
    "memory": {"strategy": "memory"},
}
SHARING_KEYS = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
MEMORY_KEYS = tuple(
    field.alias or name for name, field in SharedResource.model_fields.items() if name not in {"replicas", "strategy"}
)  # our own; the key above them is the strategy

# An index, a MIG index, a UUID; MIG-GPU-<uuid>/gi/ci: drivers before R470.
_DEVICE = re.compile(r"[0-9]{1,4}(:[0-9]{1,4})?|(GPU|MIG)-[A-Za-z0-9-]+(/[0-9]{1,3}/[0-9]{1,3})?")


def resources(value: object, problems: list[str]) -> Resources | None:
    """The section of the file's `resources`; None: there is none, or it is wrong."""
    if value is None:
        return None
    before = len(problems)
    rules: list[dict[str, Any]] = []
    for kind, entries in _mapping(value, "resources", ("gpus", "mig"), problems).items():
        for place, entry in enumerate(_list(entries, f"resources.{kind}", problems)):
            where = f"resources.{kind}[{place}]"
            fields = _mapping(entry, where, ("pattern", "name"), problems)
            missing = [key for key in ("pattern", "name") if not isinstance(fields.get(key), str) or not fields[key]]
            problems += [
                InputProblem.at(f"{where}.{key}", "missing; every entry has a pattern and a name") for key in missing
            ]
            if not missing:
                match = _match(kind, fields["pattern"], problems, f"{where}.pattern")
                rules.append({"match": match, "name": _name(fields["name"], f"{where}.name", problems)})
    return _parsed(Resources, {"devices": rules}, "resources", problems) if len(problems) == before else None


def sharing(value: object, problems: list[str]) -> Sharing | None:
    """The section of the file's `sharing`; None: nothing is shared, or it is wrong."""
    if value is None:
        return None
    before = len(problems)
    given = _mapping(value, "sharing", tuple(KINDS), problems)
    if len(given) > 1:
        *others, last = given
        both = "both" if len(given) == 2 else "all"
        text = f"{', '.join(others)} and {last} are {both} given, and a device can have one; leave one out"
        problems.append(InputProblem.at("sharing", text))
    if len(problems) > before or not given:
        return None
    kind, body = next(iter(given.items()))
    where = f"sharing.{kind}"
    fields = _mapping(body, where, SHARING_KEYS, problems)
    entries = _list(fields.get("resources"), f"{where}.resources", problems)
    memory = kind == "memory"
    checks = (
        (
            not entries and len(problems) == before,
            "resources",
            f"missing; list at least one resource with its {'memoryUnit' if memory else 'replicas'}",
        ),
        (
            memory and fields.get("failRequestsGreaterThanOne") is True,
            "failRequestsGreaterThanOne",
            "true: a container requests as many shares as it needs memory; leave it out",
        ),
    )
    problems += [InputProblem.at(f"{where}.{key}", text) for wrong, key, text in checks if wrong]
    shared = [_entry(kind, entry, f"{where}.resources[{place}]", problems) for place, entry in enumerate(entries)]
    section = {**KINDS[kind], **fields, "resources": shared}
    return _parsed(Sharing, section, where, problems) if len(problems) == before else None


def _entry(kind: str, value: object, where: str, problems: list[str]) -> dict[str, Any]:
    """One resource. Of shares of memory all but names and a count of devices is checked as in a policy."""
    memory = kind == "memory"
    fields = _mapping(value, where, MEMORY_KEYS if memory else ("name", "rename", "devices", "replicas"), problems)
    needed = ("name",) if memory else ("name", "replicas")
    right = f"missing; every resource has a {' and '.join(needed)}"
    problems += [InputProblem.at(f"{where}.{key}", right) for key in needed if key not in fields]
    for key in ("name", "rename"):
        if isinstance(fields.get(key), str):
            fields[key] = _name(fields[key], f"{where}.{key}", problems)
    if memory and "memoryUnit" not in fields and str(fields.get("rename")) not in MEMORY_UNITS:
        text = "missing; give the amount of memory that one share is, such as 1Gi"
        problems.append(InputProblem.at(f"{where}.memoryUnit", text))
    devices = fields.get("devices")
    if memory and isinstance(devices, list):
        fields["devices"] = [str(device) if type(device) is int and device >= 0 else device for device in devices]
    elif devices is not None:
        fields["devices"] = _devices(devices, f"{where}.devices", problems)
    return {key: item for key, item in fields.items() if item is not None}


def _devices(value: object, where: str, problems: list[str]) -> list[str] | None:
    """All (None), a count, or a list of indices, MIG indices and UUIDs."""
    if value == ALL_DEVICES:
        return None
    if type(value) is int and value > 0:
        return [f"{FIRST}{value}"]
    if isinstance(value, list):
        wrong = [item for item in value if type(item) not in {str, int} or _DEVICE.fullmatch(str(item)) is None]
        right = 'give an index (0), a MIG index ("0:1"), GPU-<uuid> or MIG-<uuid>'
        problems += [InputProblem.at(where, f"{_shown(item)}: {right}") for item in wrong]
        return [str(item) for item in value]
    right = "give all, a count, or a list of indices and UUIDs"
    right = "a count of devices must be more than 0; leave it out for all" if type(value) is int else right
    problems.append(InputProblem.at(where, f"{_shown(value)}: {right}"))
    return None


def _match(kind: str, pattern: str, problems: list[str], where: str) -> dict[str, str]:
    """NVIDIA's pattern knows `*` alone; ours is a glob. A profile's `+` is a dot, as in resource names."""
    glob = re.sub(r"[?\[]", lambda found: f"[{found[0]}]", pattern)
    glob = resource_names.plain_profile(glob) if kind == "mig" else glob
    if re.fullmatch(GLOB_PATTERN, glob) is None:
        problems.append(
            InputProblem.at(where, f"{_shown(pattern)}: letters, digits, spaces, . _ : - and * are allowed")
        )
    return {"profile": glob} if kind == "mig" else {"vendor": "nvidia", "productName": glob}


def _name(name: str, where: str, problems: list[str]) -> str:
    """Return the full name: one without a domain is of nvidia.com; any other is taken as it is (there: refused)."""
    try:
        return resource_names.check(where, name if "/" in name else f"nvidia.com/{name}")
    except PlanError as error:
        problems.append(InputProblem(str(error), where))
        return name


def _mapping(value: object, where: str, known: tuple[str, ...], problems: list[str]) -> dict[str, Any]:
    """Return the known keys, without those that are null, which is "not set"."""
    if not isinstance(value, dict):
        problems.append(InputProblem.at(where, f"{_shown(value)} is not a mapping"))
        return {}
    unknown = [str(key) for key in value if key not in known]
    problems += [InputProblem.at(f"{where}.{_shown(key)}", f"unknown key{_hint(where, key, known)}") for key in unknown]
    return {key: item for key, item in value.items() if key in known and item is not None}


def _hint(where: str, key: str, known: tuple[str, ...]) -> str:
    if where.startswith("sharing.") and key in SharedResource.gone:
        return f"; {SharedResource.gone[key]}"
    if where == "sharing" and key in SHARING_KEYS:
        return f"; it belongs at sharing.timeSlicing.{key}"
    if where.startswith(("sharing.timeSlicing.", "sharing.mps.")) and key in MEMORY_KEYS:
        return f"; it belongs at sharing.memory.resources[].{key}"
    return nearest(key[:64], known)


def _list(value: object, where: str, problems: list[str]) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        problems.append(InputProblem.at(where, f"{_shown(value)} is not a list"))
        return []
    return value


def _parsed(model: type[M], value: object, where: str, problems: list[str]) -> M | None:
    try:
        return parse(model, value, where)
    except InputError as error:
        first, *others = error.problems
        problems += [InputProblem(first, error.place), *others]
        return None


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= 60 else text[:60] + "…"
