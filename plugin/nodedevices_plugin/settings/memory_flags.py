"""Sharing by memory from flags and variables, as Aliyun's GPU share is configured: `--memory-unit=GiB`.

They mean an entry of `sharing.resources` for NVIDIA's GPUs; devices of other makers are shared by the file or by a
policy. They make the whole section `sharing`: it replaces that of the configuration file, and a policy's replaces it.
A file that shares in another way is refused: one of the two is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodedevices_api.errors import parse
from nodedevices_api.presets import MEMORY_UNITS
from nodedevices_api.sections import Sharing
from nodedevices_common.errors import InputError
from nodedevices_common.options import PREFIX, Option, Values, option, variable
from nodedevices_common.quantity import MEBIBYTE, to_bytes
from nodedevices_common.text import show

from nodedevices_plugin.model import PlanError, resource_names
from nodedevices_plugin.settings.problems import ConfigError
from nodedevices_plugin.sharing.memory import SHARES_NAME
from nodedevices_plugin.vendors.flags import FlagRule

GROUP = "memory"
TITLE = "sharing NVIDIA's GPUs by memory"
SHARED_DOMAIN = "nvidia.com"  # of the resource that is shared, where --resource-prefix says no other
UNIT, RESERVE, RESOURCE = "memory-unit", "memory-reserve", "memory-resource"
PACKING, DEVICES = "memory-packing", "memory-devices"
ALIYUNS_UNITS: Mapping[str, str] = {"GiB": "1Gi", "MiB": "1Mi"}
_AMOUNTS = "GiB, MiB, or a quantity of whole MiB, such as 512Mi"
_FIELDS = {  # of an entry of sharing.resources
    UNIT: "memoryUnit",
    RESERVE: "memoryReserve",
    RESOURCE: "rename",
    PACKING: "packing",
    DEVICES: "devices",
}


OPTIONS: tuple[Option, ...] = (
    option(
        UNIT,
        "share GPUs by [memory](sharing.md#by-flags-and-in-a-file), in shares of this amount: GiB, MiB, or a quantity "
        f"such as 512Mi; default: that of --{RESOURCE}, where it is "
        f"{' or '.join(f'{name} ({unit})' for name, unit in MEMORY_UNITS.items())}",
        group=GROUP,
        metavar="AMOUNT",
    ),
    option(
        RESERVE,
        "the amount of each GPU's memory that is not divided, such as 512Mi",
        group=GROUP,
        metavar="AMOUNT",
    ),
    option(RESOURCE, f"the shares' resource; default: {SHARES_NAME}", group=GROUP, metavar="NAME"),
    option(
        PACKING,
        "shares come from the fullest GPU that has room, or from the emptiest; default: binpack",
        group=GROUP,
        choices=("binpack", "spread"),
    ),
    option(
        DEVICES,
        "only these GPUs: indices, ids, or globs over ids; the others stay whole; default: all",
        group=GROUP,
        default=(),
        metavar="GPUS",
    ),
)
NAMES = tuple(option.name for option in OPTIONS)
RULES = tuple(
    FlagRule(when=name, needs=(UNIT, *(f"{RESOURCE}={each}" for each in MEMORY_UNITS)))
    for name in (RESERVE, RESOURCE, PACKING, DEVICES)
)


def sharing(values: Values, resource_prefix: str = "") -> Mapping[str, Any] | None:
    """The section, as a policy writes it; None: they say nothing. Raises ConfigError with all that cannot be."""
    given = _given(values)
    if not given:
        return None
    texts = {name: values.text(name) for name in (UNIT, RESERVE, RESOURCE, PACKING)}
    devices = list(dict.fromkeys(values.items(DEVICES)))
    unit = ALIYUNS_UNITS.get(texts[UNIT], texts[UNIT]) or MEMORY_UNITS.get(texts[RESOURCE])
    problems = []
    if unit is None:
        problems.append(f"--{UNIT}: missing, with --{given[0]}; give {_AMOUNTS}")
    elif not _whole_mebibytes(unit):
        problems.append(f"--{UNIT}: {show(texts[UNIT])} is not allowed; give {_AMOUNTS}")
    try:
        resource_names.check(f"--{RESOURCE}", texts[RESOURCE] or SHARES_NAME)
    except PlanError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    said: dict[str, object] = {RESOURCE: texts[RESOURCE], UNIT: unit, RESERVE: texts[RESERVE]}
    said |= {PACKING: texts[PACKING], DEVICES: devices}
    rule = {_FIELDS[name]: value for name, value in said.items() if value}
    section = {"strategy": "memory", "resources": [{"name": f"{resource_prefix or SHARED_DOMAIN}/gpu", **rule}]}
    try:
        parse(Sharing, section)
    except InputError as error:
        raise ConfigError([_of_flag(each) for each in error.problems]) from error
    return section


def conflict(values: Values, of_file: Sharing | None) -> tuple[str, str] | None:
    """Return the place in a file that shares in another way, and what is wrong with that; None: it does not."""
    given = _given(values)
    if not given or of_file is None or of_file.strategy in {"none", "memory"}:
        return None
    place = f"sharing.{of_file.strategy}"
    text = f"--{given[0]} ({PREFIX}{variable(given[0])}) is given, and shares by memory; leave out one of the two"
    return place, f"{place}: {text}"


def _given(values: Values) -> list[str]:
    return [name for name in NAMES if values.said(name) and values.value(name)]


def _whole_mebibytes(quantity: str) -> bool:
    try:
        count = to_bytes(quantity)
    except ValueError:
        return False
    return count >= MEBIBYTE and count % MEBIBYTE == 0


def _of_flag(problem: str) -> str:
    """Return a problem of the section with the flag that caused it."""
    for name, key in _FIELDS.items():
        problem = problem.replace(f"resources[0].{key}", f"--{name}", 1)
    return problem
