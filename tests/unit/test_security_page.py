"""docs/security.md lists every rule that we install, each with a reason: its tables are compared with the manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.there import there

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of a section's first table, without its head; every last cell, the reason, says something."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        re.split(r"(?<!\\) *\| *", line.strip().strip("|").strip()) for line in section.splitlines() if line[:1] == "|"
    ]
    assert all(len(row[-1]) > 10 for row in rows[2:])
    return rows[2:]


@pytest.fixture(scope="module")
def installed() -> list[dict[str, Any]]:
    files = sorted((ROOT / "manifests" / "base").rglob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_every_rule_of_every_role_is_listed_with_its_reason(installed: list[dict[str, Any]]) -> None:
    rules = [
        (
            one["metadata"]["name"].removeprefix("nodedevices-"),
            "cluster" if one["kind"] == "ClusterRole" else "its namespace",
            group or "core",
            (resource, *rule.get("resourceNames", [])),
            tuple(rule["verbs"]),
        )
        for one in installed
        if one["kind"] in {"Role", "ClusterRole"}
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    listed = [
        (account, where, group.strip("`"), tuple(code(resource)), tuple(code(verbs)[0].split()))
        for account, where, group, resource, verbs, _ in table("RBAC")
    ]
    assert sorted(listed) == sorted(rules)


def test_every_validation_of_every_admission_policy_is_listed_with_its_reason(installed: list[dict[str, Any]]) -> None:
    refusals = [
        (one["metadata"]["name"], validation.get("message") or first_literal(validation["messageExpression"]))
        for one in installed
        if one["kind"] == "ValidatingAdmissionPolicy"
        for validation in one["spec"]["validations"]
    ]
    listed = [(code(policy)[0], code(refusal)[0]) for policy, refusal, _ in table("Admission policies")]
    assert sorted(listed) == sorted(refusals)


def first_literal(expression: str) -> str:
    found = there(re.match(r"'((?:[^'\\]|\\.)*)'", expression))
    return found[1].replace("\\'", "'")


def test_every_network_rule_is_listed_with_its_reason(installed: list[dict[str, Any]]) -> None:
    rules = [
        (one["metadata"]["name"], kind, tuple(source["namespaceSelector"]["matchLabels"].items()), str(port["port"]))
        for one in installed
        if one["kind"] == "NetworkPolicy"
        for kind in one["spec"]["policyTypes"]
        for rule in one["spec"][kind.lower()]
        for source in rule["from"]
        for port in rule["ports"]
    ]
    listed = [
        (code(policy)[0], kind, tuple(tuple(each.split(": ")) for each in code(source)), code(port)[0])
        for policy, kind, source, port, _ in table("Network")
    ]
    assert sorted(listed) == sorted(rules)


# --- what components add ---------------------------------------------------------------------------------------------
ADDED = {
    "folders": r"hostPath:\s*\n?\s*\{?\s*path: (/[^\s},]*)",
    "privileges": r"(privileged: true|hostPID: true|hostNetwork: true|hostIPC: true|SYS_ADMIN|SYSLOG)",
    "configmaps": r"configMap:\s*\{?\s*name: ([a-z-]+)",
}


def added(component: Path) -> dict[str, set[str]]:
    text = "\n".join(file.read_text() for file in sorted(component.glob("*.yaml")))
    return {what: set(re.findall(pattern, text)) for what, pattern in ADDED.items()}


def test_what_each_component_adds_to_a_node_is_listed_and_nothing_else() -> None:
    components = [each for each in (ROOT / "manifests" / "components").iterdir() if each.is_dir()]
    found = {each.name: added(each) for each in components}
    listed = {
        code(name)[0]: {
            "folders": set(code(folders)),
            "privileges": set(code(privileges)),
            "configmaps": set(code(configmaps)),
        }
        for name, folders, privileges, configmaps, _ in table("Components")
    }
    assert listed == {name: what for name, what in found.items() if any(what.values())}
