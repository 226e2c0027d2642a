"""GPU Feature Discovery's labels from a NodeDevices, value by value, and what happens to labels of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodedevices_api.sections import Labels, Sections
from nodedevices_operator.concerns.budget import FIGHT_WINDOW_SECONDS
from nodedevices_operator.concerns.labels import MOST_WRITES, LabelsConcern
from nodedevices_operator.concerns.port import Shown
from nodedevices_operator.desired.labels import LabelPlan, plan_labels
from nodedevices_operator.records.kinds import node_record
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, shows
from support.cases import cases
from support.concerns import Result, run, tools
from support.opfacts import device, feature_labels, health, record

H100 = "NVIDIA H100 80GB HBM3"
ON = Labels(feature_discovery=True)
NODE: dict[str, Any] = {
    "drivers": [{"name": "nvidia", "version": "570.148.08", "cudaVersion": "12.8"}],
    "machine": {"type": "DGXH100", "mode": "compute"},
}
COMMON = {
    "nvidia.com/cuda.driver-version.full": "570.148.08",
    "nvidia.com/cuda.driver-version.major": "570",
    "nvidia.com/cuda.driver-version.minor": "148",
    "nvidia.com/cuda.driver-version.revision": "08",
    "nvidia.com/cuda.driver.major": "570",
    "nvidia.com/cuda.driver.minor": "148",
    "nvidia.com/cuda.driver.rev": "08",
    "nvidia.com/cuda.runtime-version.full": "12.8",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "8",
    "nvidia.com/cuda.runtime.major": "12",
    "nvidia.com/cuda.runtime.minor": "8",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.machine": "DGXH100",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mps.capable": "false",
}
WHOLE = COMMON | {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.replicas": "1",
}


def gpu(index: int, product: str = H100, *, mig: bool = False, profiles: tuple[str, ...] = ()) -> dict[str, Any]:
    return device(
        index,
        attributes={
            "vendor": "nvidia",
            "productName": product,
            "extra": {
                "cudaComputeCapability": {"version": "9.0.0"},
                "migCapable": {"bool": True},
                **({"migEnabled": {"bool": True}} if mig or profiles else {}),
            },
        },
        capacity={"memory": "81559Mi"},
        partitions=[partition(f"MIG-{index}-{place}", each) for place, each in enumerate(profiles)],
    )


def partition(identity: str, profile: str, **more: Any) -> dict[str, Any]:
    """As the agent reports a MIG device of 1g.10gb, under any name."""
    return {
        "id": identity,
        "name": identity.lower(),
        "profile": profile,
        "capacity": {
            "memory": "9856Mi",
            "multiprocessors": "16",
            "copyEngines": "1",
            "decoders": "1",
            "encoders": "0",
            "jpegEngines": "1",
            "ofaEngines": "0",
        },
        **more,
    }


def offer(name: str, capacity: int, sharing: str = "none", replicas: int | None = None) -> dict[str, Any]:
    made = {"name": name, "capacity": capacity, "healthy": capacity, "allocated": 0, "managedBy": "plugin"}
    return made | {"sharing": sharing} | ({} if replicas is None else {"replicas": replicas})


def eight(*offers: dict[str, Any], **more: Any) -> NodeDevicesRecord:
    return record(*(gpu(index) for index in range(8)), resources=list(offers), **(NODE | more))


def mig(strategy: str, *devices: dict[str, Any], offers: tuple[dict[str, Any], ...] = ()) -> dict[str, str]:
    machine = {**NODE["machine"], "migStrategy": strategy}
    return feature_labels(record(*devices, resources=list(offers), **(NODE | {"machine": machine})))


def differs(found: Mapping[str, str], expected: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Label -> (found, expected), without the common prefix."""
    keys = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    return {key.removeprefix("nvidia.com/"): (found.get(key), expected.get(key)) for key in keys}


def node(labels: Mapping[str, str] | None = None, owned: tuple[str, ...] = ()) -> NodeRecord:
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in owned}}}
    managed = [{"manager": "nodedevices-operator-labels", "operation": "Apply", "fieldsV1": fields}]
    metadata = {"name": "n1", "uid": "node-uid", "resourceVersion": "1", "labels": dict(labels or {})}
    return node_record({"metadata": metadata | {"managedFields": managed if owned else []}})


