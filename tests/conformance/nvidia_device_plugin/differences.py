"""Where we differ from NVIDIA's plugin on purpose. docs/compatibility.md says the same to users.

A case listed here must differ in exactly these parts, so that the table cannot rot. Those that the plan for this
project requires are not counted; of the others there may be one in ten cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REFUSED = (
    "Allocate of a device that has just failed is refused, with a text that tells the pod's owner what to do: NVIDIA's "
    "plugin hands it out"
)
ONE_RULE = "a name may be what Kubernetes takes, in a file as in a policy; NVIDIA's plugin is stricter with its file"


@dataclass(frozen=True)
class Difference:
    parts: frozenset[str]
    reason: str
    asked_for: bool  # by what this project promises, not chosen by us


def _asked_for(reason: str, *parts: str) -> Difference:
    return Difference(parts=frozenset(parts), reason=reason, asked_for=True)


def _chosen(reason: str, *parts: str) -> Difference:
    return Difference(parts=frozenset(parts), reason=reason, asked_for=False)


DIFFERENCES: Mapping[str, Difference] = {
    "xid-79": _asked_for(REFUSED, "allocate-bad"),
    "xid-79-only-79": _asked_for(f"{REFUSED}. It hears of no XID in this case; here DP_ENABLE works", "allocate-bad"),
    "lost-later": _asked_for(REFUSED, "allocate-lost"),
    "resources-renamed": _asked_for("names by pattern work; NVIDIA's plugin parses and ignores them", "resources"),
    "ts-custom-rename": _asked_for("rename works; NVIDIA's plugin parses and ignores it", "resources"),
    "ts-devices-uuids": _asked_for(
        "sharing of some devices works; NVIDIA's plugin parses and ignores `devices`", "resources", "replica", "plain"
    ),
    "ts-name-too-long": _asked_for(ONE_RULE, "outcome"),
    "ts-name-bad-chars": _asked_for(ONE_RULE, "outcome"),
    "xid-94-one-mig": _chosen(
        "a contained memory error (XID 94) ends the application that met it, and NVIDIA's own catalogue requires its "
        "restart and no more: the device stays in service. health.rules can take it out",
        "after_watch",
    ),
}
