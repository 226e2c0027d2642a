"""From pydantic models to CustomResourceDefinitions: the same models give the same bytes.

The API server wants a structural OpenAPI v3 schema; pydantic writes JSON Schema 2020-12. `structural` rewrites what
differs (references are inlined, "or null" becomes "not required", titles and Python defaults go, integers get a format)
and refuses any keyword it does not know, so that a new pydantic feature shows here and not in a cluster.

In a spec, which people write, a pattern becomes a rule: the API server answers a pattern with the regular expression,
and a rule with a sentence. In a status, which programs write often, it stays the cheaper pattern.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from nodedevices_api import GROUP, VERSION
from nodedevices_api.base import Loose
from nodedevices_api.bounds import INT32_MAX
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.fields import PATTERN_HINTS
from nodedevices_api.nodedevices import NodeDevices

Json = dict[str, Any]

KEYWORDS = frozenset(
    {
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
    }
)
# What pruning, `exclude_none` and our own parsing do instead.
_DROPPED = frozenset({"$defs", "additionalProperties", "default", "propertyNames", "title", "x-default-in-schema"})
_NULL = {"type": "null"}


class UnsupportedSchema(Exception):  # noqa: N818
    """A keyword of JSON Schema that has no counterpart in a structural schema."""


def structural(model: type[Loose]) -> Json:
    """Return the openAPIV3Schema of a kind."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    # The API server knows these three itself and checks metadata by its own rules.
    document["properties"] = {key: document["properties"][key] for key in ("spec", "status")}
    document["required"] = [key for key in document.get("required", ()) if key != "metadata"]
    schema = _convert(document, document["$defs"], model.__name__)
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
        "kind": {"type": "string", "description": model.__name__},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    if not schema["required"]:
        del schema["required"]
    return schema


def _convert(node: Json, definitions: Json, path: str) -> Json:
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return _convert({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions, path)
    if "anyOf" in node:
        around = {key: value for key, value in node.items() if key not in {"anyOf", "default", "title"}}
        branches = [branch for branch in node["anyOf"] if branch != _NULL]
        if "x-kubernetes-int-or-string" in node:
            return _convert(around, definitions, path)
        if len(branches) != 1:
            raise UnsupportedSchema(f"{path}: a value of several types")
        return _convert({**branches[0], **around}, definitions, path)

    result = {key: value for key, value in node.items() if key in KEYWORDS}
    if "const" in node:
        result["enum"] = [node["const"]]
    if "x-default-in-schema" in node:
        result["default"] = node["x-default-in-schema"]
    if "description" in result:
        result["description"] = " ".join(result["description"].split()) + _built_in(node, path)
    if "x-kubernetes-int-or-string" in node:
        result.pop("type", None)
    if result.get("type") == "integer":
        result["format"] = "int32" if node.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"
    if "properties" in node:
        result["properties"] = {
            key: _convert(value, definitions, f"{path}.{key}") for key, value in node["properties"].items()
        }
    elif isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], definitions, f"{path}.*")
    elif "patternProperties" in node:  # a map whose keys have a pattern: the API server has no keyword for that
        (values,) = node["patternProperties"].values()
        result["additionalProperties"] = _convert(values, definitions, f"{path}.*")
    if "items" in node:
        result["items"] = _convert(node["items"], definitions, f"{path}[]")
    # Not where it may be a number: Kubernetes 1.32 takes such a value for unbounded, and refuses the CRD for what its
    # rules may cost. There the pattern stays.
    written = path.split(".")[1:2] == ["spec"] and "x-kubernetes-int-or-string" not in result
    if written and result.get("pattern") in PATTERN_HINTS:
        rule = _pattern_rule(result.pop("pattern"))
        result["x-kubernetes-validations"] = [rule, *result.get("x-kubernetes-validations", ())]
    unknown = set(node) - KEYWORDS - _DROPPED - {"const", "items", "patternProperties", "properties"}
    if unknown:
        raise UnsupportedSchema(f"{path}: {', '.join(sorted(unknown))}")
    return result


def _pattern_rule(pattern: str) -> Json:
    """The rule in place of a pattern; the API server puts field and value before its message."""
    return {"rule": f"self.matches(r'{pattern}')", "message": f"not allowed; {PATTERN_HINTS[pattern]}"}


