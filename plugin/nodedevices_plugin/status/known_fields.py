"""What of a status the API server has fields for, where its CRD is of another version than this agent.

A server-side apply with a single field that the CRD does not know is refused as a whole: an agent that is newer than
the CRDs (they were set back, or the DaemonSet was updated before them) would report nothing any more. The schema that
the API server itself publishes (OpenAPI v3 of the group, which every authenticated client may read) says which fields
to leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MAX_NAMED = 8  # fields in one message
_PRESERVED = "x-kubernetes-preserve-unknown-fields"


def status_schema(document: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the schema of the status of this kind from an OpenAPI v3 document of its group and version; None: the
    document does not have it."""
    schemas = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        kinds = {gvk.get("kind") for gvk in schema.get("x-kubernetes-group-version-kind") or ()}
        if kind in kinds:
            found: Mapping[str, Any] | None = (schema.get("properties") or {}).get("status")
            return found
    return None


def without_unknown(status: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the status without what the schema has no field for, and the paths of what was left out, such as
    `status.devices[].history`."""
    left_out: dict[str, None] = {}
    return _known(dict(status), schema, "status", left_out), tuple(left_out)


def named(paths: Iterable[str]) -> str:
    """Return the paths for a message, the first of them."""
    every = tuple(paths)
    more = f" and {len(every) - MAX_NAMED} more" if len(every) > MAX_NAMED else ""
    return ", ".join(every[:MAX_NAMED]) + more


def _known(value: Any, schema: Mapping[str, Any], path: str, left_out: dict[str, None]) -> Any:
    if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping):
        return [_known(each, schema["items"], f"{path}[]", left_out) for each in value]
    if not isinstance(value, Mapping) or schema.get(_PRESERVED):
        return value
    if isinstance(every := schema.get("additionalProperties"), Mapping):
        return {key: _known(field, every, f"{path}.{key}", left_out) for key, field in value.items()}
    if "properties" not in schema:
        return value
    fields = schema["properties"]
    left_out |= {f"{path}.{key}": None for key in value if key not in fields}
    return {key: _known(field, fields[key], f"{path}.{key}", left_out) for key, field in value.items() if key in fields}
