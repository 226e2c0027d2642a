"""Labels of a Node that its NodeDevices has as well: `kubectl get nodedevices -l` selects as people select Nodes.

Those by which people tell nodes apart; not what says which hardware a node has, which is many, changes, and is in the
status already, and not what says by which tool the Node was deployed. A key that another has set on the NodeDevices is
theirs, whatever its value.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nodedevices_operator.records.objects import NodeDevicesRecord

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


class ObjectLabelPlan(Struct, frozen=True):
    values: Mapping[str, str]  # the labels that shall be ours: exactly these keys
    cut: tuple[str, ...] = ()  # keys of the Node beyond the most

    def matches(self, record: NodeDevicesRecord) -> bool:
        """True when the NodeDevices shows them already, and they and no others as ours."""
        return set(self.values) == record.labels_owned and all(
            record.labels.get(key) == value for key, value in self.values.items()
        )


def plan_object_labels(labels: Mapping[str, str], record: NodeDevicesRecord) -> ObjectLabelPlan:
    """Return the Node's labels that its NodeDevices shall have. Which ones are cut depends on the Node alone."""
    wanted = [key for key in sorted(labels) if not _left_out(key)]
    values = {key: labels[key] for key in wanted[:MOST_LABELS] if _free(key, record)}
    return ObjectLabelPlan(values, tuple(wanted[MOST_LABELS:]))


def _left_out(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return bool(slash) and any(domain == each or domain.endswith(f".{each}") for each in LEFT_OUT)


def _free(key: str, record: NodeDevicesRecord) -> bool:
    """True when the key is ours, or has no owner. One that two own could be changed by neither."""
    if key in record.labels_of_others:
        return False
    return key not in record.labels or key in record.labels_owned
