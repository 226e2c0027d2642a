"""Recovery actions: their order, how they are described to people, and what proves that they were done."""

from __future__ import annotations

NO_ACTION = "None"

# `health.recoveryAction`, from the least to the most that it requires of people: the greater of two is shown.
_ORDER = (
    NO_ACTION,
    "RestartApp",
    "Inspect",
    "DrainP2P",
    "RecoverIMEXDomain",
    "ResetDevice",
    "DrainAndReset",
    "ResetBus",
    "RebootNode",
    "RebootSystem",
    "Replace",
)
_RANK = {action: rank for rank, action in enumerate(_ORDER)}

# Where a driver does not say what it requires: these are proven by the device having left and come
# back, the driver reloaded, or a new boot; everything else that requires something, by a new boot alone.
PROVEN_BY_RETURN = frozenset({"ResetDevice", "ResetBus", "DrainP2P", "DrainAndReset", "RecoverIMEXDomain", "Inspect"})

ADVICE = {
    NO_ACTION: "",
    "RestartApp": "restart the application",
    "ResetDevice": "reset the device when its pods have ended",
    "DrainP2P": "end the workloads that use peer-to-peer access to it",
    "DrainAndReset": "drain the node, then reset the device",
    "ResetBus": "reset its bus",
    "RecoverIMEXDomain": "recover its IMEX domain",
    "RebootNode": "reboot the node",
    "RebootSystem": "reboot the whole system",
    "Replace": "replace the device",
    "Inspect": "inspect the device",
}


def action_rank(action: str) -> int:
    """Return a number to compare actions by. An unknown action ranks highest; it is never taken for None."""
    return _RANK.get(action, len(_ORDER))


def needs_no_action(action: str) -> bool:
    """True when the device itself needs nothing: restarting an application does not repair it."""
    return action in {NO_ACTION, "RestartApp"}


def advice(action: str) -> str:
    return ADVICE.get(action, "reboot the whole system")
