"""JSON and YAML for programs: one document with a version, the rows' fields as they are.

Characters beyond ASCII are escaped in both, so that no text of an object can steer a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nodedevices_common.table import Kind, Row

API_VERSION = "kubectl.nodedevices.io/v1alpha1"  # of what `-o json` and `-o yaml` write; a field may be added to it


def document(kind: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, **content}


def of_rows(kind: Kind, rows: Sequence[Row]) -> dict[str, Any]:
    return document(kind.name, items=[dict(row.fields) for row in rows])


def as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=4)


def as_yaml(value: Mapping[str, Any]) -> str:
    import yaml  # noqa: PLC0415 - takes as long to load as all the rest, and few ask for it

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=False)).rstrip("\n")
