"""Labels on a Node: those of its devices' vendors, and a policy's own.

What a vendor's labels say is its own matter (desired.vendors). The node's own labels of before stay with whom they are:
a key that shows another value and is not ours is left out and reported (LabelsSynced=False/Conflict), never fought for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_api.sections import Labels
from nodedevices_common.text import some

from nodedevices_operator.desired.vendors.port import VendorLabels
from nodedevices_operator.desired.vendors.registry import VENDORS
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

NAMED = 5  # keys in a message


class LabelPlan(Struct, frozen=True):
    """`values` are the labels that shall be ours: exactly these keys, no others."""

    values: Mapping[str, str]
    status: str  # of LabelsSynced
    reason: str
    message: str

    def matches(self, node: NodeRecord) -> bool:
        """True when the Node shows them already, and as ours."""
        return set(self.values) == node.labels_owned and all(
            node.labels.get(key) == value for key, value in self.values.items()
        )


def plan_labels(
    section: Labels,
    record: NodeDevicesRecord,
    node: NodeRecord,
    *,
    now: int,
    vendors: Sequence[VendorLabels] = VENDORS,
) -> LabelPlan:
    """Return the labels of ours that the Node shall have. `now`: seconds since 1970, for timestamps."""
    sources = vendors if section.feature_discovery else ()
    described = [(vendor, labels) for vendor in sources if (labels := _labels(vendor, record))]
    wanted = {key: value for _, labels in described for key, value in labels.items()} | dict(section.extra)
    conflicts = [
        key for key in wanted if key not in node.labels_owned and node.labels.get(key, wanted[key]) != wanted[key]
    ]
    values = {key: value for key, value in wanted.items() if key not in conflicts}
    values |= _timestamps(values, node, now, {vendor.timestamp for vendor, _ in described if vendor.timestamp})
    if not conflicts:
        return LabelPlan(values, "True", names.IN_SYNC, f"{len(values)} labels")
    listed = some((f"{key}={node.labels[key]} (wanted: {wanted[key]})" for key in sorted(conflicts)), NAMED)
    message = f"another owner has {listed}; remove the label from the Node, or from whatever sets it"
    return LabelPlan(values, "False", names.CONFLICT, message)


def _labels(vendor: VendorLabels, record: NodeDevicesRecord) -> dict[str, str]:
    """Return the labels of one vendor, below its own prefixes."""
    prefixes = tuple(vendor.prefixes)
    return {key: value for key, value in vendor.labels(record).items() if key.startswith(prefixes)}


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
