"""The concerns of a node, in the order in which they run; one line for each.

The order matters in five places. Configuration comes first: the others act by what it resolves. Staleness comes before
the Node's condition, which says it. Pod marks write NodeDevices.status with the outcomes of those before them (also
that an earlier NodeDevices left DeviceIdle on pods), then the pods. A pod is evicted when it has been marked: a Job's
podFailurePolicy acts on its condition. And labels to select by wait for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodedevices_operator.concerns.capacity import CapacityConcern, RetiredZerosConcern
from nodedevices_operator.concerns.conditions import (
    MaintenanceConcern,
    NodeConditionConcern,
    ProblemReportedConcern,
    StalenessConcern,
    XidConditionConcern,
)
from nodedevices_operator.concerns.configuration import ConfigurationConcern
from nodedevices_operator.concerns.consequences import EvictionsConcern, TaintConcern
from nodedevices_operator.concerns.device_events import (
    DeviceEventsConcern,
    NoticeEventsConcern,
    RejectionEventsConcern,
)
from nodedevices_operator.concerns.idle_pods import IdlePodsConcern
from nodedevices_operator.concerns.labels import LabelsConcern, ObjectLabelsConcern
from nodedevices_operator.concerns.pod_marks import PodMarksConcern
from nodedevices_operator.concerns.port import Concern, Tools

Factory = Callable[[Tools], Concern[Any]]

CONCERNS: tuple[Factory, ...] = (
    ConfigurationConcern,
    StalenessConcern,
    ProblemReportedConcern,
    MaintenanceConcern,
    CapacityConcern,
    RetiredZerosConcern,
    LabelsConcern,
    NodeConditionConcern,
    XidConditionConcern,
    TaintConcern,
    IdlePodsConcern,
    PodMarksConcern,
    EvictionsConcern,
    RejectionEventsConcern,
    DeviceEventsConcern,
    NoticeEventsConcern,
    ObjectLabelsConcern,
)
