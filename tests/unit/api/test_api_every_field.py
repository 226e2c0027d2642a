"""The objects that are to have every field of the contract have every field of its models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml
from nodedevices_api.base import Loose
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.nodedevices import NodeDevices
from nodedevices_common.errors import InputError
from pydantic import BaseModel
from support import schemacases
from support.cases import cases

CRDS = Path(__file__).parents[3] / "crds"


def classes(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every model that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from classes(part)


def declared(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, str]]:
    """Class and name of every field below a model."""
    seen.add(model)
    for name, field in model.model_fields.items():
        yield model.__name__, name
        for each in classes(field.annotation):
            if each not in seen:
                yield from declared(each, seen)


def given(value: object) -> Iterator[tuple[str, str]]:
    """Class and name of every field that has a value."""
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield type(value).__name__, name
            yield from given(getattr(value, name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from given(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from given(part)


@cases(("model", "file"), (NodeDevices, "nodedevices"), (DevicePolicy, "devicepolicies"))
def test_the_objects_with_every_field_have_every_field_of_the_models(model: type[Loose], file: str) -> None:
    def allowed(document: dict[str, Any]) -> bool:
        try:
            parse(model, document)
        except InputError:
            return False
        return True

    documents = schemacases.complete(yaml.safe_load((CRDS / f"{file}.yaml").read_text()), allowed)
    found = {each for document in documents for each in given(parse(model, document))}
    wanted = {each for each in declared(model, set()) if each[0] != "ObjectMeta"}
    assert wanted - found == set()
