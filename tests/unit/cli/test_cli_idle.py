"""`idle` lists what pods hold and do not use, as their agents say."""

from __future__ import annotations

import json

import pytest
from support.command_line import CommandLine, JsonObject, gpu, node
from support.recorded_api import NODE_DEVICES, RecordedApi


def unused(index: int, pod: str, word: str, since: str | None = "2026-11-21T07:00:00Z") -> JsonObject:
    made = gpu(index, pod)
    made["holders"][0] |= {"idle": word} | ({"idleSince": since} if since else {})
    return made


@pytest.fixture(autouse=True)
def fleet(api: RecordedApi) -> RecordedApi:
    api.add(
        NODE_DEVICES,
        node("n1", unused(0, "ml/train-0", "NeverUsed"), gpu(1, "ml/busy-0"), unused(2, "web/api", "Idle")),
        node("n2", unused(0, "web/shared", "Unknown", None)),
    )
    return api


def listed(kubectl: CommandLine, *arguments: str) -> list[tuple[str, str, str]]:
    assert kubectl("idle", *arguments, "-o", "json") == 0
    return [(each["pod"], each["device"], each["idle"]) for each in json.loads(kubectl.out)["items"]]


def test_what_is_held_and_not_used_is_listed_and_what_is_unknown_where_asked_for(kubectl: CommandLine) -> None:
    assert listed(kubectl, "-A") == [("train-0", "gpu-0", "NeverUsed"), ("api", "gpu-2", "Idle")]
    assert listed(kubectl, "-n", "web") == [("api", "gpu-2", "Idle")]
    assert listed(kubectl, "-n", "web", "--unknown")[-1] == ("shared", "gpu-0", "Unknown")


def test_a_table_says_for_how_long(kubectl: CommandLine) -> None:
    assert kubectl("idle", "-n", "ml") == 0
    header, row = kubectl.out.splitlines()
    assert header.split() == ["NAMESPACE", "POD", "NODE", "DEVICE", "MODEL", "IDLE", "FOR"]
    assert "NeverUsed" in row


def test_none_is_said_in_words(kubectl: CommandLine) -> None:
    kubectl("idle", "-n", "none")
    assert "No devices found in none namespace that are held and not used." in kubectl.out + kubectl.err


def test_describe_says_it_of_each_holder(kubectl: CommandLine) -> None:
    kubectl("describe", "n1/gpu-0")
    assert "IDLE-FOR" in kubectl.out
    assert "NeverUsed" in kubectl.out
    kubectl("describe", "n1/gpu-1")
    assert "IDLE" not in kubectl.out
