r"""The values that pass between the agent's stages. Frozen; no behaviour beyond what the names mean.

    probe line -> Inventory -> {device id: Verdict} -> Plan -> kubelet
                       \            |               |
                        `------------+--- holders ---+--> report -> publisher

Each stage takes the latest values and makes its own. Nothing here imports grpc, kubernetes, kopf or pynvml.
"""

from __future__ import annotations

from nodedevices_plugin.model.configuration import Refused, Unmatched, WaitingPod
from nodedevices_plugin.model.health import CONFIRM, Cordon, Fault, HealthState, Notice, Usual, Verdict, with_each_fault
from nodedevices_plugin.model.history import Occurrences, Period, Shown
from nodedevices_plugin.model.holders import (
    CoresHeld,
    Given,
    Holder,
    HoldersState,
    Holdings,
    Offer,
    RecentAllocate,
    held_key,
    tenure_key,
)
from nodedevices_plugin.model.inventory import Inventory, InventoryDevice, Unit, devices_by_id, facts_by_id, numbered
from nodedevices_plugin.model.most_seen import MostSeen
from nodedevices_plugin.model.plan import (
    AllocationError,
    Blocked,
    ContainerEdits,
    DeviceNode,
    Grant,
    ListedAs,
    Mount,
    OfferedResource,
    Plan,
    PlanError,
    SchedulableId,
)
from nodedevices_plugin.model.pods import NodePod, NodePods, PodContainer
from nodedevices_plugin.model.registration import Registration, RegistrationState, served_by_others
from nodedevices_plugin.model.sharing import NOT_SHARED, MemoryShares, SharingFacts
from nodedevices_plugin.model.use import DeviceUse, HeldSeconds, Tenure, Uses

__all__ = [
    "CONFIRM",
    "NOT_SHARED",
    "AllocationError",
    "Blocked",
    "ContainerEdits",
    "Cordon",
    "CoresHeld",
    "DeviceNode",
    "DeviceUse",
    "Fault",
    "Given",
    "Grant",
    "HealthState",
    "HeldSeconds",
    "Holder",
    "HoldersState",
    "Holdings",
    "Inventory",
    "InventoryDevice",
    "ListedAs",
    "MemoryShares",
    "MostSeen",
    "Mount",
    "NodePod",
    "NodePods",
    "Notice",
    "Occurrences",
    "Offer",
    "OfferedResource",
    "Period",
    "Plan",
    "PlanError",
    "PodContainer",
    "RecentAllocate",
    "Refused",
    "Registration",
    "RegistrationState",
    "SchedulableId",
    "SharingFacts",
    "Shown",
    "Tenure",
    "Unit",
    "Unmatched",
    "Uses",
    "Usual",
    "Verdict",
    "WaitingPod",
    "devices_by_id",
    "facts_by_id",
    "held_key",
    "numbered",
    "served_by_others",
    "tenure_key",
    "with_each_fault",
]
