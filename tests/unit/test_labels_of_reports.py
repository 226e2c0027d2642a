"""From a probe's facts through the agent's report to the operator's labels: the status has all that labels need."""

from __future__ import annotations

from typing import Any

from nodedevices_api.base import to_dict
from nodedevices_api.sections import Partitions, Sharing
from nodedevices_operator.records.kinds import node_devices_record
from nodedevices_plugin.model import HoldersState, Holdings, Inventory
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.pipeline import inventory
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.simulated.probe import parse
from support.cases import cases
from support.facts import START, healthy, snapshot
from support.opfacts import feature_labels
from support.plans import make_plan
from support.reports import node_facts

EIGHT = "profile: h100 x 8"
MIG = """
profile: h100 x 2
devices:
- {index: 0, mig: [&one {profile: 1g.10gb}, *one, *one]}
- {index: 1, mig: [*one, *one, *one, *one]}
"""


def labels_of(file: str, **settings: Any) -> dict[str, str]:
    facts = parse(file.encode(), node="n1").facts
    line = snapshot(*facts.devices, driver=facts.driver, machine=facts.machine)
    known = inventory.update(Inventory(), line, now=START, monotonic=0.0)
    verdicts = healthy(*facts.devices)
    plan = make_plan(known, verdicts, PlanSettings(**settings))
    status = report(
        node_facts(
            inventory=known,
            verdicts=verdicts,
            plan=plan,
            holdings=Holdings(state=HoldersState.SYNCED),
            mig_strategy=settings.get("partitions", Partitions()).strategy,
            started=START,
            probes=(ProbeFacts(name="simulated", inventory=known),),
            now=START,
        )
    )
    return feature_labels(node_devices_record({"metadata": {"name": "n1"}, "status": to_dict(status)}))


def test_eight_h100() -> None:
    found = labels_of(EIGHT)
    assert {key.removeprefix("nvidia.com/"): value for key, value in found.items() if ".driver" not in key} == {
        "cuda.runtime-version.full": found["nvidia.com/cuda.runtime-version.full"],
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": found["nvidia.com/cuda.runtime.minor"],
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": found["nvidia.com/cuda.runtime.minor"],
        "gpu.compute.major": "9",
        "gpu.compute.minor": "0",
        "gpu.count": "8",
        "gpu.family": "hopper",
        "gpu.machine": "DGXH100",
        "gpu.memory": "81559",
        "gpu.mode": "compute",
        "gpu.product": "NVIDIA-H100-80GB-HBM3",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "true",
        "mps.capable": "false",
    }


@cases("devices", None, ["0", "1"])
def test_by_memory_a_replica_is_a_unit_and_the_product_keeps_its_name(devices: list[str] | None) -> None:
    rule = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi"} | ({"devices": devices} if devices else {})
    found = labels_of(EIGHT, sharing=Sharing.model_validate({"strategy": "memory", "resources": [rule]}))
    assert {key: found[f"nvidia.com/gpu.{key}"] for key in ("product", "count", "replicas", "sharing-strategy")} == {
        "product": "NVIDIA-H100-80GB-HBM3",
        "count": "8",
        "replicas": "79",
        "sharing-strategy": "memory",
    }


def test_of_several_models_by_memory_the_labels_are_of_the_commonest() -> None:
    both = "profile: l4 x 2, h100 x 1"
    rule = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "rename": "aliyun.com/gpu-mem"}
    found = labels_of(both, sharing=Sharing.model_validate({"strategy": "memory", "resources": [rule]}))
    assert [found[f"nvidia.com/gpu.{key}"] for key in ("product", "replicas")] == ["NVIDIA-L4", "22"]


def test_time_slices() -> None:
    sharing = Sharing.model_validate(
        {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
    )
    found = labels_of(EIGHT, sharing=sharing)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
    assert (found["nvidia.com/gpu.replicas"], found["nvidia.com/gpu.sharing-strategy"]) == ("4", "time-slicing")


@cases(("strategy", "key"), ("mixed", "mig-1g.10gb"), ("single", "gpu"))
def test_mig_devices(strategy: Any, key: str) -> None:
    found = labels_of(MIG, partitions=Partitions(strategy=strategy))
    names = ("product", "count", "replicas", "slices.gi", "slices.ci", "multiprocessors", "engines.copy")
    assert {name: found[f"nvidia.com/{key}.{name}"] for name in names} == {
        "product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "count": "7",
        "replicas": "1",
        "slices.gi": "1",
        "slices.ci": "1",
        "multiprocessors": "16",
        "engines.copy": "1",
    }
    assert found["nvidia.com/mig.strategy"] == strategy
    assert int(found[f"nvidia.com/{key}.memory"]) > 9000
