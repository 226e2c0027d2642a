"""Labels on a Node: those of its devices' vendors, and a policy's own. And the Node's labels that its NodeDevices has
as well, so that `kubectl get nodedevices -l` selects as people select Nodes.

What a vendor's labels say is its own matter (desired.vendors). The node's own labels of before stay with whom they are:
a key that shows another value and is not ours is left out and reported (the action labels: Conflict), never fought for.

A NodeDevices gets those labels by which people tell nodes apart; not what says which hardware a node has, which is
many, changes, and is in the status already, and not what says by which tool the Node was deployed. A key that another
has set on the NodeDevices is theirs, whatever its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_api.sections import Labels
from nodedevices_common.text import some

from nodedevices_operator.desired.conditions import ConditionVerdict
from nodedevices_operator.desired.vendors.registry import VENDORS, VendorLabels
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

NAMED = 5  # keys in a message


class LabelPlan(Struct, frozen=True):
    values: Mapping[str, str]  # the labels that shall be ours: exactly these keys, no others
    verdict: ConditionVerdict  # of the action


def plan_labels(
    section: Labels,
    record: NodeDevicesRecord,
    node: NodeRecord,
    *,
    now: int,
    vendors: Sequence[VendorLabels] = VENDORS,
) -> LabelPlan:
    """Return the labels of ours that the Node shall have. `now`: seconds since 1970, for timestamps."""
    described = {  # by label, of each vendor those below its own prefixes
        key: (value, vendor.timestamp)
        for vendor in (vendors if section.feature_discovery else ())
        for key, value in vendor.labels(record).items()
        if key.startswith(vendor.prefixes)
    }
    wanted = {key: value for key, (value, _) in described.items()} | dict(section.extra)
    conflicts = [
        key for key in wanted if key not in node.labels_owned and node.labels.get(key, wanted[key]) != wanted[key]
    ]
    values = {key: value for key, value in wanted.items() if key not in conflicts}
    values |= _timestamps(values, node, now, {timestamp for _, timestamp in described.values() if timestamp})
    if not conflicts:
        return LabelPlan(values, ("True", names.IN_SYNC, f"{len(values)} labels"))
    listed = some((f"{key}={node.labels[key]} (wanted: {wanted[key]})" for key in sorted(conflicts)), NAMED)
    message = f"another owner has {listed}; remove the label from the Node, or stop the program that sets it"
    return LabelPlan(values, ("False", names.CONFLICT, message))


def _timestamps(values: Mapping[str, str], node: NodeRecord, now: int, keys: Set[str]) -> dict[str, str]:
    """Return when these values became what they are, below each of the keys but those where another writer keeps
    one."""
    ours = {key: node.labels.get(key) for key in node.labels_owned if key not in keys}
    found = {}
    for key in sorted(keys):
        shown = node.labels.get(key)
        if shown is None or key in node.labels_owned:
            found[key] = shown if shown is not None and ours == dict(values) else str(now)
    return found


MOST_LABELS = 64  # of a Node; in the order of their keys

# Of hardware, of ourselves, and by which deployment tools find what is theirs (Argo CD: app.kubernetes.io/instance).
# Each with what is below it, such as gpu.intel.com. The admission policy operator-own-fields has the same.
LEFT_OUT = (
    "amd.com",
    "app.kubernetes.io",
    "feature.node.kubernetes.io",
    "intel.com",
    "nodedevices.io",
    "nvidia.com",
)


def plan_object_labels(labels: Mapping[str, str], record: NodeDevicesRecord) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the Node's labels that its NodeDevices shall have as ours: exactly these keys; and the keys beyond the
    most. Which ones are cut depends on the Node alone."""
    wanted = [key for key in sorted(labels) if not _left_out(key)]
    # A key is free that is ours, or has no owner. One that two own could be changed by neither.
    taken = record.labels_of_others | (record.labels.keys() - record.labels_owned)
    return {key: labels[key] for key in wanted[:MOST_LABELS] if key not in taken}, tuple(wanted[MOST_LABELS:])


def _left_out(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return bool(slash) and any(domain == excluded or domain.endswith(f".{excluded}") for excluded in LEFT_OUT)