def ours(values: Mapping[str, str], **more: str) -> NodeRecord:
    return node({**more, **values}, tuple(values))


# --- what is shown ---------------------------------------------------------------------------------------------------
def test_one_gpu_that_can_be_cut_makes_a_node_capable_of_mig() -> None:
    whole = gpu(1)
    whole["attributes"]["extra"]["migCapable"] = {"bool": False}
    for devices in ((gpu(0), whole), (whole, gpu(0))):
        assert mig("none", *devices)["nvidia.com/mig.capable"] == "true"
    assert mig("none", whole)["nvidia.com/mig.capable"] == "false"


def test_eight_gpus_have_their_labels_and_a_node_without_devices_none() -> None:
    assert feature_labels(eight(offer("nvidia.com/gpu", 8))) == WHOLE
    assert feature_labels(record(resources=[], **NODE)) == {}
    other = device(0, attributes={"vendor": "acme", "productName": "Acme A1"})
    assert feature_labels(record(other, **NODE)) == {}


@cases(
    ("offers", "changed"),
    (
        [offer("nvidia.com/gpu", 32, "timeSlicing", 4)],
        {
            "gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
            "gpu.replicas": "4",
            "gpu.sharing-strategy": "time-slicing",
        },
    ),
    (
        [offer("nvidia.com/gpu.shared", 32, "timeSlicing", 4)],
        {"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"},
    ),
    (
        [offer("nvidia.com/gpu", 6), offer("nvidia.com/gpu.shared", 8, "timeSlicing", 4)],
        {"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"},
    ),
    (
        [offer("example.com/quarter", 32, "timeSlicing", 4), offer("example.com/whole", 2)],
        {"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"},
    ),
    (
        [offer("nvidia.com/gpu", 80, "mps", 10)],
        {
            "gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
            "gpu.replicas": "10",
            "gpu.sharing-strategy": "mps",
            "mps.capable": "true",
        },
    ),
    ([], {}),
)
def test_sharing_is_read_from_what_is_offered(offers: list[dict[str, Any]], changed: dict[str, str]) -> None:
    found = differs(feature_labels(eight(*offers)), WHOLE)
    assert {key: value[0] for key, value in found.items()} == changed


def test_every_mig_profile_has_its_labels_where_the_strategy_is_mixed() -> None:
    found = mig(
        "mixed",
        gpu(0),
        gpu(1, profiles=("1g.10gb", "1g.10gb", "1c.2g.20gb")),
        gpu(2, profiles=("1g.10gb+me",)),
        offers=(offer("nvidia.com/gpu", 1), offer("nvidia.com/mig-1g.10gb", 4, "timeSlicing", 2)),
    )
    facts = {
        "memory": "9856",
        "multiprocessors": "16",
        "engines.copy": "1",
        "engines.decoder": "1",
        "engines.encoder": "0",
        "engines.jpeg": "1",
        "engines.ofa": "0",
    }
    each = {
        "mig-1g.10gb": {
            "product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED",
            "count": "2",
            "replicas": "2",
            "sharing-strategy": "time-slicing",
            "slices.gi": "1",
            "slices.ci": "1",
        },
        "mig-1c.2g.20gb": {
            "product": "NVIDIA-H100-80GB-HBM3-MIG-1c.2g.20gb",
            "count": "1",
            "replicas": "1",
            "sharing-strategy": "none",
            "slices.gi": "2",
            "slices.ci": "1",
        },
        "mig-1g.10gb.me": {
            "product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gbme",
            "count": "1",
            "replicas": "1",
            "sharing-strategy": "none",
            "slices.gi": "1",
            "slices.ci": "1",
        },
    }
    wanted = {f"nvidia.com/{key}.{name}": value for key, it in each.items() for name, value in (facts | it).items()}
    assert differs(found, wanted | WHOLE | {"nvidia.com/gpu.count": "3", "nvidia.com/mig.strategy": "mixed"}) == {}


