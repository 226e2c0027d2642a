"""Why ids of a resource go to no new container: the reasons of `status.resources[].withheld`."""

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
# About the device itself, so that a claim (DRA) may tolerate it. Every other reason protects another pod.
TOLERABLE: Final = frozenset({UNHEALTHY, CORDONED})

MEANINGS: Final[Mapping[str, str]] = {
    UNHEALTHY: "see the health of the device or partition",
    CORDONED: "out of service by spec.unschedulable",
    PROBE_REMOVED: "its probe is no longer configured, or it may belong to such a probe",
    SAME_PLACE: "another device is or was at this place, and a pod may hold that device",
    HELD_IN_ANOTHER_SHAPE: "pods hold the device under another resource or id, or a claim may still be given it",
    CHANGE_WAITS: "a configuration change removes it and waits for pods",
    HELPER_IN_USE: "an MPS daemon on the device starts, ends or has clients",
    HELPER_NOT_READY: "its MPS daemon is not ready",
    NO_CDI_SPECIFICATION: "no CDI specification has the driver's libraries",
    PODS_UNKNOWN: "the pods that could request its computing power are not known",
    NO_FREE_CLIENTS: "its MPS daemon serves as many containers as it can",
    SERVED_BY_ANOTHER: "another device plugin serves the resource",
}
