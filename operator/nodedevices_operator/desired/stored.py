"""A stored configuration, as far as this version understands it: what is acted by, and what is left as it is.

NodeDevices.spec.config may have been written by a newer operator, or by hand. What is not understood is no reason to
take anything back: each section is read by itself, without the fields that are not known. By a section of which
something was left out only what is information is written (marks on pods, conditions); the rest of what it has led to
stays as it stands, since the field that is missing may have been the one that limits it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct
from nodedevices_api.base import wire_name
from nodedevices_api.defaults import Resolved, with_defaults
from nodedevices_api.errors import explain, parse
from nodedevices_api.sections import SECTION_NAMES, Sections
from nodedevices_common.errors import InputError
from pydantic import ValidationError

WHERE = "config"
WIRE_SECTIONS = tuple(wire_name(name) for name in SECTION_NAMES)
MAX_CONFIGS = 256  # remembered; a fleet has few different ones


class Understood(Struct, frozen=True):
    """`problems`: what was left out, a line each; empty: nothing."""

    sections: Resolved
    partly: frozenset[str] = frozenset()  # sections of which something was left out
    problems: tuple[str, ...] = ()
    misfit: str = ""  # why the sections cannot be combined; then none of them is acted by


def understood(config: Mapping[str, Any]) -> Understood:
    """Return what can be used of these sections, with the built-in defaults."""
    return _understood(orjson.dumps(config))


@lru_cache(MAX_CONFIGS)
def _understood(dumped: bytes) -> Understood:
    config = orjson.loads(dumped)
    try:
        return Understood(with_defaults(parse(Sections, config, WHERE)))
    except InputError:
        pass
    kept: dict[str, Any] = {}
    partly: set[str] = set()
    problems: list[str] = []
    for name, given in config.items():
        section, lines = _without_unknown_fields(name, given)
        problems += lines
        if name in WIRE_SECTIONS and lines:
            partly.add(name)
        if section is not None:
            kept[name] = section
    try:
        sections = with_defaults(parse(Sections, kept, WHERE))
    except InputError as error:
        return Understood(with_defaults(Sections()), frozenset(WIRE_SECTIONS), tuple(problems), str(error))
    return Understood(sections, frozenset(partly), tuple(problems))


def _without_unknown_fields(name: str, given: object) -> tuple[object, list[str]]:
    """The section without fields that are not known, or None where it cannot be read even so; and what is wrong."""
    section = {name: copy.deepcopy(given)}
    lines: list[str] = []
    for _ in range(2):  # with the unknown fields, and without them
        try:
            Sections.model_validate(section, by_alias=True, by_name=False)
        except ValidationError as error:
            lines += explain(error, Sections, WHERE)
            details = error.errors()
            unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
            if len(unknown) < len(details) or not all(_removed(section, place) for place in unknown):
                return None, lines
        else:
            return section.get(name), lines
    return None, lines


def _removed(tree: Any, place: tuple[int | str, ...]) -> bool:
    """True when it could be taken out."""
    *way, last = place
    try:
        for part in way:
            tree = tree[part]
        del tree[last]
    except (KeyError, IndexError, TypeError):
        return False
    return True
