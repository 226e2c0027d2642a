"""OpenSSF's Scorecard, check by check: what it asks of files is asked here; for the rest docs/releases.md has a reason.

Scorecard is not run by any test: it is a large program in Go, and part of what it asks is asked of a host. What each
check looks at is in checks/raw of ossf/scorecard v5.5.0, which was run by hand; the page has its answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz.guided import CHECKS as GUIDED
from support.repository import ROOT, tracked

PAGE = (ROOT / "docs" / "releases.md").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*"))
DOCKERFILES = [path for path in tracked() if path.name == "Dockerfile"]
COMPILED = (b"\x7fELF", b"MZ", b"PK\x03\x04", b"\xca\xfe\xba\xbe", b"\0asm", b"!<arch>", b"\xcf\xfa\xed\xfe")
SHELLS = {b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash"}
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def workflows() -> Iterator[dict[Any, Any]]:
    assert WORKFLOWS
    for path in WORKFLOWS:
        yield yaml.safe_load(path.read_text())


def steps() -> Iterator[dict[str, Any]]:
    for workflow in workflows():
        for job in workflow["jobs"].values():
            yield from job["steps"]


def heads() -> Iterator[tuple[Path, bytes]]:
    for path in tracked():
        with path.open("rb") as file:
            yield path, file.read(40)


def binary_artifacts() -> None:
    """Nothing that a compiler or an archiver made."""
    assert [path for path, head in heads() if head.startswith(COMPILED)] == []


def dangerous_workflow() -> None:
    """Nobody's branch is checked out with our rights, and no words of an event get into a shell."""
    for workflow in workflows():
        events = workflow[True]  # YAML 1.1 reads `on` so
        assert not {"pull_request_target", "workflow_run"} & set(events)
    assert [step for step in steps() if "${{" in step.get("run", "")] == []


def dependency_update_tool() -> None:
    settings = json.loads((ROOT / "renovate.json").read_text())
    managers = {"dockerfile", "github-actions", "pep621", "pip_requirements"}
    assert set(settings["enabledManagers"]) == managers
    [pattern] = settings["pip_requirements"]["managerFilePatterns"]
    locks = [path.relative_to(ROOT).as_posix() for path in (ROOT / "requirements").glob("*.lock")]
    assert locks
    assert all(re.search(pattern.strip("/"), each) for each in locks)


def fuzzing() -> None:
    """It counts `import atheris`; our property tests, which find more, it does not know."""
    assert re.search(r"^\s+import atheris\b", (ROOT / "tests/fuzz/guided.py").read_text(), re.MULTILINE)
    for name, check in GUIDED.items():
        module, _, function = check.partition(".")
        assert any((ROOT / "tests/corpus" / name).iterdir())
        assert f"\ndef {function}(" in (ROOT / f"tests/unit/fuzz/{module}.py").read_text()


def licence() -> None:
    assert "Apache License\n" in (ROOT / "LICENSE").read_text()


def pinned_dependencies() -> None:
    """Bases by digest, Python's packages by hash, actions by commit."""
    bases = set()
    for path in DOCKERFILES:
        text = path.read_text()
        [base] = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
        bases.add(base)
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    [base] = bases
    assert DIGEST.search(base)
    scripts = [path for path, head in heads() if head.partition(b"\n")[0] in SHELLS]
    assert ROOT / "tests/cluster/tools" in scripts
    for path in (*DOCKERFILES, *scripts):
        for line in path.read_text().replace("\\\n", " ").splitlines():
            for command in re.findall(r"pip (?:\S+ )*?install [^&|;]*", line):
                assert "--require-hashes" in command or re.search(r" /wheel/\*\.whl\s*$", command), f"{path}: {command}"
    for step in steps():
        assert re.search(r"@[0-9a-f]{40}$", step["uses"])


def sast() -> None:
    used = {step["uses"].partition("@")[0] for step in steps()}
    assert "github/codeql-action/analyze" in used
    assert any({"push", "pull_request"} <= set(workflow[True]) for workflow in workflows())


def security_policy() -> None:
    """A link, words besides, and more than one word of disclosure or number of days."""
    text = (ROOT / "SECURITY.md").read_text()
    links = re.findall(r"https?://[a-zA-Z0-9./?=_%:-]+", text)
    assert links
    assert len(text) > sum(map(len, links))
    assert len(re.findall(r"(?i)\b[0-9]{1,4}\b|disclos|vuln", text)) > 1


def token_permissions() -> None:
    for workflow in workflows():
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            writes = {name for name, right in job.get("permissions", {}).items() if right != "read"}
            assert writes <= {"security-events"}


HERE: dict[str, Callable[[], None]] = {
    "Binary-Artifacts": binary_artifacts,
    "Dangerous-Workflow": dangerous_workflow,
    "Dependency-Update-Tool": dependency_update_tool,
    "Fuzzing": fuzzing,
    "License": licence,
    "Pinned-Dependencies": pinned_dependencies,
    "SAST": sast,
    "Security-Policy": security_policy,
    "Token-Permissions": token_permissions,
}
ELSEWHERE = {  # what is asked of a host, of a site, or of what is published
    *("Branch-Protection", "CI-Tests", "CII-Best-Practices", "Code-Review", "Contributors", "Maintained", "Packaging"),
    *("SBOM", "Signed-Releases", "Vulnerabilities", "Webhooks"),
}


def rows() -> list[list[str]]:
    section = PAGE.partition("\n## Scorecard\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return cells[2:]


@pytest.mark.parametrize("check", HERE.values(), ids=HERE.keys())
def test_what_scorecard_asks_of_files_is_so(check: Callable[[], None]) -> None:
    check()


def test_every_check_has_a_row_with_its_result_or_the_reason_why_there_is_none() -> None:
    assert sorted(row[0] for row in rows()) == sorted((*HERE, *ELSEWHERE))
    for name, result, why in rows():
        assert len(why) > 10, name
        if name in ELSEWHERE:
            assert result == "", name
