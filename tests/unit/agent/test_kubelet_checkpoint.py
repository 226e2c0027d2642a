"""The kubelet's checkpoint as we read it: what containers have, or an error; never an empty answer for a bad file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nodedevices_common.files import identity
from nodedevices_plugin.kubelet.checkpoint import CheckpointEntry, CheckpointError, CheckpointFile, parse
from support.cases import cases

# Written by a kubelet 1.36.3, with the answers and the checksum cut out.
RECORDED = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": "6f0f4c0e-5d0b-4f5e-9d0c-6d4fbd0a9a11",
                "ContainerName": "main",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"0": ["GPU-1"], "1": ["GPU-0"]},
                "AllocResp": "",
            },
            {
                "PodUID": "0a9a1f0f-5d0b-4f5e-9d0c-6d4fbd0a9a12",
                "ContainerName": "main",
                "ResourceName": "example.com/nic",
                "DeviceIDs": {"-1": ["nic-0"]},
                "AllocResp": "",
            },
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-0", "GPU-1", "GPU-2"]},
    },
    "Checksum": 0,
}


def test_ids_are_read_by_container_over_all_numa_nodes_and_without_entries_no_container_has_any() -> None:
    assert parse(json.dumps(RECORDED).encode()) == (
        CheckpointEntry("0a9a1f0f-5d0b-4f5e-9d0c-6d4fbd0a9a12", "main", "example.com/nic", ("nic-0",)),
        CheckpointEntry("6f0f4c0e-5d0b-4f5e-9d0c-6d4fbd0a9a11", "main", "nvidia.com/gpu", ("GPU-0", "GPU-1")),
    )
    assert parse(b'{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1}') == ()


@cases(
    "raw",
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"Data": {}}',
    b'{"Data": {"PodDeviceEntries": [{"ResourceName": "a/b"}]}}',
    b'{"Data": {"PodDeviceEntries": [{"ResourceName": "a/b", "DeviceIDs": {"0": ["GPU-0"]}}]}}',
    b'{"Data": {"PodDeviceEntries": [{"ResourceName": 7, "DeviceIDs": {}}]}}',
    b'{"Data": {"PodDeviceEntries": [{"ResourceName": "a/b", "DeviceIDs": ["GPU-0"]}]}}',
    b'{"Data": {"PodDeviceEntries": [{"ResourceName": "a/b", "DeviceIDs": {"0": [1]}}]}}',
    b'{"Data": {"PodDeviceEntries": {}}}',
    b'{"Data": {"PodDeviceEntries": 0}}',
    b'{"Data": {"PodDeviceEntries": ""}}',
    b'{"Data": {"PodDeviceEntries": [{"PodUID": "u", "ContainerName": "c", "ResourceName": "a", "DeviceIDs": 0}]}}',
    *(
        b'{"Data": {"PodDeviceEntries": [{"PodUID": "u", "ContainerName": "c", "ResourceName": "a/b",'
        b' "DeviceIDs": {"0": ' + ids + b"}}]}}"
        for ids in (b'"GPU-0"', b'{"GPU-0": true}', b"false", b'["\\ud800"]')
    ),
    b"[" * 100_000,
)
def test_what_is_not_a_checkpoint_is_an_error_and_never_nobody(raw: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse(raw)


def test_a_file_that_is_not_there_is_none_and_one_that_cannot_be_read_an_error(tmp_path: Path) -> None:
    assert CheckpointFile(tmp_path / "missing").read() is None
    with pytest.raises(CheckpointError, match="Is a directory"):
        CheckpointFile(tmp_path).read()


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path)
    assert (file.read(), identity(path)) == (None, None)
    path.write_text(json.dumps(RECORDED))
    first = identity(path)
    assert len(file.read() or ()) == 2
    new = tmp_path / "new"
    new.write_text('{"Data": {"PodDeviceEntries": null}}')
    new.replace(path)
    assert identity(path) != first
    assert file.read() == ()
