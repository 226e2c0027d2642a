"""A status for CRDs that do not know all of its fields: what the API server's schema has no field for is left out and
named."""

from __future__ import annotations

from typing import Any

from nodedevices_plugin.status.fitting import status_schema, without_unknown
from support.cases import cases

TEXT = {"type": "string"}
DEVICE = {"type": "object", "properties": {"id": TEXT, "health": {"type": "object", "properties": {"state": TEXT}}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "devices": {"type": "array", "items": DEVICE},
        "byName": {"type": "object", "additionalProperties": DEVICE},
        "words": {"type": "object", "additionalProperties": TEXT},
        "anything": {"type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": True},
        "object": {"type": "object"},
        "names": {"type": "array", "items": TEXT},
        "list": {"x-kubernetes-preserve-unknown-fields": True},
    },
}


def test_what_the_schema_has_no_field_for_is_left_out_and_named_once_in_a_map_with_its_key() -> None:
    health = {"state": "Healthy", "trend": "up"}
    devices = [{"id": "a", "health": health, "history": []}, {"id": "b", "history": [1]}]
    known, left_out = without_unknown({"devices": devices, "later": 1, "names": ["x"]}, SCHEMA)
    assert known == {"devices": [{"id": "a", "health": {"state": "Healthy"}}, {"id": "b"}], "names": ["x"]}
    assert left_out == ("status.later", "status.devices[].history", "status.devices[].health.trend")
    known, left_out = without_unknown({"byName": {"gpu-0": {"id": "a", "history": []}}}, SCHEMA)
    assert (known, left_out) == ({"byName": {"gpu-0": {"id": "a"}}}, ("status.byName.gpu-0.history",))


def test_of_a_list_that_may_not_be_as_long_the_first_entries_are_reported() -> None:
    schema = {"properties": {"holders": {"type": "array", "maxItems": 2, "items": TEXT}}}
    assert without_unknown({"holders": ["a", "b", "c"]}, schema) == ({"holders": ["a", "b"]}, ("status.holders[2:]",))
    assert without_unknown({"holders": ["a", "b"]}, schema) == ({"holders": ["a", "b"]}, ())


@cases("name", "words", "anything", "object")
def test_what_may_have_any_field_keeps_them(name: str) -> None:
    status = {name: {"later": "x"}}
    assert without_unknown(status, SCHEMA) == (status, ())


@cases("status", {"list": [{"later": 1}]}, {"names": "one"}, {"byName": "one"})
def test_what_is_of_another_type_than_the_schema_has_is_the_servers_to_refuse(status: dict[str, Any]) -> None:
    assert without_unknown(status, SCHEMA) == (status, ())


def document(**schemas: Any) -> dict[str, Any]:
    return {"components": {"schemas": schemas}}


def of_kind(kind: str, **properties: Any) -> dict[str, Any]:
    group = {"group": "nodedevices.io", "version": "v1alpha1", "kind": kind}
    return {"x-kubernetes-group-version-kind": [group], "properties": properties}


def test_the_schema_is_that_of_the_kinds_status() -> None:
    published = document(
        meta={"type": "object"},
        policy=of_kind("DevicePolicy", status={"type": "object"}),
        devices=of_kind("NodeDevices", spec={"type": "object"}, status=SCHEMA),
    )
    assert status_schema(published, "NodeDevices") == SCHEMA


@cases(
    "published",
    {},
    {"components": None},
    {"components": {}},
    document(policy=of_kind("DevicePolicy", status=SCHEMA)),
    document(devices=of_kind("NodeDevices", spec=SCHEMA)),
    document(devices={"x-kubernetes-group-version-kind": [{"kind": "NodeDevices"}]}),
)
def test_a_document_without_it_has_none(published: dict[str, Any]) -> None:
    assert status_schema(published, "NodeDevices") is None
