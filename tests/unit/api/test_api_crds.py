"""The generated CRDs: what is committed is what the models say, and is what a cluster takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pytest
from crdgen import crds, generate
from nodedevices_api.base import Loose
from nodedevices_api.fields import PATTERN_HINTS, RESOURCE_NAME_PATTERN
from nodedevices_api.meta import ObjectMeta
from pydantic import Field
from support.cases import cases

ROOT = Path(__file__).parents[3]
PLURALS = [kind.plural for kind in crds.KINDS]


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """By plural. Not at import, which is each worker's: it takes half a second."""
    return {kind.plural: crds.structural(kind.model) for kind in crds.KINDS}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, with its place."""
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        if path or key != "metadata":
            yield from nodes(child, f"{path}.{key}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


@cache
def every() -> list[tuple[str, dict[str, Any]]]:
    """Each schema inside a schema, with its place."""
    return [(f"{plural}{path}", node) for plural, schema in schemas().items() for path, node in nodes(schema)]


@cache
def ours() -> list[tuple[str, dict[str, Any]]]:
    """Those that are not what every object has."""
    return [(path, node) for path, node in every() if path.count(".") and not path.endswith((".apiVersion", ".kind"))]


def test_what_is_committed_is_what_the_models_say() -> None:
    for name, content in generate.crd_files().items():
        assert (ROOT / "crds" / name).read_text(encoding="utf-8") == content, "run `make gen`"
    for name, content in generate.reference_files().items():
        assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == content, "run `make gen`"


def test_check_is_content_with_what_generate_wrote_and_shows_what_differs_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(tmp_path / "crds"), "--reference", str(tmp_path / "reference")]
    assert generate.main(folders) == 0
    assert generate.main([*folders, "--check"]) == 0
    assert capsys.readouterr().out == ""
    file = tmp_path / "crds" / "nodedevices.yaml"
    file.write_text(file.read_text().replace("shortNames", "nickNames"))
    assert generate.main([*folders, "--check"]) == 1
    printed = capsys.readouterr().out
    assert "-    nickNames:" in printed
    assert "+    shortNames:" in printed
    assert "make gen" in printed
    assert "nickNames" in file.read_text(), "--check writes nothing"


@cases("plural", *PLURALS)
def test_every_schema_is_structural(plural: str) -> None:
    for path, node in nodes(schemas()[plural]):
        unknown = set(node) - crds.KEYWORDS - {"properties", "items", "additionalProperties", "default"}
        assert not unknown, f"{path}: {unknown}"
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert not isinstance(node.get("additionalProperties"), bool), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path


def test_everything_is_bounded() -> None:
    for path, node in ours():
        match node.get("type", "int-or-string"):
            case "array":
                most = 2048 if path == "nodedevices.status.devices" else 256
                assert 0 < node["maxItems"] <= most, path
            case "object" if "additionalProperties" in node:
                assert 0 < node["maxProperties"] <= 32, path
            case "object":
                assert "properties" in node, f"{path}: an object of anything"
            case "string":
                assert "enum" in node or 0 < node["maxLength"] <= 1024, path
            case "integer":
                assert node["minimum"] <= node["maximum"] < 2**53, f"{path}: the API server keeps bounds as float64"
                assert node["format"] in {"int32", "int64"}, path
            case "int-or-string":
                assert node["maxLength"] <= 32, path


def test_every_list_says_how_it_is_merged() -> None:
    for path, node in ours():
        if node.get("type") != "array":
            continue
        kind = node["x-kubernetes-list-type"]
        if kind == "map":
            keys = node["x-kubernetes-list-map-keys"]
            assert set(keys) <= set(node["items"]["required"]), f"{path}: a key that may be absent"
        elif kind == "set":
            assert node["items"]["type"] in {"string", "integer"}, path
        else:
            assert kind == "atomic", path


def test_every_object_that_may_become_empty_is_applied_as_a_whole() -> None:
    """Server-side apply of {} over a granular object leaves null, which the API server refuses."""

    def granular(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if node.get("x-kubernetes-map-type") == "atomic" or node.get("x-kubernetes-list-type") == "atomic":
            return
        if node.get("type") == "object" and not node.get("required"):
            yield path, node
        for key, child in node.get("properties", {}).items():
            yield from granular(child, f"{path}.{key}")
        if "items" in node:
            yield from granular(node["items"], f"{path}[]")

    for plural, schema in schemas().items():
        found = [path for part in ("spec", "status") for path, _ in granular(schema["properties"][part], part)]
        assert set(found) <= {"spec", "status"}, plural


def test_the_children_of_a_device_are_atomic_so_that_managed_fields_stay_small() -> None:
    device = schemas()["nodedevices"]["properties"]["status"]["properties"]["devices"]["items"]["properties"]
    for name, child in device.items():
        if child["type"] == "array":
            assert child["x-kubernetes-list-type"] == "atomic", name
        elif child["type"] == "object":
            assert child["x-kubernetes-map-type"] == "atomic", name


def test_every_field_is_explained_with_more_than_its_name_and_no_bare_example() -> None:
    for path, node in ours():
        if not path.endswith(("[]", ".*", ".metadata")):
            assert node.get("description", "").strip(), path
            assert "\n" not in node["description"], path
    for path, node in ours():
        text = node.get("description", "")
        if text:
            name = words(path.rpartition(".")[2])
            said = set(words(text)) - {"a", "an", "its", "the"} - {*name, *(f"{each}s" for each in name)}
            assert len(text.split()) >= 3, f"{path}: {text}"
            assert len(said) >= 2, f"{path}: {text}"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())


def test_every_pattern_is_one_that_go_understands_and_is_anchored() -> None:
    for path, node in ours():
        if "pattern" in node:
            re.compile(node["pattern"])
            assert node["pattern"].startswith("^"), path
            assert node["pattern"].endswith("$"), path
            assert "(?" not in node["pattern"], f"{path}: no look-around in RE2"


def test_in_a_spec_a_pattern_is_reported_in_words_but_for_what_may_be_a_number_too() -> None:
    """For that Kubernetes 1.32 takes no rule: it refuses the CRD for what the rule may cost."""
    patterns = {path: node for path, node in ours() if ".spec" in path and node.get("pattern") in PATTERN_HINTS}
    assert all("x-kubernetes-int-or-string" in node for node in patterns.values())
    assert all("string(self)" not in str(node.get("x-kubernetes-validations")) for _, node in ours())
    policies = schemas()["devicepolicies"]["properties"]["spec"]["properties"]
    rule, _ = policies["sharing"]["properties"]["resources"]["items"]["properties"]["name"]["x-kubernetes-validations"]
    assert rule["rule"] == f"self.matches(r'{RESOURCE_NAME_PATTERN}')"
    assert "such as nvidia.com/gpu" in rule["message"]


def test_every_rule_about_an_object_says_what_stands_there() -> None:
    """For an object the API server shows no value of its own."""
    silent = {
        rule["message"]
        for _, node in ours()
        if node.get("type") == "object"
        for rule in node.get("x-kubernetes-validations", ())
        if "messageExpression" not in rule
    }
    assert len(silent) == 1
    assert "a policy sets at least one section" in silent.pop(), "there is nothing to show"


def test_defaults_are_not_filled_into_a_section_and_are_documented_for_people() -> None:
    defaults = {path: node["default"] for path, node in every() if "default" in node}
    assert defaults == {
        "nodedevices.spec": {},
        "devicepolicies.spec.priority": 0,
        "devicepolicies.spec.mode": "Enforce",
    }
    health = schemas()["devicepolicies"]["properties"]["spec"]["properties"]["health"]["properties"]
    faults = schemas()["devicepolicies"]["properties"]["spec"]["properties"]["faults"]["properties"]
    assert health["holdDownSeconds"]["description"].endswith(" Built-in default: 300.")
    assert faults["xidNodeCondition"]["description"].endswith(" Built-in default: false.")
    assert "default" not in health["rules"]["description"], "empty goes without saying"


def test_in_status_only_closed_sets_are_enums_and_no_rule_refuses_a_report() -> None:
    enums = {re.sub(r".*\.", "", path) for path, node in every() if ".status" in path and "enum" in node}
    assert enums == {"state", "faultDomain", "status"}
    assert [path for path, node in every() if ".status" in path and "x-kubernetes-validations" in node] == []


def test_the_columns_are_the_agreed_ones_and_point_at_fields() -> None:
    columns = next(kind for kind in crds.KINDS if kind.plural == "nodedevices").columns
    assert [column.name.upper() for column in columns if not column.wide] == (
        ["MODEL", "DEVICES", "HEALTHY", "HELD", "READY", "STALE", "REASON", "AGE"]
    )
    assert [column.name.upper() for column in columns if column.wide] == ["ACTION", "WITHHELD", "IDLE"]
    for kind in crds.KINDS:
        paths = {path.removesuffix("[]") for path, _ in nodes(schemas()[kind.plural])}
        for path in [column.path for column in kind.columns] + list(kind.selectable):
            if not path.startswith(".metadata"):
                assert path.split("[?")[0].replace("[0]", "[]") in paths, path


def test_a_schema_that_the_api_server_cannot_have_is_refused_by_name() -> None:
    class Odd(Loose):
        ratio: Annotated[float, Field(gt=0)]

    class OddKind(Loose):
        metadata: ObjectMeta
        spec: Odd
        status: Odd

    with pytest.raises(crds.UnsupportedSchema, match=r"OddKind\.spec\.ratio: exclusiveMinimum"):
        crds.structural(OddKind)
