"""What `kubectl get nodedevices` prints in each state that a node can be in, by the agent's own reports."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.base import to_dict
from nodedevices_api.withheld import HELD_IN_ANOTHER_SHAPE
from nodedevices_plugin import model
from nodedevices_plugin.model.holders import IDLE
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.pipeline.inventory import owned
from nodedevices_plugin.sharing.memory import Memory
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import Driver, DriverState
from support.facts import START, gpu, gpu_id, healthy, inventory_of
from support.kubectl import Kubectl
from support.plans import UNFIT, make_plan
from support.reports import node_facts

GPU, MEMORY, MIB = "nvidia.com/gpu", "nodedevices.io/gpu-memory", 1 << 20
API = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices"}
DEVICES = [gpu(number) for number in range(8)]

TERMINAL = 160  # columns: all that can be in a cell at the same time; less in most fleets

TABLE = """
NAME        MODEL                   DEVICES   HEALTHY   HELD   READY   STALE   REASON            AGE
bymemory    NVIDIA-L4               2         2         1      True    False                     5s
cordoned    NVIDIA-H100-80GB-HBM3   8         8         1      True    False                     5s
degraded    NVIDIA-H100-80GB-HBM3   8         8         1      True    False   RowRemapPending   5s
healthy     NVIDIA-H100-80GB-HBM3   8         8         1      True    False                     5s
missing     NVIDIA-H100-80GB-HBM3   8         7         1      True    False   Missing           5s
nodriver                            0         0         0      False   False   DriverNotLoaded   5s
observe     NVIDIA-H100-80GB-HBM3   8         8         1      True    False                     5s
refused     NVIDIA-H100-80GB-HBM3   8         8         1      True    False                     5s
stale       NVIDIA-H100-80GB-HBM3   8         8         1      True    True                      5s
unhealthy   NVIDIA-H100-80GB-HBM3   8         7         1      True    False   Xid79             5s
unknown     NVIDIA-H100-80GB-HBM3   8         0         1      False   False   ProbeUnavailable  5s
waiting     NVIDIA-H100-80GB-HBM3   8         8         1      True    False                     5s
"""
WIDE = """
NAME        ACTION        WITHHELD                IDLE
bymemory    None          Unhealthy=1
cordoned    None          Cordoned=1
degraded    ResetDevice
healthy     None                                  1
missing     Inspect       Unhealthy=1
nodriver    None
observe     None
refused     None
stale       None
unhealthy   ResetBus      Unhealthy=1
unknown     None
waiting     None          HeldInAnotherShape=22
"""


def bad(state: model.HealthState, reason: str, action: str) -> model.Verdict:
    offered = state is not model.HealthState.UNHEALTHY
    return model.Verdict(
        state=state, reason=reason, message=f"{reason} happened", since=START, offered=offered, recovery_action=action
    )


def node(**changes: Any) -> NodeFacts:
    """Eight H100s, all well, one of them held by a pod."""
    holder = model.Holder(namespace="ml", pod="train-0", container="main", resource=GPU, ids=(gpu_id(1),), since=START)
    verdicts, cordoned = changes.get("verdicts", healthy(*DEVICES)), changes.get("unschedulable", {})
    plan = make_plan(inventory_of(*DEVICES), verdicts, PlanSettings(), cordoned)
    known: dict[str, Any] = {
        "inventory": inventory_of(*DEVICES),
        "verdicts": healthy(*DEVICES),
        "plan": plan,
        "holdings": model.Holdings(state=model.HoldersState.SYNCED, holders=(holder,), taken=1.0),
        "registrations": (model.Registration(resource=GPU, state=model.RegistrationState.REGISTERED),),
        "config": ConfigStatus(reason=names.APPLIED),
        "started": START,
        "now": START + timedelta(seconds=30),
    }
    made = {**known, **changes}
    inventory = owned({"nvml": made["inventory"]})["nvml"]
    probe = ProbeFacts(name="nvml", inventory=inventory, silent=made.pop("silent", False))
    return node_facts(**{**made, "inventory": inventory, "probes": (probe,)})


def by_memory() -> NodeFacts:
    """Two L4s in shares of 1 GiB, 12 of the first one's with two pods; the second one's shares are not all offered."""
    devices = [gpu(number, product_name="NVIDIA L4", memory_bytes=23034 * MIB) for number in range(2)]
    ids = tuple(
        model.SchedulableId(
            id=f"{each.id}::1Gi.{number}",
            device_id=each.id,
            replica=number,
            blocked=None if each.index == 0 or number > 0 else UNFIT,
        )
        for each in devices
        for number in range(22)
    )
    offered = model.OfferedResource(
        name=MEMORY,
        ids=ids,
        sharing=model.SharingFacts(
            mode=Memory(),
            memory=model.MemoryShares(
                unit="1Gi", unit_bytes=1024 * MIB, devices={each.id: 23034 * MIB for each in devices}
            ),
            packing="binpack",
        ),
    )
    has = {"a": ids[:8], "b": ids[8:12]}
    holders = tuple(
        model.Holder(
            namespace="ml", pod=pod, container="main", resource=MEMORY, ids=tuple(one.id for one in some), since=START
        )
        for pod, some in has.items()
    )
    return node(
        inventory=inventory_of(*devices),
        verdicts=healthy(*devices),
        plan=model.Plan(resources=(offered,)),
        holdings=model.Holdings(state=model.HoldersState.SYNCED, holders=holders, taken=1.0),
        registrations=(model.Registration(resource=MEMORY, state=model.RegistrationState.REGISTERED),),
    )


def one_held_in_another_shape() -> model.Plan:
    """Each GPU as 22 shares, of which the pod has none: it has all of gpu-1."""
    held = model.Blocked(reason=HELD_IN_ANOTHER_SHAPE, message="held by ml/train-0")
    ids = tuple(
        model.SchedulableId(
            id=f"{each.id}::{number}", device_id=each.id, replica=number, blocked=held if each.index == 1 else None
        )
        for each in DEVICES
        for number in range(22)
    )
    return model.Plan(resources=(model.OfferedResource(name=GPU, ids=ids),))


def with_one(state: model.HealthState, reason: str, action: str) -> NodeFacts:
    return node(verdicts=healthy(*DEVICES) | {gpu_id(3): bad(state, reason, action)})


def states() -> dict[str, NodeFacts]:
    unloaded = replace(inventory_of(), driver=Driver(state=DriverState.NOT_LOADED), accelerators_on_bus=8)
    refused = model.Refused(field="sharing.resources", message="sharing.resources: no")
    silent = {each.id: bad(model.HealthState.UNKNOWN, "ProbeSilent", "None") for each in DEVICES}
    nothing = model.Holdings(state=model.HoldersState.SYNCED, taken=1.0)
    return {
        "bymemory": by_memory(),
        "cordoned": node(unschedulable={gpu_id(2): "RMA 4711"}),
        "degraded": with_one(model.HealthState.DEGRADED, "RowRemapPending", "ResetDevice"),
        "healthy": node(
            uses=model.Uses(at=1.0, devices={gpu_id(1): model.DeviceUse(word=IDLE, since=START, began=0.0)})
        ),
        "missing": with_one(model.HealthState.UNHEALTHY, "Missing", "Inspect"),
        "nodriver": node(inventory=unloaded, verdicts={}, plan=model.Plan(), registrations=(), holdings=nothing),
        "observe": node(observed=node().world.plan, registrations=()),
        "refused": node(config=ConfigStatus(reason=names.CONFIG_INVALID, message=refused.message, refused=refused)),
        "stale": node(),
        "unhealthy": with_one(model.HealthState.UNHEALTHY, "Xid79", "ResetBus"),
        "unknown": node(verdicts=silent, silent=True),
        "waiting": node(
            plan=one_held_in_another_shape(),
            config=ConfigStatus(reason=names.WAITING_FOR_HOLDERS, message="gpu-1: held by ml/train-0"),
        ),
    }


@pytest.fixture
def fleet(kubectl: Kubectl) -> Kubectl:
    """A node in each state, written as agent and operator write it."""
    for name, facts in states().items():
        thing = {**API, "metadata": {"name": name}}
        kubectl.apply_as("agent", thing)
        kubectl.apply_as("agent", {**thing, "status": to_dict(report(facts))}, subresource="status")
        status, reason = ("True", "NodeNotReady") if name == "stale" else ("False", "Fresh")
        stale = {"type": names.STALE, "status": status, "reason": reason, "message": ""}
        shown = {"conditions": [{**stale, "lastTransitionTime": "2026-11-21T10:00:00Z"}]}
        kubectl.apply_as("operator", {**thing, "status": shown}, subresource="status")
    return kubectl


def rows(text: str) -> list[dict[str, str]]:
    """A table's rows, cut where the header's words begin; the age is another each time."""
    header, *lines = text.strip("\n").splitlines()
    starts = [at for at, letter in enumerate(header) if letter != " " and (at == 0 or header[at - 1] == " ")]
    cuts = list(zip(starts, [*starts[1:], None], strict=True))
    return [{header[a:b].strip(): line[a:b].strip() for a, b in cuts if header[a:b].strip() != "AGE"} for line in lines]


def test_one_line_a_node_says_what_is_the_matter_with_it(fleet: Kubectl) -> None:
    assert rows(fleet.run("get", "nd")) == rows(TABLE)


def test_the_wide_table_says_what_would_help_and_what_is_kept_back(fleet: Kubectl) -> None:
    text = fleet.run("get", "nd", "-o", "wide")
    assert max(map(len, text.splitlines())) <= TERMINAL, "a node a line"
    shown = rows(text)
    wide = rows(WIDE)
    assert [{key: row[key] for key in wide[0]} for row in shown] == wide
    assert [list(row) for row in shown] == [[*rows(TABLE)[0], *list(wide[0])[1:]]] * len(shown)


# --- one node on one screen ------------------------------------------------------------------------------------------
TEMPLATE = Path(__file__).parents[2] / "docs" / "node.gotemplate"
SCREEN = 40  # lines


def on_one_screen(fleet: Kubectl, name: str) -> list[str]:
    return fleet.run("get", "nd", name, "-o", f"go-template-file={TEMPLATE}").splitlines()


def test_a_healthy_node_of_eight_gpus_fits_on_a_screen(fleet: Kubectl) -> None:
    lines = on_one_screen(fleet, "healthy")
    assert lines[0] == "healthy: 8 devices, 8 healthy, 1 held, NVIDIA-H100-80GB-HBM3, nvidia 570.148.08"
    assert [line.split()[:2] for line in lines if line.startswith("gpu-")] == [
        [f"gpu-{number}", gpu_id(number)] for number in range(8)
    ]
    assert lines[-1].split() == [GPU, "8", "ids", "8", "healthy", "1", "held"]
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= TERMINAL


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("healthy", "gpu-1 GPU-… Healthy ml/train-0"),
        ("unhealthy", "gpu-3 GPU-… Unhealthy Xid79 ResetBus"),
        ("cordoned", "gpu-2 GPU-… Healthy, out of service: RMA 4711"),
        ("bymemory", "gpu-0 GPU-… Healthy, 12 of 22 shares held ml/a ml/b"),
        ("bymemory", "nodedevices.io/gpu-memory 44 ids 43 healthy 12 held, 31 free, 1Gi each"),
        ("cordoned", "1 withheld: Cordoned gpu-2: taken out of service: RMA"),
        ("nodriver", "nodriver: 0 devices, 0 healthy, 0 held"),
    ],
)
def test_it_says_what_is_the_matter_with_a_device_and_who_has_it(fleet: Kubectl, name: str, said: str) -> None:
    lines = [re.sub(r"GPU-[0-9a-f-]{36}", "GPU-…", " ".join(line.split())) for line in on_one_screen(fleet, name)]
    assert said in lines
    assert not [line for line in lines if "no value" in line or "%!" in line]
