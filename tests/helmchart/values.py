"""values.schema.json and the table of README.md, made of values.yaml: keys, defaults, comments.

The comment above a key is its description. Its type is its default's; `# @schema {...}` (JSON Schema, on one line)
refines it, and `# @flags agent` says that its keys are the flags of a program, with the types and values of the
program's own table. Whatever is not said may not be there: `additionalProperties` is false unless a key says otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from helmchart.templates import CHART
from nodedevices_common.options import Option
from nodedevices_operator.settings import OPTIONS as OPERATOR
from nodedevices_plugin.settings.options import options as agents_options

_KEY = re.compile(r"^( *)([A-Za-z][\w-]*):(.*)$")
_COMMENT = re.compile(r"^ *# ?(.*)$")

# Flags that are not values: a component or another value sets them, or the pod's own wiring would no longer fit.
OF_THE_CHART = frozenset(
    {
        *("kubeconfig", "standalone", "http-address", "health-address"),
        *("node-name", "pod-name", "pod-namespace", "probe-server", "namespace"),
        *("device-plugin-dir", "kubelet-socket", "pod-resources-socket", "state-file", "allocations-dir"),
        *("cdi-dir", "cdi-spec-dirs", "mps-dir", "mps-root", "device-info-dir", "driver-root-ctr-path"),
        *("serving-mode", "config-dir", "delete-rejected-pods", "cluster-properties"),
        "driver-directory",
        *(f"{name}-config-file" for name in ("generic", "remote", "rdma", "sriov", "onload")),
        "fpga-names-file",
    }
)
FLAGS: Mapping[str, Callable[[], Iterable[Option]]] = {"agent": agents_options, "operator": lambda: OPERATOR}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of values.yaml, with the text above it."""

    path: tuple[str, ...]
    default: Any
    about: str
    schema: Mapping[str, Any]
    flags: str = ""
    on_one_line: bool = False  # `{enabled: false}`: its keys have no lines, and so no comments, of their own

    @property
    def name(self) -> str:
        return ".".join(self.path)


def keys(text: str) -> Iterator[Key]:
    """Return each key in the order of the file. Those inside a value that is given as a whole are keys, too."""
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    above: list[str] = []
    for line in text.splitlines():
        comment, key = _COMMENT.match(line), _KEY.match(line)
        if comment:
            above.append(comment[1])
        elif key:
            indent = len(key[1])
            path = [each for each in path if each[0] < indent] + [(indent, key[2])]
            names = tuple(name for _, name in path)
            words = [each for each in above if not each.startswith("@")]
            schema = [json.loads(each.removeprefix("@schema ")) for each in above if each.startswith("@schema ")]
            flags = [each.removeprefix("@flags ") for each in above if each.startswith("@flags ")]
            yield Key(
                names, _at(values, names), " ".join(words), schema[0] if schema else {}, "".join(flags), bool(key[3])
            )
            above = []
        else:
            above = []


def _at(values: Any, names: Iterable[str]) -> Any:
    for name in names:
        values = values[name]
    return values


def schema(text: str) -> dict[str, Any]:
    """Return the schema of the values."""
    top = _object("Values of NodeDevices, made of values.yaml by `make gen`.")
    made: dict[tuple[str, ...], dict[str, Any]] = {(): top}
    for key in keys(text):
        parent = made.get(key.path[:-1])
        if parent is None:  # below something that is whole: resources.requests
            continue
        if key.flags:
            known = {each.name: _of_flag(each) for each in FLAGS[key.flags]() if each.name not in OF_THE_CHART}
            one = _object(key.about) | {"properties": known}
        elif isinstance(key.default, dict) and "additionalProperties" not in key.schema:
            one = made[key.path] = _object(key.about)
            if key.on_one_line:
                one["properties"] = {name: {"type": _type(value)} for name, value in key.default.items()}
        else:
            one = {"type": _type(key.default), **({"description": key.about} if key.about else {}), **key.schema}
        parent["properties"][key.path[-1]] = one
    return {"$schema": "http://json-schema.org/draft-07/schema#", **top}


def _object(about: str) -> dict[str, Any]:
    described = {"description": about} if about else {}
    return {"type": "object", **described, "additionalProperties": False, "properties": {}}


def _type(default: Any) -> str:
    kinds = ((bool, "boolean"), (int, "integer"), (str, "string"), (list, "array"), (dict, "object"))
    return next(name for kind, name in kinds if isinstance(default, kind))


def _of_flag(option: Option) -> dict[str, Any]:
    about = {"description": re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", option.help)}
    allowed = option.works or option.choices
    one: dict[str, Any] = {"enum": list(allowed)} if allowed else {"type": ["string", "integer"]}
    if option.kind == "bool":
        return {**about, "type": "boolean"}
    if option.kind == "list":
        return {**about, "anyOf": [one, {"type": "array", "items": one}]}
    return {**about, **one}


def table(text: str) -> str:
    """Return the values as Markdown."""
    lines = ["| value | default | what |", "|---|---|---|"]
    inside: set[tuple[str, ...]] = set()
    for key in keys(text):
        if any(key.path[:depth] in inside for depth in range(1, len(key.path))):
            continue
        whole = not isinstance(key.default, dict) or "additionalProperties" in key.schema or bool(key.flags)
        switch = not whole and key.on_one_line
        if whole or switch:
            inside.add(key.path)
            name, default = (f"{key.name}.enabled", key.default["enabled"]) if switch else (key.name, key.default)
            allowed = key.schema.get("enum")
            more = f" One of {', '.join(f'`{each}`' for each in allowed)}." if allowed else ""
            lines.append(
                f"| `{name}` | `{json.dumps(default)}` | {(key.about + more).strip().replace('|', chr(92) + '|')} |"
            )
        else:
            lines.append(f"| **`{key.name}`** | | {key.about} |")
    return "\n".join(lines) + "\n"


def made() -> dict[str, str]:
    """Return what is made of values.yaml, by file name."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    page = (CHART / "README.md.in").read_text(encoding="utf-8")
    return {
        "values.schema.json": json.dumps(schema(text), indent=2, ensure_ascii=False) + "\n",
        "README.md": page.replace("<!-- values -->\n", table(text)),
    }
