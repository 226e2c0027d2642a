"""Whether a device that goes to no new pod is tainted in the ResourceSlice, or left out of it.

Any claim may tolerate a taint, so a taint is advice. It is right where a person may know better: an unhealthy device
can be wanted for a diagnosis. Whatever protects another pod leaves the device out; of several reasons the plan has
such a one (gates.apply). The effect is never NoExecute: that
deletes pods without their PodDisruptionBudgets; evictions are the operator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from nodedevices_api import withheld

from nodedevices_plugin.model import Blocked, Verdict

MAX_VALUE = 63  # of a label
KEYS: Final[Mapping[str, str]] = {  # by the reason, which is one of withheld.TOLERABLE
    withheld.UNHEALTHY: "nodedevices.io/unhealthy",
    withheld.CORDONED: "nodedevices.io/unschedulable",
}


class Taint(Struct, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


def is_left_out(blocked: Blocked | None) -> bool:
    """True when no claim may get the device, whatever it tolerates. A reason that is not known is such a reason."""
    return blocked is not None and blocked.reason not in withheld.TOLERABLE


def taint(blocked: Blocked | None, verdict: Verdict | None) -> Taint | None:
    """Return the taint of a device that is not left out; None: it has none. Its value is the reason of its health."""
    if blocked is None or is_left_out(blocked):
        return None
    reason = verdict.reason if verdict is not None and blocked.reason == withheld.UNHEALTHY else ""
    return Taint(key=KEYS[blocked.reason], value=reason[:MAX_VALUE])
