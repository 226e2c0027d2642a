"""docs/gitops.md: its health checks, by kind, and what each has to say of the conditions that our programs write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from nodedevices_api.conditions import REASONS
from support.kustomize import ROOT

PAGE = ROOT / "docs" / "gitops.md"
BLOCK = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
HEALTHY, PROGRESSING, DEGRADED = "Healthy", "Progressing", "Degraded"  # as Argo CD calls them
OF_FLUX = {HEALTHY: "Current", PROGRESSING: "InProgress", DEGRADED: "Failed"}

Conditions = Mapping[str, tuple[str, str]]  # type -> status, reason

# A policy and a node with which all is well.
POLICY: Conditions = {
    "Accepted": ("True", "Accepted"),
    "Applied": ("True", "Applied"),
    "Conflicted": ("False", "NoConflict"),
    "RolledOut": ("True", "Done"),
    "ActionsStopped": ("False", "NotStopped"),
}
NODE: Conditions = {
    "Ready": ("True", "AgentRunning"),
    "DevicesHealthy": ("True", "AllHealthy"),
    "ConfigApplied": ("True", "Applied"),
    "HoldersKnown": ("True", "Synced"),
    "AllocatedOnce": ("True", "NoDoubleAllocation"),
    "ExpectedDevices": ("True", "AllFound"),
    "PolicyResolved": ("True", "Resolved"),
    "ActionsSynced": ("True", "InSync"),
    "Stale": ("False", "Fresh"),
}
# What one condition makes of it, by its reason or, where all reasons of a status are alike, by its status. What is not
# here makes no difference.
POLICYS_HEALTH: Mapping[str, Mapping[str, str]] = {
    "Accepted": {"False": DEGRADED},
    "Applied": {
        "Failed": DEGRADED,
        "Progressing": PROGRESSING,
        "NotAccepted": PROGRESSING,  # beside Accepted=False
        "NoNodes": HEALTHY,
        "DryRun": HEALTHY,
    },
    "Conflicted": {"True": DEGRADED},
    "RolledOut": {"Stopped": DEGRADED, "Progressing": PROGRESSING, "Paused": PROGRESSING, "Failed": PROGRESSING},
    "ActionsStopped": {"True": DEGRADED},
}
NODES_HEALTH: Mapping[str, Mapping[str, str]] = {
    "Ready": {"AgentStopped": PROGRESSING, "Unknown": PROGRESSING, "False": DEGRADED},
    "DevicesHealthy": {"Unknown": PROGRESSING, "False": DEGRADED},
    "ConfigApplied": {
        "WaitingForHolders": PROGRESSING,
        "WaitingForDaemon": PROGRESSING,
        "WaitingForKubelet": PROGRESSING,
        "Unknown": PROGRESSING,
        "False": DEGRADED,
    },
    "AllocatedOnce": {"False": DEGRADED},
    "ExpectedDevices": {"False": DEGRADED},
    "PolicyResolved": {"False": DEGRADED},
    "Stale": {"True": DEGRADED},
}


@dataclass(frozen=True)
class Case:
    """An object with these conditions, and what the checks say of it, in Argo CD's word."""

    name: str
    kind: str
    conditions: Conditions
    health: str
    observed: int = 1  # status.observedGeneration; the object's is 1

    @property
    def status(self) -> dict[str, Any]:
        listed = [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": f"about {kind}",
                "lastTransitionTime": "2026-11-23T10:00:00Z",
            }
            for kind, (status, reason) in self.conditions.items()
        ]
        return {"observedGeneration": self.observed, "conditions": listed}


def cases() -> Iterator[Case]:
    """Every reason that a condition can have, of an object with which all else is well; and more than one at once."""
    for kind, well, table in (("DevicePolicy", POLICY, POLICYS_HEALTH), ("NodeDevices", NODE, NODES_HEALTH)):
        for condition in well:
            for status, reasons in REASONS[condition].items():
                for reason in (each.format(expected=8, found=7) for each in reasons):
                    health = table.get(condition, {})
                    expected = health.get(reason) or health.get(status) or HEALTHY
                    yield Case(f"{condition}={status}/{reason}", kind, {**well, condition: (status, reason)}, expected)
    few = {name: POLICY[name] for name in ("Accepted", "Applied", "Conflicted")}
    yield Case("no roll-out, no action", "DevicePolicy", few, HEALTHY)
    others = {"ProblemReported": ("True", "NVSentinel"), "MaintenanceScheduled": ("True", "Scheduled")}
    yield Case("what others report", "NodeDevices", {**NODE, **others}, HEALTHY)
    stopped = {"Applied": ("False", "Progressing"), "RolledOut": ("False", "Stopped")}
    yield Case("stopped half way", "DevicePolicy", {**POLICY, **stopped}, DEGRADED)
    refused = {"Accepted": ("False", "Invalid"), "Applied": ("False", "NotAccepted")}
    yield Case("refused", "DevicePolicy", {**POLICY, **refused}, DEGRADED)
    both = {"ConfigApplied": ("False", "WaitingForHolders"), "DevicesHealthy": ("False", "DeviceFault")}
    yield Case("waiting, and a fault", "NodeDevices", {**NODE, **both}, DEGRADED)
    yield Case("only the agent's first", "NodeDevices", {"Ready": NODE["Ready"]}, PROGRESSING)


def blocks() -> Iterator[dict[str, Any]]:
    """The page's YAML."""
    for found in BLOCK.finditer(PAGE.read_text()):
        document = yaml.safe_load(re.sub(r"^ {4}", "", found[0], flags=re.MULTILINE))
        assert isinstance(document, dict)
        yield document


def argo_checks() -> dict[str, str]:
    """Lua, by kind."""
    [data] = [one["data"] for one in blocks() if one.get("kind") == "ConfigMap"]
    return {key.rpartition("_")[2]: text for key, text in data.items()}


def flux_checks() -> dict[str, dict[str, str]]:
    """CEL by its key (failed, current), by kind."""
    [found] = [one["spec"]["healthCheckExprs"] for one in blocks() if one.get("kind") == "Kustomization"]
    return {one["kind"]: {key: one[key] for key in ("failed", "current")} for one in found}
