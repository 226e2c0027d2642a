"""docs/sharing-memory.md, "Try it": its shell blocks on node b with one L4, and what the page says that they print."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodedevices_common.confirming import CONFIRM
from support import installing
from support.cluster_provider import ClusterProvider
from support.fleet import stamp
from support.pagesteps import Page
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.long]

STEP = "Try it: three pods on one L4"
PODS = ("first", "second", "third", "fourth")


@pytest.fixture
def one_l4(rig: RigCluster) -> Iterator[RigCluster]:
    """Node b has one L4, and knows of no other."""
    own = set(rig.devices(rig.b))
    [first] = [each["id"] for each in rig.devices(rig.b).values() if each["index"] == 0]
    removed = ",".join(f"{each}=removed@{stamp()}" for each in sorted(own - {first}))
    rig.hardware(rig.b, "profile: l4 x 1")
    rig.until("the others are missing", lambda: rig.summary(rig.b).get("unhealthy") == len(own) - 1)
    rig.kubectl.patch("nodedevices", rig.b, {"metadata": {"annotations": {CONFIRM: removed}}})
    rig.until("one is left", lambda: set(rig.devices(rig.b)) == {first})
    try:
        yield rig
    finally:
        rig.kubectl.delete("pod", *PODS, namespace="default")


DIFFERS = {
    r"\s+": " ",  # how wide a column is
    r"\b(?:[0-9]+[dhms])+\b": "AGE",
    # By release: what the scheduler says after the reason, and what kubectl says after what it deleted.
    r"(Insufficient nodedevices\.io/gpu-memory)\..*": r"\1.",
    r"(deleted) from default namespace$": r"\1",
    r" $": "",
}


def lines(printed: str) -> list[str]:
    """Without what differs from run to run, and from release to release of Kubernetes."""
    found = printed.splitlines()
    for pattern, same in DIFFERS.items():
        found = [re.sub(pattern, same, line) for line in found]
    return found


def test_a_reader_sees_who_has_how_much_of_one_l4_and_why_a_fourth_pod_waits(
    one_l4: RigCluster, provider: ClusterProvider, tmp_path: Path
) -> None:
    page = Page.read(installing.ROOT / "docs" / "sharing-memory.md")
    environment = {
        **provider.kubectl.environment(),
        "PATH": f"{Path(provider.kubectl.binary).parent}:{os.environ['PATH']}",
        "NODE": one_l4.b,
        "IMAGE": one_l4.image,
    }
    printed = page.run(STEP, folder=tmp_path, environment=environment)
    [device] = one_l4.devices(one_l4.b)
    # The page is about n1, whose first GPU has another id.
    expected = re.sub(r"\bn1\b", one_l4.b, re.sub(r"GPU-[0-9a-f-]{36}", device, page.outputs[STEP]))
    found = lines(printed)
    assert lines(expected) == found[: len(lines(expected))]