def test_mig_devices_take_the_gpus_labels_where_the_strategy_is_single() -> None:
    found = mig(
        "single",
        gpu(0, profiles=("1g.10gb",) * 7),
        gpu(1, profiles=("1g.10gb",) * 7),
        offers=(offer("nvidia.com/gpu", 14),),
    )
    changed = {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "nvidia.com/gpu.count": "14",
        "nvidia.com/gpu.memory": "9856",
        "nvidia.com/gpu.multiprocessors": "16",
        "nvidia.com/gpu.slices.gi": "1",
        "nvidia.com/gpu.slices.ci": "1",
        "nvidia.com/gpu.engines.copy": "1",
        "nvidia.com/gpu.engines.decoder": "1",
        "nvidia.com/gpu.engines.encoder": "0",
        "nvidia.com/gpu.engines.jpeg": "1",
        "nvidia.com/gpu.engines.ofa": "0",
    }
    assert differs(found, WHOLE | changed) == {}


@cases(
    "devices",
    (gpu(0, profiles=("1g.10gb",)), gpu(1)),
    (gpu(0, profiles=("1g.10gb",)), gpu(1, mig=True)),
    (gpu(0, profiles=("1g.10gb", "2g.20gb")),),
)
def test_what_single_does_not_allow_is_called_invalid(devices: tuple[dict[str, Any], ...]) -> None:
    found = mig("single", *devices)
    published = {key: found[f"nvidia.com/gpu.{key}"] for key in ("product", "count", "replicas", "memory")}
    assert published == {"product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0"}


RTX = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"


