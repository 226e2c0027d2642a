"""ResourceSlices of a node on the real cluster: from a fault to the taint, and from slices that are deleted, as each
start of a kubelet deletes them, to slices that are back; how long a node is without the driver while its agent's pod is
replaced, in which no claim can be prepared; and the memory that DRA takes of the agent.

Times are from the moment before the new file or the deletion is sent until the changed object arrives here. The floor
is a patch of the same slice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from support import simulated
from support.claims_on_rig import DOMAIN, Json, published, served_by_dra
from support.cluster import SYSTEM
from support.driver_root import installed_with_root
from support.kubectl import Watch
from support.rig_cluster import RigCluster

from benchmarks.rig import on_the_rig
from benchmarks.table import Row, percentile

ROUNDS = 10
PAUSE_SECONDS = 2.0
TARGETS = {"fault -> taint stored": 2.0, "slice deleted -> back": 5.0}
MEMORY_TARGET_MIB = 6.0
GAP_TARGET_SECONDS = 1.5
# Seconds from the end of the driver's socket to the kubelet's way to the next one.
GAP = """
driver=/var/lib/kubelet/plugins/nodedevices.io/dra.sock
registry=/var/lib/kubelet/plugins_registry/nodedevices.io-reg.sock
while [ -S $driver ]; do sleep 0.01; done
began=$(date +%s%N)
until [ -S $registry ]; do sleep 0.01; done
echo $(( $(date +%s%N) - began ))
"""


def measure() -> list[Row]:
    with on_the_rig() as rig, installed_with_root(rig, "cdi", "dra"):
        rig.reset()
        before = _resident(rig)
        with served_by_dra(rig):
            rig.until("all GPUs are in slices", lambda: len(published(rig)) == 4)
            found = _rounds(rig)
            more = _resident(rig) - before
            gaps = list(_gaps(rig))
    memory = Row(what="agent, resident, more by DRA", measured=more, unit="MiB", target=MEMORY_TARGET_MIB)
    return [*_rows(found), *gaps, memory]


def _gaps(rig: RigCluster) -> Iterator[Row]:
    """A container that ended is started again by the kubelet, a pod is made anew by the DaemonSet."""

    def end() -> None:
        rig.shell(rig.b, f"kill -TERM {min(rig.processes(rig.b, 'nodedevices-agent'))}")

    def replace() -> None:
        rig.kubectl.delete("pods", rig.agent(rig.b)["metadata"]["name"], namespace=SYSTEM, wait=False)

    for what, action, target in (("container ended", end, GAP_TARGET_SECONDS), ("pod replaced", replace, None)):
        with ThreadPoolExecutor(1) as beside:
            measured = beside.submit(rig.shell, rig.b, GAP)
            time.sleep(PAUSE_SECONDS)
            action()
            seconds = int(measured.result()) / 1e9
        rig.until("the agent serves by DRA again", lambda: len(published(rig)) == 4 and rig.reports(rig.b))
        yield Row(what=f"agent's {what}: without the driver", measured=seconds, unit="s", target=target)


def _rounds(rig: RigCluster) -> dict[str, list[float]]:
    """Seconds, by what was measured, one for each round."""
    name = f"00000-{DOMAIN}-{rig.b}"
    found: dict[str, list[float]] = defaultdict(list)
    with Watch(rig.kubectl, ("resourceslices", name)) as watch:
        rig.until("the watch has begun", lambda: watch.seen)
        for number in range(ROUNDS):
            time.sleep(PAUSE_SECONDS)
            began = rig.hardware(rig.b, simulated.l4s(lost=number % 4))
            found["fault -> taint stored"].append(watch.first("the taint", _tainted, after=began)[0] - began)
            began = rig.hardware(rig.b, simulated.l4s())
            _, before = watch.first("no taint", lambda one: not _tainted(one), after=began)

            time.sleep(PAUSE_SECONDS)
            began = time.monotonic()
            rig.kubectl.delete("resourceslices", name)
            found["slice deleted -> back"].append(watch.first("a new slice", _other(before), after=began)[0] - began)

            began = time.monotonic()
            rig.kubectl.patch("resourceslices", name, {"metadata": {"annotations": {"round": str(number)}}})
            found["write"].append(watch.first("the write", _of_round(number), after=began)[0] - began)
    return found


def _tainted(piece: Json) -> bool:
    return any(device.get("taints") for device in piece["spec"].get("devices") or ())


def _other(before: Json) -> Callable[[Json], bool]:
    return lambda piece: piece["metadata"]["uid"] != before["metadata"]["uid"]


def _of_round(number: int) -> Callable[[Json], bool]:
    return lambda piece: piece["metadata"].get("annotations", {}).get("round") == str(number)


def _rows(found: dict[str, list[float]]) -> list[Row]:
    write = percentile(found["write"], 50)
    return [
        Row(
            what=f"{what}, {name} of {ROUNDS}",
            measured=value,
            unit="s",
            target=target,
            floor=write,
            floor_is="one write of the slice, median",
        )
        for what, target in TARGETS.items()
        for name, value in (("median", percentile(found[what], 50)), ("slowest", max(found[what])))
    ]


def _resident(rig: RigCluster) -> float:
    """MiB of the agent on node b."""
    pids = rig.processes(rig.b, "nodedevices-agent")
    text = rig.shell(rig.b, f"grep VmRSS /proc/{min(pids)}/status")
    return int(text.split()[1]) / 1024
