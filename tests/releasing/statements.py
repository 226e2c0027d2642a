"""What is said about a release: OpenVEX, an in-toto statement with SLSA's provenance, SECURITY-INSIGHTS.yml.

Nothing here is signed: docs/releases.md has the commands by which a person does that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import yaml
from releasing.locks import OURS, Package

IDENTITY = "https://nodedevices.io"  # a name in the project's own API group; nothing is served there
BUILD_TYPE = f"{IDENTITY}/build/make-release@v1"
BUILDER = f"{IDENTITY}/build/by-hand"
INSIGHTS = "2.2.0"  # version of its schema; before it, `policy` was `security-policy`
STATUSES = ("not_affected", "affected", "fixed", "under_investigation")


def vex(statements: Sequence[Mapping[str, str]], packages: Sequence[Package], version: str, epoch: int) -> str:
    versions = {each.name: each for each in packages}
    shown = []
    for each in statements:
        if each["package"] not in versions:
            raise ValueError(
                f"requirements/vex.toml: {each['vulnerability']}: {each['package']} is in no lock of an image"
            )
        if each["status"] not in STATUSES:
            raise ValueError(f"requirements/vex.toml: status {each['status']}: give one of {', '.join(STATUSES)}")
        part = {"@id": versions[each["package"]].purl}
        statement: dict[str, Any] = {
            "vulnerability": {"name": each["vulnerability"]},
            "products": [{"@id": f"pkg:pypi/{OURS}@{version}", "subcomponents": [part]}],
            "status": each["status"],
        }
        named = {"justification": "justification", "impact": "impact_statement", "action": "action_statement"}
        shown.append(statement | {name: each[key] for key, name in named.items() if key in each})
    document = {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"{IDENTITY}/vex/{version}",
        "author": "NodeDevices",
        "timestamp": stamp(epoch),
        "version": 1,
        "statements": shown,
    }
    return written(document)


def provenance(subjects: Mapping[str, bytes], inputs: Mapping[str, bytes], *, version: str, commit: str) -> str:
    """`inputs`: locks and what else the commit does not pin by itself."""

    def digests(files: Mapping[str, bytes], key: str) -> list[dict[str, Any]]:
        return [{key: name, "digest": {"sha256": sha256(data)}} for name, data in sorted(files.items())]

    return written(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": digests(subjects, "name"),
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {"target": "make release", "version": version},
                    "resolvedDependencies": [
                        {"name": "commit", "digest": {"gitCommit": commit}},
                        *digests(inputs, "name"),
                    ],
                },
                "runDetails": {"builder": {"id": BUILDER}},
            },
        }
    )


def insights(source: str, epoch: int) -> str:
    """By OpenSSF's Security Insights (tests/unit/test_security_insights.py). `source`: address of the repository's
    files."""
    source = source.rstrip("/")
    day = stamp(epoch)[:10]
    people = [{"name": "NodeDevices maintainers", "primary": True}]
    return yaml.safe_dump(
        {
            "header": {
                "schema-version": INSIGHTS,
                "last-updated": day,
                "last-reviewed": day,
                "url": f"{source}/SECURITY-INSIGHTS.yml",
            },
            "project": {
                "name": "NodeDevices",
                "administrators": people,
                "repositories": [{"name": OURS, "url": source, "comment": "All of the project."}],
                "vulnerability-reporting": {
                    "reports-accepted": True,
                    "bug-bounty-available": False,
                    "policy": f"{source}/SECURITY.md",
                },
                "documentation": {
                    "quickstart-guide": f"{source}/README.md",
                    "release-process": f"{source}/docs/releases.md",
                    "signature-verification": f"{source}/docs/releases.md",
                },
            },
            "repository": {
                "url": source,
                "status": "active",
                "accepts-change-request": True,
                "accepts-automated-change-request": False,
                "core-team": people,
                "documentation": {
                    "contributing-guide": f"{source}/CONTRIBUTING.md",
                    "dependency-management-policy": f"{source}/docs/dependencies.md",
                    "security-policy": f"{source}/SECURITY.md",
                },
                "license": {"url": f"{source}/LICENSE", "expression": "Apache-2.0"},
                "release": {
                    "automated-pipeline": False,
                    "distribution-points": [{"uri": source, "comment": "Sources."}],
                    "changelog": f"{source}/CHANGELOG.md",
                },
                "security": {
                    "assessments": {
                        "self": {"comment": f"Threat model and every permission: {source}/docs/security.md"}
                    }
                },
            },
        },
        sort_keys=False,
    )


def written(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def stamp(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
