"""docs/gitops.md for Flux: what its CEL says of every condition that we write, by a real API server.

Flux gives an expression the object's own fields as variables. Here an admission policy does, which refuses every status
with what the expressions say of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support import gitops
from support.kubectl import Kubectl, KubectlError, wait_until

JUDGE = "gitops-health"
JUDGED = "judged"  # of either kind; no other test has an object of this name


def judge(resource: str, checks: Mapping[str, str]) -> list[dict[str, Any]]:
    """A policy and its binding. A macro names the field, as a list's only element. It is for one name alone: an API
    server applies a policy for some moments after it was deleted."""
    said = [f"'{key}=' + string([object.status].all(status, {text}))" for key, text in checks.items()]
    name = f"{JUDGE}-{resource}"
    rule = {
        "apiGroups": ["nodedevices.io"],
        "apiVersions": ["*"],
        "operations": ["*"],
        "resources": [f"{resource}/status"],
        "resourceNames": [JUDGED],
    }
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "false", "messageExpression": " + ' ' + ".join(said)}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


@pytest.fixture
def judged(kubectl: Kubectl) -> Iterator[tuple[str, ...]]:
    """The kinds whose statuses are judged, of the objects of that name."""
    checks = gitops.flux_checks()
    resources = {"DevicePolicy": "devicepolicies", "NodeDevices": "nodedevices"}
    for kind in resources:
        spec = {"nodeSelector": {}, "serving": {"mode": "Serve"}} if kind == "DevicePolicy" else {}
        about = {"apiVersion": "nodedevices.io/v1alpha1", "kind": kind, "metadata": {"name": JUDGED}}
        kubectl.apply({**about, "spec": spec})
    kubectl.apply(*(one for kind, resource in resources.items() for one in judge(resource, checks[kind])))
    yield tuple(resources)
    named = [f"{JUDGE}-{resource}" for resource in resources.values()]
    kubectl.run("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", *named)


def flux_says(kubectl: Kubectl, kind: str, status: Mapping[str, Any]) -> str:
    """Its word, in the order in which it asks; empty: the policy is not in effect yet."""
    try:
        kubectl.patch(kind.lower(), JUDGED, {"status": status}, subresource="status")
    except KubectlError as error:
        failed, current = (f"{key}=true" in error.said for key in ("failed", "current"))
        if not re.search("failed=(true|false) current=(true|false)", error.said):
            raise
        return "Failed" if failed else "Current" if current else "InProgress"
    return ""


def test_flux_says_of_every_reason_what_the_page_says(judged: tuple[str, ...], kubectl: Kubectl) -> None:
    cases = list(gitops.cases())
    for kind in judged:
        wait_until("in effect", lambda k=kind: flux_says(kubectl, k, cases[0].status))  # type: ignore[misc]
    found = {one.name: flux_says(kubectl, one.kind, one.status) for one in cases}
    assert found == {one.name: gitops.OF_FLUX[one.health] for one in cases}
