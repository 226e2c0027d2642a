"""What our parts requested of the API server, by its audit log, beside what their roles allow.

Only what our programs requested counts: tests take tokens of service accounts too, to be refused, and say so by another
User-Agent. A request is read from the moment that its answer began, so that a watch counts while it is open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUR_PROGRAMS = ("nodedevices-agent/", "nodedevices-operator/", "kopf/")  # their User-Agents
FORBIDDEN = 403
# Everybody who is authenticated has it: an API server that does not find it has just started and read no role yet.
NO_ROLE_READ = 'clusterrole.rbac.authorization.k8s.io "system:basic-user" not found'

Right = tuple[str, str, str]  # API group, resource with subresource, verb


@dataclass(frozen=True, slots=True)
class Request:
    account: str  # NAMESPACE:NAME
    right: Right | None  # None: no resource, such as /version
    code: int
    allowed: bool
    text: str  # for people

    @property
    def refused(self) -> bool:
        """By RBAC as it is written, or by an admission policy."""
        return (not self.allowed or self.code == FORBIDDEN) and NO_ROLE_READ not in self.text

    @property
    def rights(self) -> set[Right]:
        """Server-side apply of an object that is not there needs `create` beside `patch`."""
        if self.right is None:
            return set()
        group, resource, verb = self.right
        return {self.right, (group, resource, "create")} if verb == "patch" and self.code == 201 else {self.right}


def requests(log: Path, *, after: int = 0) -> list[Request]:
    """Every request of our programs from that byte of the log on."""
    with log.open("rb") as lines:
        lines.seek(after)
        found = [_read(json.loads(line)) for line in lines if line.endswith(b"\n")]
    return [each for each in found if each is not None]


def end(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _read(event: Mapping[str, Any]) -> Request | None:
    agent = str(event.get("userAgent", ""))
    if not agent.startswith(OUR_PROGRAMS):
        return None
    about = event.get("objectRef") or {}
    right = None
    if about.get("resource"):
        resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
        right = (about.get("apiGroup", ""), resource, event["verb"])
    status, notes = event.get("responseStatus") or {}, event.get("annotations") or {}
    account = event["user"]["username"].removeprefix("system:serviceaccount:")
    said = (
        f"{account} ({agent}) {event['verb']} {event['requestURI']}: {status.get('code')} {status.get('message', '')}"
    )
    return Request(
        account=account,
        right=right,
        code=status.get("code", 0),
        allowed=notes.get("authorization.k8s.io/decision") == "allow",
        text=f"{said} {notes.get('authorization.k8s.io/reason', '')}".strip(),
    )


def granted(roles: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Everything that the rules of these roles allow."""
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(made: Iterable[Request], account: str) -> set[Right]:
    return {right for each in made if each.account == account and not each.refused for right in each.rights}
