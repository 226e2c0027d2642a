"""Kubernetes objects from files, as people write them and as `kubectl get -o yaml` or `-o json` saves them.

A list is taken apart. What is no object, or of a kind that the caller does not take, is refused with file and place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from nodedevices_common.errors import InputError
from nodedevices_common.raw import Raw, mapping
from nodedevices_common.text import nearest, show

STDIN = "-"
MAX_BYTES = 512 << 20
MAX_VALUES = 20_000_000  # of one file in YAML: some 5,000 nodes


def read(paths: Sequence[str], kinds: Sequence[str]) -> list[Raw]:
    """Every object of these files, each of one of the kinds. InputError names the file."""
    found: list[Raw] = []
    for path in paths:
        for place, raw in _objects(_documents(path), path):
            kind = raw.get("kind")
            if kind not in kinds:
                wanted = " or ".join(kinds)
                hint = nearest(kind, kinds) if isinstance(kind, str) else ""
                raise InputError(f"{place}: kind: {show(kind)} is not supported here; give {wanted}{hint}")
            name = mapping(raw.get("metadata")).get("name")
            if not isinstance(name, str) or not name:
                raise InputError(f"{place}: metadata.name: {show(name)}: give the object's name")
            found.append(raw)
    return found


def _documents(path: str) -> list[Any]:
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file with objects, in YAML or JSON") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: more than {MAX_BYTES >> 20} MiB; give fewer objects at a time")
    if raw.lstrip()[:1] in {b"{", b"["}:
        try:
            return [json.loads(raw)]
        except ValueError:
            pass  # YAML's flow style, or what YAML's reader names better
    from nodedevices_common import safe_yaml  # noqa: PLC0415 - as slow as the rest of a start

    try:
        return safe_yaml.load_all(raw, max_values=MAX_VALUES)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _objects(documents: Sequence[Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each with where it is, for people."""
    for number, document in enumerate(documents, 1):
        place = path if len(documents) == 1 else f"{path}: document {number}"
        if document is None:
            continue  # a separator more than needed
        if isinstance(document, list):  # as a support bundle has them
            document = {"kind": "List", "items": document}  # noqa: PLW2901
        if not isinstance(document, dict):
            raise InputError(f"{place}: {show(document)} is not an object; give apiVersion, kind, metadata and spec")
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            for at, item in enumerate(items):
                if not isinstance(item, dict):
                    raise InputError(f"{place}: items[{at}]: {show(item)} is not an object")
                yield f"{place}: items[{at}]", item
        else:
            yield place, document