@cases(
    ("product", "profile", "replicas", "shown"),
    (RTX, "1g.24gb", 1, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-MIG-1g.24gb"),
    (RTX, "1g.24gb-me", 1, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-MIG-1g.24gb-me"),
    (RTX, "1g.24gb+gfx", 1, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-MIG-1g.24gbgfx"),
    (RTX, "1g.24gb", 4, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-MIG-1g.24gb-SHARED"),
    (f"{RTX} II", "", 4, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-SHARED"),
    (f"{RTX} Limited", "", 1, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-Limited"),
    ("x" * 70, "1g.24gb", 1, f"{'x' * 51}-MIG-1g.24gb"),
)
@cases("strategy", "single", "mixed")
def test_a_long_models_name_is_shortened_and_keeps_its_profile_and_that_it_is_shared(
    strategy: str, product: str, profile: str, replicas: int, shown: str
) -> None:
    """NVIDIA/k8s-device-plugin#1880."""
    base = f"mig-{profile.replace('+', '.')}" if profile and strategy == "mixed" else "gpu"
    sharing = ("none", None) if replicas == 1 else ("timeSlicing", replicas)
    found = mig(
        strategy,
        gpu(0, product, profiles=(profile,) if profile else ()),
        offers=(offer(f"nvidia.com/{base}", replicas, *sharing),),
    )
    assert found[f"nvidia.com/{base}.product"] == shown


def test_shares_replicas_and_held_mig_devices_are_counted_by_what_is_offered() -> None:
    offers = (offer("example.com/whole", 1), offer("nvidia.com/mig-1g.10gb", 4, "timeSlicing", 4))
    found = mig("mixed", gpu(0), gpu(1, profiles=("1g.10gb",)), offers=offers)
    assert (found["nvidia.com/gpu.replicas"], found["nvidia.com/gpu.sharing-strategy"]) == ("1", "none")
    assert found["nvidia.com/mig-1g.10gb.replicas"] == "4"
    found = feature_labels(record(gpu(0, mig=True), gpu(1, mig=True), **NODE))
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("2", "0")
    assert "nvidia.com/mig.strategy" not in found
    parent = gpu(0, profiles=("1g.10gb",))
    parent["partitions"].append(partition("MIG-old", "3g.40gb", health=health("Unhealthy", "Missing")))
    found = mig("mixed", parent)
    assert not any("3g.40gb" in key for key in found)


def test_of_several_models_the_commonest_is_reported_and_then_the_first() -> None:
    l4, a10 = "NVIDIA L4", "NVIDIA A10"

    def published(*products: str) -> tuple[str, str]:
        found = feature_labels(record(*(gpu(index, it) for index, it in enumerate(products)), **NODE))
        return found["nvidia.com/gpu.product"], found["nvidia.com/gpu.count"]

    assert published(l4, a10, a10) == ("NVIDIA-A10", "2")
    assert published(l4, a10) == ("NVIDIA-L4", "1")
    assert published(a10, l4) == ("NVIDIA-A10", "1")


GONE = {"health": health("Unhealthy", "Missing")}


def test_a_missing_gpu_is_not_counted_and_where_all_are_they_say_what_they_were() -> None:
    gone = gpu(2, "NVIDIA L4") | GONE
    found = feature_labels(
        record(gpu(0), gpu(1) | {"health": health("Unhealthy", "Xid79")}, gone, gpu(3) | GONE, **NODE)
    )
    assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.count"]) == ("NVIDIA-H100-80GB-HBM3", "2")
    # A policy that selects nodes by the product does not leave the node because of a fault.
    eight_gone = feature_labels(record(*(gpu(index) | GONE for index in range(8)), **NODE))
    assert differs(eight_gone, WHOLE) == {"gpu.count": ("0", "8")}


def test_mig_devices_of_a_missing_gpu_are_not_counted_and_do_not_make_the_node_invalid() -> None:
    one = ("1g.10gb", "1g.10gb")
    gone = gpu(1, profiles=one) | GONE
    gone["partitions"][0]["health"] = health("Unhealthy", "Xid94")
    assert mig("mixed", gpu(0, profiles=one), gone)["nvidia.com/mig-1g.10gb.count"] == "2"
    single = mig("single", gpu(0, profiles=one), gone)
    assert (single["nvidia.com/gpu.product"], single["nvidia.com/gpu.count"]) == (
        "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "2",
    )


@cases(
    ("capability", "family"),
    ("1.3.0", "tesla"),
    ("2.1.0", "fermi"),
    ("3.7.0", "kepler"),
    ("5.2.0", "maxwell"),
    ("6.1.0", "pascal"),
    ("7.0.0", "volta"),
    ("7.5.0", "turing"),
    ("8.6.0", "ampere"),
    ("8.9.0", "ada-lovelace"),
    ("9.0.0", "hopper"),
    ("10.0.0", "blackwell"),
    ("12.0.0", "blackwell"),
    ("13.0.0", "rubin"),
    ("99.0.0", "undefined"),
    ("", None),
)
def test_families(capability: str, family: str | None) -> None:
    one = gpu(0)
    one["attributes"]["extra"]["cudaComputeCapability"] = {"version": capability}
    assert feature_labels(record(one, **NODE)).get("nvidia.com/gpu.family") == family


def test_what_the_machine_says() -> None:
    machine = {"type": "DGX H100 (rev 2)", "clique": "0c2c0f3e-0000-0000-0000-000000000009.1", "mode": ""}
    vgpu = {"vgpuVersion": "535.54.06", "vgpuBranch": "r536_22"}
    drivers = [{"name": "mlx5_core", "version": "24.10"}, {"name": "nvidia", "version": "570.148"}]
    found = feature_labels(record(gpu(0), drivers=drivers, machine=machine | vgpu))
    published = {key.removeprefix("nvidia.com/"): value for key, value in found.items()}
    assert published["gpu.machine"] == "DGX-H100-rev-2"
    assert published["gpu.mode"] == "unknown"
    assert published["gpu.clique"] == "0c2c0f3e-0000-0000-0000-000000000009.1"
    assert (published["vgpu.present"], published["vgpu.host-driver-version"]) == ("true", "535.54.06")
    assert published["vgpu.host-driver-branch"] == "r536_22"
    assert (published["cuda.driver-version.minor"], published["cuda.driver-version.revision"]) == ("148", "")
    assert not any(key.startswith("cuda.runtime") for key in published)
    assert feature_labels(record(gpu(0)))["nvidia.com/gpu.machine"] == "unknown"


@cases("version", "570", "570.open", "570.1.2.3")
def test_a_driver_whose_version_is_none_of_nvidias_has_no_labels(version: str) -> None:
    labels = feature_labels(record(gpu(0), drivers=[{"name": "nvidia", "version": version}]))
    assert not any("cuda.driver" in key for key in labels)


@cases("host", {"vgpuVersion": "535.54.06"}, {"vgpuBranch": "r536_22"})
def test_a_virtual_gpu_has_its_labels_where_half_of_its_host_is_known(host: dict[str, str]) -> None:
    labels = feature_labels(record(gpu(0), machine=host))
    assert labels["nvidia.com/vgpu.present"] == "true"
    assert labels["nvidia.com/vgpu.host-driver-version"] == host.get("vgpuVersion", "")
    assert labels["nvidia.com/vgpu.host-driver-branch"] == host.get("vgpuBranch", "")


def test_every_value_is_one_that_kubernetes_takes() -> None:
    found = feature_labels(record(gpu(0, "NVIDIA (TM) " + "X" * 70 + " Édition"), **NODE))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-TM-" + "X" * 53
    for key, value in found.items():
        Labels(extra={key: value})  # the contract's own idea of keys and values


# --- what is written -------------------------------------------------------------------------------------------------
def plan(section: Labels, shown: NodeRecord, now: int = 100) -> LabelPlan:
    return plan_labels(section, eight(offer("nvidia.com/gpu", 8)), shown, now=now)


def test_the_timestamp_is_of_another_labels_change_and_anothers_label_is_left_and_reported() -> None:
    first = plan(ON, node(), now=100)
    assert first.values == WHOLE | {"nvidia.com/gfd.timestamp": "100"}
    assert plan(ON, ours(first.values), now=200).values == first.values
    changed = plan(ON, ours({**first.values, "nvidia.com/gpu.count": "7"}), now=300)
    assert changed.values["nvidia.com/gfd.timestamp"] == "300"
    foreign = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "8", "nvidia.com/gfd.timestamp": "9"}
    found = plan(ON, node(foreign))
    assert found.verdict[:2] == ("False", "Conflict")
    assert "nvidia.com/gpu.product=Tesla-T4" in found.verdict[2]
    assert set(WHOLE) - set(found.values) == {"nvidia.com/gpu.product"}, "an equal value is shared, not fought for"
    assert "nvidia.com/gfd.timestamp" not in found.values
    again = ours(found.values, **foreign)
    assert shows(again.labels, again.labels_owned, found.values)


def test_extra_labels_are_stronger_than_discovery_and_switched_off_nothing_is_ours() -> None:
    extra = {"example.com/pool": "a", "nvidia.com/gpu.product": "mine"}
    assert plan(Labels(extra=extra), node()).values == extra
    assert plan(Labels(feature_discovery=True, extra=extra), node()).values["nvidia.com/gpu.product"] == "mine"
    assert plan(Labels(), node()).values == {}
    shown = ours({"nvidia.com/gpu.count": "8"}, other="stays")
    found = plan(Labels(), shown)
    assert found.values == {}
    assert not shows(shown.labels, shown.labels_owned, found.values)


class Labelled:
    """A Kube of which only apply is used."""

    def __init__(self) -> None:
        self.made: list[dict[str, str]] = []

    async def apply(self, path: str, body: Mapping[str, Any], manager: str, **_: Any) -> dict[str, Any]:
        self.made.append(body["metadata"].get("labels", {}))
        return {}


async def test_labels_that_undo_their_own_reason_come_to_rest_and_are_reported() -> None:
    now = [0.0]
    kube = Labelled()
    labels = LabelsConcern(tools(kube, lambda: now[0], lambda: 1.0))
    item = eight()

    async def publish(value: str) -> Result:
        return await run(labels, item, node(), Sections(labels=Labels(extra={"a": value})))

    for turn in range(MOST_WRITES):
        assert (await publish(str(turn))).again is None
    rested = await publish("again")
    assert (rested.reason, rested.again, len(kube.made)) == ("Conflict", FIGHT_WINDOW_SECONDS, MOST_WRITES)
    now[0] = FIGHT_WINDOW_SECONDS
    await publish("again")
    assert len(kube.made) == MOST_WRITES + 1


async def test_where_no_policy_sets_labels_nothing_is_reported_or_written() -> None:
    kube = Labelled()
    result = await run(LabelsConcern(tools(kube)), eight(), node())
    assert (result.shown, kube.made) == (Shown.REMOVED, [])
