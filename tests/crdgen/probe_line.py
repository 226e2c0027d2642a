"""The published JSON Schema of a probe's line, beside the CRDs, for people who write their own probe: generated from
`nodedevices_probe.protocol`."""

from __future__ import annotations

import json
from typing import Any

from nodedevices_probe.protocol import PROTOCOL, Snapshot, camel
from pydantic import TypeAdapter

FILE_NAME = "probe-line.schema.json"


def rendered() -> str:
    """Return the file's text."""
    return json.dumps(line_schema(), indent=2, ensure_ascii=True) + "\n"


def line_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line."""
    schema = _without_titles(TypeAdapter(Snapshot).json_schema(by_alias=True))
    schema["properties"][camel("protocol")] = {"const": PROTOCOL}
    schema["required"] = ["protocol", *schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://nodedevices.io/schemas/probe-line.v1alpha1.json",
        **schema,
        "title": "NodeDevices probe line",
    }


def _without_titles(schema: Any) -> Any:
    """Return the schema without pydantic's titles, which repeat the keys."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(each) for each in schema] if isinstance(schema, list) else schema
