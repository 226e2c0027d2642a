"""Base of all models of the contract: names on the wire, strictness, CEL rules, serialisation.

- `Strict` is for what people and the operator write (`spec`): an unknown key is an error. Fields carry the built-in
  defaults as Python defaults; "not set by a policy" is remembered by pydantic (`model_fields_set`), and `to_dict`
  writes only what was set. The generated schema has no defaults, so the API server never fills one in.
- `Loose` is for what our own programs publish (`status`): a newer writer's field is ignored by an older reader, and
  `to_dict` leaves out everything that is at its default (absent, empty).
- A `Rule` is one CEL expression together with the same check in Python, so that the API server and a local file refuse
  the same things with the same sentence. Tests run each against both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

# Kubernetes spells initialisms in capitals; a rule for them would be longer than the list. `int` and `bool` are types.
_WIRE_NAMES = {
    "boolean": "bool",
    "boot_id": "bootID",
    "device_id_strategy": "deviceIDStrategy",
    "integer": "int",
    "memory_mib": "memoryMiB",
    "node_uid": "nodeUID",
    "pci_bus_id": "pciBusID",
}


def wire_name(name: str) -> str:
    """The key of a field in YAML and JSON: `hold_down_seconds` -> `holdDownSeconds`."""
    return _WIRE_NAMES.get(name, to_camel(name))


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition between fields: `cel` for the API server, `holds` for us.

    `message` is the sentence: what would be right. Before it the API server shows the value, `found`, in CEL; or
    `found` is a text with a %s for each of the CEL `values` (the API server
    refuses a CRD that goes on with what format() makes: it takes that to be of any length). We say only the sentence,
    but for what no API server sees: there `describe` says what the object has, too.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    found: str = ""
    values: str = ""
    describe: Callable[[Any], str] | None = None

    def to_json(self) -> dict[str, str]:
        if not self.found:
            return {"rule": self.cel, "message": self.message}
        escaped = self.message.replace("\\", "\\\\").replace("'", "\\'")
        plain = f"{self.found} + ': {escaped}'"
        said = f"'{self.found}: {escaped.replace('%', '%%')}'.format([{self.values}])" if self.values else plain
        return {"rule": self.cel, "message": self.message, "messageExpression": said}


class Model(BaseModel):
    """A frozen value with camelCase keys on the wire. In code, fields are given by their Python names."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=wire_name,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        defer_build=True,  # most are only parts of another, and the agent reads few of them before its first Register
    )

    cel_rules: ClassVar[tuple[Rule, ...]] = ()
    # Which fields `to_dict` leaves out: those that were not set, or those at their default.
    omit_defaults: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        json = handler(schema)
        if cls.cel_rules:
            handler.resolve_ref_schema(json)["x-kubernetes-validations"] = [rule.to_json() for rule in cls.cel_rules]
        return json

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.cel_rules:
            if not rule.holds(self):
                found = f"{rule.describe(self)}: " if rule.describe is not None else ""
                raise ValueError(found + rule.message)
        return self


class Strict(Model):
    """Input: an unknown key is an error, and so is null (errors.parse). `null_is_absent`: not in this one. `gone`: keys
    that it had once, or that others like it have, each with what to say."""

    model_config = ConfigDict(extra="forbid")

    null_is_absent: ClassVar[bool] = False
    gone: ClassVar[Mapping[str, str]] = {}


class Loose(Model):
    """Output of our own programs: unknown keys are ignored, empty ones not written."""

    model_config = ConfigDict(extra="ignore")

    omit_defaults: ClassVar[bool] = True


def to_dict(model: Model) -> dict[str, Any]:
    """The model as it goes to the API server: camelCase keys, plain JSON values, nothing for what is absent.

    A `Strict` model keeps exactly what was set, an empty section included; a `Loose` one leaves out what is empty. Not
    for one within the other: nobody writes a whole object by its model.
    """
    return model.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude_defaults=model.omit_defaults,
        exclude_unset=not model.omit_defaults,
    )