def _built_in(node: Json, path: str) -> str:
    """The default that is ours and not the API server's, for people who write a spec."""
    default = node.get("default") if path.split(".")[1:2] == ["spec"] else None
    if default in (None, "", [], {}) or isinstance(default, dict) or "x-default-in-schema" in node:
        return ""
    value = ", ".join(map(str, default)) if isinstance(default, list) else json.dumps(default).strip('"')
    return f" Built-in default: {value}."


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; `wide` ones show with -o wide only."""

    name: str
    path: str
    type: str
    description: str
    wide: bool = False

    def to_json(self) -> Json:
        column = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return {**column, "priority": 1} if self.wide else column


@dataclass(frozen=True, slots=True)
class CrdKind:
    """What a CRD has besides its schema."""

    model: type[Loose]
    plural: str
    short: str
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.plural}.yaml"


def _condition(name: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'


AGE = Column("Age", ".metadata.creationTimestamp", "date", "Time since the object was created.")

KINDS = (
    CrdKind(
        model=NodeDevices,
        plural="nodedevices",
        short="nd",
        columns=(
            Column("Model", ".status.summary.model", "string", "Product name of the devices; mixed for several."),
            Column("Devices", ".status.summary.devices", "integer", "Physical devices."),
            Column("Healthy", ".status.summary.healthy", "integer", "Devices that are Healthy or Degraded."),
            Column("Held", ".status.summary.held", "integer", "Devices that a container holds."),
            Column(
                "Ready",
                _condition("Ready"),
                "string",
                "Whether the agent runs and its resources are registered with the kubelet.",
            ),
            Column("Stale", _condition("Stale"), "string", "Whether the status may be out of date."),
            Column(
                "Reason",
                ".status.summary.reason",
                "string",
                "Why it is not Ready; else what is wrong with its devices.",
            ),
            AGE,
            Column(
                "Action", ".status.summary.recoveryAction", "string", "Recovery action for the worst device.", wide=True
            ),
            Column(
                "Withheld",
                ".status.summary.withheld",
                "string",
                "What new containers cannot get, and why: Unhealthy=2.",
                wide=True,
            ),
            Column(
                "Idle",
                ".status.summary.idle",
                "integer",
                "Devices that a container holds and does not use, where a policy looks for them.",
                wide=True,
            ),
        ),
        selectable=(".status.summary.reason",),
    ),
    CrdKind(
        model=DevicePolicy,
        plural="devicepolicies",
        short="dp",
        columns=(
            Column("Priority", ".spec.priority", "integer", "Higher wins."),
            Column("Mode", ".spec.mode", "string", "Enforce, DryRun or Paused."),
            Column("Accepted", _condition("Accepted"), "string", "The policy can be applied."),
            Column("Selected", ".status.nodes.selected", "integer", "Nodes that the selector matches."),
            Column("Applied", ".status.nodes.applied", "integer", "Nodes on which it is applied."),
            Column("Failed", ".status.nodes.failed", "integer", "Nodes that cannot apply it."),
            Column("Conflicted", _condition("Conflicted"), "string", "An older policy of equal priority differs."),
            Column(
                "Rollout",
                _condition("RolledOut", "reason"),
                "string",
                "Done, Progressing, Stopped, Paused or Failed.",
            ),
            Column("Stopped", _condition("ActionsStopped"), "string", "The breaker stops taints and evictions."),
            AGE,
            Column(
                "Unmatched",
                ".status.nodes.unmatched",
                "integer",
                "Nodes on which an entry of the policy has no effect.",
                wide=True,
            ),
        ),
    ),
)


def custom_resource_definition(kind: CrdKind) -> Json:
    """Return the whole CRD object."""
    version: Json = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column.to_json() for column in kind.columns],
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    version["schema"] = {"openAPIV3Schema": structural(kind.model)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind.model.__name__,
                "listKind": f"{kind.model.__name__}List",
                "plural": kind.plural,
                "singular": kind.model.__name__.lower(),
                "shortNames": [kind.short],
                "categories": ["hardware"],
            },
            "versions": [version],
        },
    }
