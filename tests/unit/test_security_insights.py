"""SECURITY-INSIGHTS.yml of a release, beside the schema of the version that it states.

The schema is OpenSSF's (ossf/security-insights, tag v2.2.0, spec/schema.cue, read on 23 November 2026): which keys
there are, which may be absent (`?`), and what a value looks like. Nothing else may be there.
On that day `cue vet -c -d '#SecurityInsights'` with the real schema accepted the file, and refused a misspelt key.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from releasing import statements

ROOT = Path(__file__).parents[2]
FORMS = {
    "text": r"(?s).*",
    "url": r"https?://\S+",
    "email": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
    "date": r"\d{4}-\d\d-\d\d",
    "version": r"[1-9]+\.[0-9]+\.[0-9]+",
    "status": "active|abandoned|concept|inactive|moved|suspended|unsupported|WIP",
    "tool": "fuzzing|container|secret|SCA|SAST|other",
}
SCHEMA = yaml.safe_load("""
header:
  last-reviewed: date
  last-updated: date
  schema-version: version
  url: url
  "comment?": text
  "project-si-source?": url
"project?":
  name: text
  "homepage?": url
  "roadmap?": url
  "funding?": url
  "steward?": &link {uri: text, comment: text}
  administrators: [&contact {name: text, primary: bool, "affiliation?": text, "email?": email, "social?": text}]
  repositories: [{name: text, comment: text, url: url}]
  vulnerability-reporting:
    reports-accepted: bool
    bug-bounty-available: bool
    "bug-bounty-program?": url
    "contact?": *contact
    "comment?": text
    "policy?": url
    "pgp-key?": text
    "in-scope?": [text]
    "out-of-scope?": [text]
  "documentation?":
    "design?": url
    "detailed-guide?": url
    "code-of-conduct?": url
    "quickstart-guide?": url
    "release-process?": url
    "support-policy?": url
    "signature-verification?": url
"repository?":
  status: status
  url: url
  accepts-change-request: bool
  accepts-automated-change-request: bool
  "bug-fixes-only?": bool
  "no-third-party-packages?": bool
  core-team: [*contact]
  license: &license {url: url, expression: text}
  security:
    assessments:
      self: &assessment {comment: text, "name?": text, "evidence?": url, "date?": date}
      "third-party?": [*assessment]
    "champions?": [*contact]
    "tools?":
      - name: text
        type: tool
        "version?": text
        "comment?": text
        rulesets: [text]
        integration: {adhoc: bool, ci: bool, release: bool}
        results:
          "adhoc?": &attestation {name: text, location: url, predicate-uri: text, "comment?": text}
          "ci?": *attestation
          "release?": *attestation
  "documentation?":
    "contributing-guide?": url
    "dependency-management-policy?": url
    "governance?": url
    "review-policy?": url
    "security-policy?": url
  "release?":
    automated-pipeline: bool
    distribution-points: [*link]
    "changelog?": url
    "license?": *license
    "attestations?": [*attestation]
""")
SOURCE = "https://example.com/nodedevices"


def problems(value: Any, wanted: Any, at: str = "") -> Iterator[str]:
    """What does not fit, with its place."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            yield f"{at}: not an object"
            return
        known = {key.removesuffix("?"): key for key in wanted}
        yield from (f"{at}.{key}: no such key" for key in value.keys() - known.keys())
        yield from (f"{at}.{key}: missing" for key in wanted if not key.endswith("?") and key not in value)
        for key in value.keys() & known.keys():
            yield from problems(value[key], wanted[known[key]], f"{at}.{key}")
    elif isinstance(wanted, list):
        if not isinstance(value, list) or not value:
            yield f"{at}: not a list with something in it"
            return
        for number, each in enumerate(value):
            yield from problems(each, wanted[0], f"{at}[{number}]")
    elif wanted == "bool":
        if not isinstance(value, bool):
            yield f"{at}: {value!r} is not true or false"
    elif not isinstance(value, str) or not re.fullmatch(FORMS[wanted], value):
        yield f"{at}: {value!r} is not allowed"


@pytest.fixture(scope="module")
def insights() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(statements.insights(f"{SOURCE}/", 0))
    return found


def test_security_insights_fit_the_schema_of_the_version_that_they_state(insights: dict[str, Any]) -> None:
    assert insights["header"]["schema-version"] == statements.INSIGHTS == "2.2.0", "another one has another schema"
    assert list(problems(insights, SCHEMA)) == []


def test_every_file_of_ours_that_security_insights_name_is_there(insights: dict[str, Any]) -> None:
    named = set(re.findall(rf"{SOURCE}/(\S+?\.md|LICENSE)\b", yaml.safe_dump(insights, width=1000)))
    assert {"SECURITY.md", "LICENSE", "docs/security.md"} <= named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_day_of_security_insights_is_the_commits(insights: dict[str, Any]) -> None:
    assert insights["header"]["last-updated"] == str(date(1970, 1, 1))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("project", "vulnerability-reporting", "security-policy"), SOURCE, "security-policy: no such key"),
        (("repository", "status"), "done", "repository.status: 'done' is not allowed"),
        (("repository", "core-team"), [], "repository.core-team: not a list with something in it"),
        (("header", "url"), "docs", "header.url: 'docs' is not allowed"),
        (("project", "vulnerability-reporting", "reports-accepted"), "yes", "'yes' is not true or false"),
    ],
)
def test_what_the_schema_does_not_have_is_found(
    insights: dict[str, Any], place: tuple[str, ...], value: Any, said: str
) -> None:
    changed = copy.deepcopy(insights)
    at = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    [found] = problems(changed, SCHEMA)
    assert said in found
