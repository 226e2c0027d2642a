"""What helpers of sharing modes say, in short."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from nodedevices_plugin.sharing.base import READY, HelperAnswer, HelperFacts, HelperState


def answers(said: Mapping[Any, str]) -> dict[Hashable, HelperAnswer]:
    """By Helper.key, in words: "" is ready, `is being started` is starting, all else is wrong."""
    return {key: _answer(words) for key, words in said.items()}


def facts(said: Mapping[Any, str]) -> HelperFacts:
    return HelperFacts(answers=answers(said))


def _answer(words: str) -> HelperAnswer:
    if not words:
        return READY
    state = HelperState.STARTING if words == "is being started" else HelperState.SILENT
    return HelperAnswer(state=state, message=words)
