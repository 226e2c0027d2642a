"""Scalar and collection types of the contract: bounded, exact about types, and known to the API server.

Numbers and booleans are strict: `"8"` is not 8 and `"yes"` is not true, as for the API server. Times are RFC 3339 in
UTC: to the second, except where microseconds decide (`MicroTime`). A time that has lost its fraction on the way in is
equal to itself after a round trip, so that "nothing changed" is a comparison of models. Free text in a status is
clipped to its bound instead of refused, because one long message must not cost a node its whole report.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from nodedevices_common.conditions import MESSAGE_LIMIT
from nodedevices_common.quantity import QUANTITY_PATTERN
from nodedevices_common.text import clip
from nodedevices_common.times import rfc3339
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler as JsonHandler,
    PlainSerializer,
    Strict as StrictType,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.config import JsonDict, JsonValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nodedevices_api.base import wire_name
from nodedevices_api.bounds import (
    DEVICE_ID_PATTERN,
    INT32_MAX,
    MAX_DEVICE_ID,
    MAX_PROBE_NAME,
    PROBE_NAME_PATTERN,
    WORD_PATTERN,
)

INTEGER_MAX = 2**53 - 1  # the API server keeps bounds as float64: 2**63-1 is rounded up and refused
HEALTH_MESSAGE_LIMIT = 512
PLACE_LIMIT = 192  # of an entry or field of a configuration

# --- numbers ---------------------------------------------------------------------------------------------------------
Flag = Annotated[bool, StrictType()]
Whole = Annotated[int, StrictType()]  # bounds come from the field
Count = Annotated[int, StrictType(), Field(ge=0, le=INT32_MAX)]
Generation = Annotated[int, StrictType(), Field(ge=0, le=INTEGER_MAX)]
Xid = Annotated[int, StrictType(), Field(ge=1, le=1023)]  # NVIDIA's catalogue ends below 200

# --- names -----------------------------------------------------------------------------------------------------------
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
# A DNS subdomain and at most 63 characters. The kubelet and the API server check it with "requests." before it
# (IsExtendedResourceName in k8s.io/kubernetes pkg/apis/core/v1/helper), hence 253 - 9 at most.
RESOURCE_NAME_PATTERN = (
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
MAX_RESOURCE_NAME = 244
GLOB_PATTERN = r"^[A-Za-z0-9._:*?\[\]!/ -]+$"
REASON_GLOB_PATTERN = r"^[A-Za-z0-9*?\[\]!-]+$"
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
HOST_PATH_PATTERN = r"^(/[.]{0,2}[A-Za-z0-9_+@=:-][A-Za-z0-9._+@=:-]*)+$"  # no . and .. among its parts

ObjectName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, min_length=1, max_length=253)]
ResourceName = Annotated[
    str, StringConstraints(pattern=RESOURCE_NAME_PATTERN, min_length=3, max_length=MAX_RESOURCE_NAME)
]
DeviceId = Annotated[str, StringConstraints(pattern=DEVICE_ID_PATTERN, min_length=1, max_length=MAX_DEVICE_ID)]
Word = Annotated[str, StringConstraints(pattern=WORD_PATTERN, max_length=64)]  # a reason, an action, a kind
ProbeName = Annotated[str, StringConstraints(pattern=PROBE_NAME_PATTERN, min_length=1, max_length=MAX_PROBE_NAME)]
Glob = Annotated[str, StringConstraints(pattern=GLOB_PATTERN, min_length=1, max_length=96)]
ReasonGlob = Annotated[str, StringConstraints(pattern=REASON_GLOB_PATTERN, min_length=1, max_length=64)]
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=LABEL_KEY_PATTERN,
        min_length=1,
        max_length=317,
    ),
]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE_PATTERN, max_length=63)]

RecoveryAction = Literal[
    "None",
    "RestartApp",
    "ResetDevice",
    "DrainP2P",
    "DrainAndReset",
    "ResetBus",
    "RecoverIMEXDomain",
    "RebootNode",
    "RebootSystem",
    "Replace",
    "Inspect",
]


# What to write instead, by the pattern that a value did not match.
PATTERN_HINTS = {
    NAME_PATTERN: "write small letters, digits, - and .",
    RESOURCE_NAME_PATTERN: "write a domain and a name of at most 63 characters, such as nvidia.com/gpu",
    DEVICE_ID_PATTERN: "write a device id, such as GPU-<uuid>: letters, digits, . _ : -",
    WORD_PATTERN: "write letters and digits only",
    PROBE_NAME_PATTERN: "write the name of a probe, such as nvml: small letters, digits and hyphens",
    GLOB_PATTERN: "write a name, or a pattern with * and ?",
    REASON_GLOB_PATTERN: "write a health reason, such as Xid79, or a pattern with * and ?",
    LABEL_KEY_PATTERN: "write a label key, such as example.com/pool",
    LABEL_VALUE_PATTERN: "write a label value: letters, digits, - _ . inside",
    VARIABLE_PATTERN: "write the name of a variable: letters, digits and _",
    HOST_PATH_PATTERN: "write an absolute path without . and .., such as /opt/limiter",
    QUANTITY_PATTERN: "write an amount of memory, such as 80Gi or 512Mi",
}


def _clipped(limit: int) -> Any:
    return AfterValidator(lambda text: clip(text, limit))


def _limit(limit: int) -> Any:
    return Field(json_schema_extra={"maxLength": limit})


# Text from hardware, drivers and other programs.
Short = Annotated[str, _clipped(64), _limit(64)]
Line = Annotated[str, _clipped(128), _limit(128)]
HealthMessage = Annotated[str, _clipped(HEALTH_MESSAGE_LIMIT), _limit(HEALTH_MESSAGE_LIMIT)]
Place = Annotated[str, _clipped(PLACE_LIMIT), _limit(PLACE_LIMIT)]
ConditionMessage = Annotated[str, _clipped(MESSAGE_LIMIT), _limit(MESSAGE_LIMIT)]


def in_schema(default: JsonValue) -> JsonDict:
    """Mark a field whose default the API server itself fills in; all other defaults are ours alone."""
    return {"x-default-in-schema": default}


# --- names of extended resources -------------------------------------------------------------------------------------
NATIVE = "kubernetes.io/"  # anywhere in a name, as in mykubernetes.io/gpu: Kubernetes' own resources
REQUESTS = "requests."  # at its beginning: a quota's name
NOT_EXTENDED = (
    "no kubelet takes a name with kubernetes.io/ in it, or one that begins with requests.; write a domain of your own, "
    "such as example.com/gpu"
)


def reserved_by_kubernetes(name: str) -> bool:
    """True when Kubernetes does not take it as an extended resource, though it is written like one."""
    return NATIVE in name or name.startswith(REQUESTS)


def _extended(name: str) -> str:
    if reserved_by_kubernetes(name):
        raise PydanticCustomError("reserved_resource", "not allowed; {hint}", {"hint": NOT_EXTENDED})
    return name


# What people write; a status keeps the plain type, since one name would cost the node its whole report.
ExtendedName = Annotated[
    ResourceName,
    AfterValidator(_extended),
    Field(
        json_schema_extra={  # the same check for the API server
            "x-kubernetes-validations": [
                {
                    "rule": f"!self.contains('{NATIVE}') && !self.startsWith('{REQUESTS}')",
                    "message": f"not allowed; {NOT_EXTENDED}",
                }
            ]
        }
    ),
]


# --- times -----------------------------------------------------------------------------------------------------------
def _time(value: object) -> object:
    with suppress(ValueError):
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(value, datetime):
        raise PydanticCustomError("time", "not a time; write it as 2026-11-21T07:02:11Z")
    if value.tzinfo is None:
        raise PydanticCustomError("time", "a time without a zone; write it as 2026-11-21T07:02:11Z")
    return value.astimezone(UTC)


_DATE_TIME = WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 64})
Time = Annotated[
    datetime,
    AfterValidator(lambda time: time.replace(microsecond=0)),
    BeforeValidator(_time),
    PlainSerializer(rfc3339, return_type=str, when_used="json"),
    _DATE_TIME,
]
MicroTime = Annotated[
    datetime,
    BeforeValidator(_time),
    PlainSerializer(lambda value: rfc3339(value, microseconds=True), return_type=str, when_used="json"),
    _DATE_TIME,
]


# --- quantities ------------------------------------------------------------------------------------------------------
Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=32)]
# People may write a plain number, as everywhere in Kubernetes.
QuantityInput = Annotated[
    str,
    StringConstraints(pattern=QUANTITY_PATTERN, max_length=32),
    BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]


# --- collections -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ListType:
    """The way in which server-side apply merges a list: `map` by a key (unique), `set` (unique) or `atomic` (as a
    whole)."""

    kind: Literal["map", "set", "atomic"]
    key: str = ""  # the field's Python name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        return inner if self.kind == "atomic" else core_schema.no_info_after_validator_function(self._unique, inner)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: JsonHandler) -> dict[str, Any]:
        json = handler(schema)
        json["x-kubernetes-list-type"] = self.kind
        if self.kind == "map":
            json["x-kubernetes-list-map-keys"] = [wire_name(self.key)]
        return json

    def _unique(self, items: Sequence[Any]) -> Sequence[Any]:
        seen: set[Hashable] = set()
        for item in items:
            key = getattr(item, self.key) if self.key else item
            if key in seen:
                raise PydanticCustomError("duplicate", "{key} is listed twice; list it once", {"key": str(key)})
            seen.add(key)
        return items


@dataclass(frozen=True)
class Atomic:
    """An object that server-side apply replaces as a whole: one name in managedFields, not one per leaf.

    Needed wherever an object may become empty: apply of `{}` over a granular object leaves null, and null is refused.
    """

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: JsonHandler) -> dict[str, Any]:
        json = handler(schema)
        json["x-kubernetes-map-type"] = "atomic"
        return json


T = TypeVar("T")
AtomicList = Annotated[tuple[T, ...], ListType("atomic")]
# Where one of the next three may be None, pydantic loses its maxItems: write it out there.
SetList = Annotated[tuple[T, ...], ListType("set")]
MapByName = Annotated[tuple[Annotated[T, Atomic()], ...], ListType("map", "name")]
MapById = Annotated[tuple[Annotated[T, Atomic()], ...], ListType("map", "id")]


def listed(most: int, description: str) -> Any:
    """A field that is a list of at most so many, and empty where nothing is said."""
    return Field(default=(), max_length=most, description=description)


def optional(description: str) -> Any:
    """A field that is absent where nothing is said."""
    return Field(default=None, description=description)
