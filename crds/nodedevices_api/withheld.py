"""Why ids of a resource go to no new container: the reasons of `status.resources[].withheld`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNHEALTHY: Final = "Unhealthy"
CORDONED: Final = "Cordoned"
PROBE_REMOVED: Final = "ProbeRemoved"
SAME_PLACE: Final = "SamePlace"
HELD_IN_ANOTHER_SHAPE: Final = "HeldInAnotherShape"
CHANGE_WAITS: Final = "ChangeWaits"
HELPER_IN_USE: Final = "HelperInUse"
HELPER_NOT_READY: Final = "HelperNotReady"
NO_CDI_SPECIFICATION: Final = "NoCDISpecification"
PODS_UNKNOWN: Final = "PodsUnknown"
NO_FREE_CLIENTS: Final = "NoFreeClients"
SERVED_BY_ANOTHER: Final = "ServedByAnother"
EXCLUDED: Final = "Excluded"  # in status.summary.withheld alone: there are no ids

MEANINGS: Final[Mapping[str, str]] = {
    UNHEALTHY: "the device or partition is not fit for use; its health says why",
    CORDONED: "a person took it out of service (spec.unschedulable)",
    PROBE_REMOVED: "its probe is no longer configured, or it may be a device of such a probe",
    SAME_PLACE: "another device is or was at this place, and a pod may hold that device",
    HELD_IN_ANOTHER_SHAPE: "pods hold the device under another resource or id",
    CHANGE_WAITS: "a configuration change that waits for pods takes it away",
    HELPER_IN_USE: "an MPS daemon keeps the device: it is starting or ending, or has clients",
    HELPER_NOT_READY: "the MPS daemon that its shares need is not ready",
    NO_CDI_SPECIFICATION: "no CDI specification has the driver's libraries for it",
    PODS_UNKNOWN: "it is not known which pods could request a share of its computing power",
    NO_FREE_CLIENTS: "the device's MPS daemon serves as many containers as it can",
    SERVED_BY_ANOTHER: "another device plugin serves the resource, and decides what is allocatable",
}
