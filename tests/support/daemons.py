"""What MPS daemons say, in short."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_plugin.sharing.daemons import READY, DaemonState, DaemonStatus, MpsFacts
from nodedevices_plugin.sharing.mps import DaemonKey


def answers(said: Mapping[DaemonKey, str]) -> dict[DaemonKey, DaemonStatus]:
    """By MpsDaemon.key, in words: "" is ready, `is being started` is starting, all else is wrong."""
    return {key: _status(words) for key, words in said.items()}


def facts(said: Mapping[DaemonKey, str]) -> MpsFacts:
    return MpsFacts(statuses=answers(said))


def _status(words: str) -> DaemonStatus:
    if not words:
        return READY
    state = DaemonState.STARTING if words == "is being started" else DaemonState.SILENT
    return DaemonStatus(state=state, message=words)
