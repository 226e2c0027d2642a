"""The file between agent and MPS runner: read back as written, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from nodedevices_plugin.mps.records import MAX_BYTES, File, RecordError, read, text
from nodedevices_plugin.sharing.mps import Gpu, MpsDaemon
from support.cases import cases
from support.fuzzing import scaled

GPUS = st.lists(
    st.builds(
        Gpu,
        id=st.from_regex(r"GPU-[0-9a-f]{8}", fullmatch=True),
        index=st.integers(0, 63),
        limit_mib=st.integers(0, 1 << 20),
    ),
    max_size=16,
).map(tuple)
DAEMONS = st.lists(
    st.builds(
        MpsDaemon,
        resource=st.from_regex(r"nvidia\.com/[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True),
        percentage=st.integers(1, 50),
        gpus=GPUS,
        waits=st.booleans(),
    ),
    unique_by=lambda each: each.resource,
    max_size=8,
).map(tuple)


@settings(max_examples=scaled(100, share=6))
@given(DAEMONS)
def test_what_is_written_is_read_back(daemons: tuple[MpsDaemon, ...]) -> None:
    assert read(text(daemons).encode(), File[MpsDaemon]) == daemons


def entry(**changed: Any) -> dict[str, Any]:
    return {"resource": "nvidia.com/gpu", "percentage": 25, "gpus": [{"id": "GPU-1", "index": 0}], **changed}


@cases(
    ("daemons", "says"),
    ([entry(resource="nvidia.com/../../etc")], "resource"),
    ([entry(resource="../gpu")], "resource"),
    ([entry(resource="nvidia.com/..")], "resource"),
    ([entry(resource="/gpu")], "resource"),
    ([entry(resource="shm/gpu")], r"resource: .*inside the clients' /dev/shm; give another domain than shm"),
    ([entry(resource="nvidia.com/gpu\n")], "resource"),
    ([entry(gpus=[{"id": "--reset", "index": 0}])], "id"),
    ([entry(gpus=[{"id": "GPU-1; rm", "index": 0}])], "id"),
    ([entry(gpus=[{"id": "GPU-1", "index": -1}])], "index"),
    ([entry(percentage=0)], "percentage"),
    ([entry(percentage="25")], "percentage"),
    ([entry(command="quit")], "command"),
    ([entry(waits="yes")], "waits"),
    ([entry(), entry()], "listed twice"),
    ([entry()] * 40, "daemons"),
    ("all", "daemons"),
)
def test_what_is_none_of_ours_is_refused_by_its_place(daemons: object, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        read(json.dumps({"version": 1, "daemons": daemons}).encode(), File[MpsDaemon])


@cases("raw", b"", b"{", b"[]", b"\xff", b'{"version": 2, "daemons": []}', b" " * (MAX_BYTES + 1))
def test_other_files_are_refused(raw: bytes) -> None:
    with pytest.raises(RecordError):
        read(raw, File[MpsDaemon])
