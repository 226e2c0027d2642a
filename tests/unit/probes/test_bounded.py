"""Reads that are bounded in time: a device that hangs keeps no other waiting, and costs one thread."""

from __future__ import annotations

import threading
import time

import pytest
from nodedevices_probe.source import BoundedReads
from support.patience import PATIENCE_SECONDS


def until(reads: BoundedReads[str], key: str, wanted: str) -> None:
    """Polls until a read of the key gives that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while reads.read({key: lambda: wanted})[key] != wanted:
        assert time.monotonic() < deadline


def test_each_key_has_what_its_read_returns_or_raises() -> None:
    reads = BoundedReads[str](seconds=PATIENCE_SECONDS)
    assert reads.read({"a": lambda: "1", "b": lambda: "2"}) == {"a": "1", "b": "2"}
    assert reads.read({}) == {}

    def broken() -> str:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        BoundedReads[str](seconds=PATIENCE_SECONDS).read({"a": broken})


def test_one_that_hangs_is_none_is_not_read_again_and_what_it_returns_at_last_is_dropped() -> None:
    reads, released, begun = BoundedReads[str](seconds=0.2), threading.Event(), list[int]()

    def hang() -> str:
        begun.append(1)
        released.wait(PATIENCE_SECONDS)
        return "old"

    assert reads.read({"bad": hang})["bad"] is None
    assert reads.read({"bad": hang})["bad"] is None
    assert len(begun) == 1
    until(reads, "good", "1")
    released.set()
    until(reads, "bad", "new")
