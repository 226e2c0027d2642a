"""JSON and YAML for programs: one document with a version, the rows' fields as they are.

Characters beyond ASCII are escaped in both, so that no text of an object can steer a terminal.

Sections of a description, as `kubectl describe` writes them: values after their names, tables under their titles.

Whether to write colours: https://no-color.org, and never into a file or a pipe unless asked to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from nodedevices_common.table import Kind, Row, TableText, bold
from nodedevices_common.text import printable

from nodedevices_kubectl.views.describe import Section

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


INDENT = "  "


def lines(sections: Iterable[Section], now: datetime, *, colours: bool) -> Iterator[str]:
    sections = list(sections)
    width = max((len(name) for section in sections for name, _ in section.pairs), default=0) + 1
    for section in sections:
        for name, value in section.pairs:
            yield f"{f'{name}:':<{width}}{INDENT}{printable(value)}"
        if not section.title:
            continue
        if not section.rows:
            yield f"{bold(section.title + ':', colours=colours)} <none>"
            continue
        yield bold(f"{section.title}:", colours=colours)
        for line in TableText(section.columns, colours=colours, headers=True).lines(section.rows, now):
            yield INDENT + line


CHOICES = ("auto", "always", "never")


def wanted(choice: str, *, terminal: bool, environment: Mapping[str, str]) -> bool:
    if choice != "auto":
        return choice == "always"
    return terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
