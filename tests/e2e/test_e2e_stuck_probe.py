"""Probes that wait inside the kernel, where not even SIGKILL ends them, on a real kubelet.

The file that the simulated devices come from is one of support.hanging_files: what looks at it while it hangs sleeps as
in a call into a driver that does not return.
"""

from __future__ import annotations

import pytest
from support import overlay, simulated
from support.cluster import GPU
from support.hanging_files import mounted
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900, method="signal")]

AGENT = "nodedevices-agent"
FILE = "/var/lib/nodedevices/driver/devices.yaml"
KILLED_SECONDS = 150  # 45 s of silence, and a busy machine
SIGKILL_PENDING = 1 << 8


def test_s24_probes_that_nothing_can_kill_keep_the_agent_from_nothing_and_go_when_the_kernel_lets_them(
    rig: RigCluster,
) -> None:
    overlay.write(rig, rig.a, FILE, simulated.h100s())
    where = ("NODEDEVICES_SIMULATED", FILE)
    patches = [overlay.container_patch(AGENT, each, where) for each in ("agent", "probe")]
    with (
        mounted(rig.rig.node_argv(rig.b), FILE, simulated.l4s()) as driver,
        overlay.installed_with(rig, patches=patches),
        driver.answering_at_the_end(),
    ):
        rig.until("the devices are there", lambda: rig.summary(rig.b).get("healthy") == len(rig.ids(rig.b)) == 4)
        pod, ids = rig.pod("stays", rig.b, {GPU: 2}), rig.ids(rig.b)
        servers, started = rig.restarts(rig.b, "probe"), start_time(rig)
        driver.hang()
        rig.until("it says so", lambda: rig.device(rig.b, 0)["health"]["reason"] == "ProbeSilent")
        stuck = rig.until("a probe was killed in vain", lambda: unkillable(rig), KILLED_SECONDS)
        rig.pod("during", rig.b, {GPU: 1})
        assert rig.visible("during") <= ids - rig.visible("stays")
        assert (rig.ids(rig.b), rig.restarts(rig.b)) == (ids, 0)

        rig.kill(rig.b, AGENT)
        rig.until("the agent is started again beside them", lambda: rig.restarts(rig.b) == 1)
        rig.until("and reports", lambda: start_time(rig) != started)
        assert set(stuck) <= set(unkillable(rig)), "they are still there"
        rig.alive(pod)

        driver.answer()
        rig.until("all is well again", lambda: rig.summary(rig.b)["healthy"] == 4)
        rig.until("the kubelet has the same ids", lambda: rig.ids(rig.b) == ids)
        rig.until("they have ended", lambda: not unkillable(rig))
        assert (rig.restarts(rig.b), rig.restarts(rig.b, "probe")) == (1, servers)
        rig.alive(pod)
        rig.pod("after", rig.b, {GPU: 1})


def start_time(rig: RigCluster) -> str:
    return str(rig.nodedevices(rig.b)["status"]["agent"]["startTime"])


def unkillable(rig: RigCluster) -> list[int]:
    """Processes on node b that were killed and sleep uninterruptibly."""
    text = rig.shell(rig.b, "grep -H -E '^(State|SigPnd|ShdPnd):' /proc/[0-9]*/status 2> /dev/null || true")
    found: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        path, name, value = line.split(":", 2)
        found.setdefault(int(path.split("/")[2]), {})[name] = value.strip()
    return [
        pid
        for pid, each in found.items()
        if each.get("State", "").startswith("D")
        and any(int(each.get(name, "0"), 16) & SIGKILL_PENDING for name in ("SigPnd", "ShdPnd"))
    ]
