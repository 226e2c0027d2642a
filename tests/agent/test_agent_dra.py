"""DRA in the whole agent: from a policy to ResourceSlices, from a claim to its CDI file, and from one API to the other
with pods running."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from nodedevices_kube.errors import ApiError
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as podresources
from nodedevices_plugin.kubelet.api.dra_health_v1_pb2 import HEALTHY, UNHEALTHY
from nodedevices_plugin.kubelet.dra.driver import HEALTH_SERVICES, VERSIONS
from nodedevices_plugin.model import DRA_DRIVER, OfferedResource, Plan, SchedulableId
from support.dra import BY_DRA, DraNode, allocated
from support.kubelet import AdmissionError, StandInKubelet
from support.offers import EchoOffer, device_plugins
from support.patience import PATIENCE_SECONDS
from support.running_agent import replace_file, simulated

GPU = "acme.com/gpu"
NAMED = {"resources": {"devices": [{"match": {"vendor": "acme"}, "name": GPU}]}}
PLUGIN: dict[str, Any] = {"serving": {"api": "DevicePlugin"}, **NAMED}
DRA = {**BY_DRA, **NAMED}
BY_MEMORY = {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi"}]}}
TWO = """devices:
- {index: 0, id: ACME-0, type: gpu, vendor: acme, deviceNodes: [/dev/acme0], memoryBytes: 25769803776}
- {index: 1, id: ACME-1, type: gpu, vendor: acme, deviceNodes: [/dev/acme1], memoryBytes: 25769803776}
"""


THIRD = "- {index: 2, id: ACME-2, type: gpu, vendor: acme, deviceNodes: [/dev/acme2]}\n"


class Node(DraNode):
    def __init__(self, folder: Path, kubelet: StandInKubelet, *, config: dict[str, Any] = DRA) -> None:
        super().__init__(folder, kubelet, *simulated(folder, TWO), config=config)

    def configure(self, config: dict[str, Any]) -> None:
        item = self.store.item
        assert item is not None
        generation = item["metadata"]["generation"] + 1
        self.store.replace(
            {**item, "metadata": {**item["metadata"], "generation": generation}, "spec": {"config": config}}
        )

    async def serving_by_dra(self, devices: Iterable[str] = ("gpu-0", "gpu-1")) -> None:
        await self.dra.register()
        await self.kubelet.until(lambda: set(self.api.devices) == set(devices))

    def cdi(self, uid: str) -> dict[str, Any] | None:
        file = self.folder / "cdi" / f"{DRA_DRIVER}-claim-{uid}.json"
        found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
        return found

    def resource(self, *fields: str) -> tuple[object, ...]:
        """Fields of the one resource that the node reports."""
        found = self.status.get("resources", ())
        return tuple(found[0].get(field) for field in fields) if len(found) == 1 else ()

    @property
    def records(self) -> list[str]:
        return sorted(path.name for path in (self.kubelet.root / "plugins" / DRA_DRIVER / "claims").glob("*"))


@pytest.fixture
def node(tmp_path: Path, kubelet: StandInKubelet) -> Node:
    return Node(tmp_path, kubelet)


@pytest.fixture
async def running(node: Node) -> AsyncIterator[Node]:
    async with node.running():
        await node.serving_by_dra()
        yield node


async def test_devices_are_in_slices_once_the_kubelet_has_the_driver_and_in_no_list_of_the_device_plugin(
    node: Node, kubelet: StandInKubelet
) -> None:
    async with node.running():
        info = await node.dra.register(refuses="not now")
        assert (info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", DRA_DRIVER, list(VERSIONS))
        await kubelet.until(lambda: "not now" in node.condition("ConfigApplied")[1])
        assert not node.api.writes
        await node.serving_by_dra()
        device = node.api.devices["gpu-0"]
        assert device["attributes"]["resource"] == {"string": GPU}
        assert device["attributes"]["vendor"] == {"string": "acme"}
        assert kubelet.capacity(GPU) == 0
        await kubelet.until(lambda: node.condition("ConfigApplied")[0] == "Applied")
        assert node.condition("SlicesPublished")[0] == "Published"
        [resource] = node.status["resources"]
        assert (resource["name"], resource["managedBy"], resource["capacity"]) == (GPU, "dra", 2)


async def test_a_claim_gets_its_device_nodes_by_a_file_of_its_own_and_gives_them_back(running: Node) -> None:
    claim = running.api.give(allocated("train", "gpu-1"))
    answer = (await running.dra.prepare(claim))["uid-train"]
    assert not answer.error
    [device] = answer.devices
    assert (device.pool_name, device.device_name, list(device.request_names)) == ("node-a", "gpu-1", ["gpu"])
    assert device.cdi_device_ids == [f"{DRA_DRIVER}/claim=uid-train-gpu"]
    document = running.cdi("uid-train")
    assert document is not None
    [made] = document["devices"]
    assert made["name"] == "uid-train-gpu"
    assert [each["path"] for each in made["containerEdits"]["deviceNodes"]] == ["/dev/acme1"]
    assert running.records == ["uid-train.json"]
    assert not (await running.dra.unprepare(claim))["uid-train"].error
    assert (running.cdi("uid-train"), running.records) == (None, [])
    assert not (await running.dra.unprepare(claim))["uid-train"].error  # again, and of a claim that never was


async def test_a_claim_that_is_prepared_again_after_a_reboot_gets_the_same_device_and_its_file(
    node: Node, kubelet: StandInKubelet
) -> None:
    claim = node.api.give(allocated("train", "gpu-0"))
    async with node.running():
        await node.serving_by_dra()
        first = (await node.dra.prepare(claim))["uid-train"]
        before = node.cdi("uid-train")
    for file in (node.folder / "cdi").iterdir():
        file.unlink()
    async with node.running():
        await node.dra.register()
        assert (await node.dra.prepare(claim))["uid-train"] == first
        assert node.cdi("uid-train") == before


async def test_after_a_downgrade_a_newer_versions_record_stays_with_its_device_and_a_condition_says_so(
    node: Node, kubelet: StandInKubelet
) -> None:
    claim, other = (node.api.give(allocated(name, "gpu-0")) for name in ("train", "other"))
    file = kubelet.root / "plugins" / DRA_DRIVER / "claims" / "uid-train.json"
    async with node.running():
        await node.serving_by_dra()
        await node.dra.prepare(claim)
    newer = json.dumps({**json.loads(file.read_text()), "version": 2, "since": 1}) + "\n"
    file.write_text(newer)
    async with node.running():
        await node.serving_by_dra()
        await kubelet.until(lambda: "uid-train.json was written by a newer version" in node.condition("Ready")[1])
        assert "install that version again" in (await node.dra.prepare(claim))["uid-train"].error
        waiting = asyncio.create_task(node.dra.prepare(other))
        assert file.read_text() == newer
        assert not (await node.dra.unprepare(claim))["uid-train"].error
        assert not (await waiting)["uid-other"].error
        await kubelet.until(lambda: "uid-train" not in node.condition("Ready")[1])


def pod_with(pod: str, claim: str, device: str) -> podresources.PodResources:
    """A pod with a claim, as the kubelet lists it."""
    found = podresources.ClaimResource(driver_name=DRA_DRIVER, pool_name="node-a", device_name=device)
    of_claim = podresources.DynamicResource(claim_name=claim, claim_namespace="ml", claim_resources=[found])
    main = podresources.ContainerResources(name="main", dynamic_resources=[of_claim])
    return podresources.PodResources(namespace="ml", name=pod, containers=[main])


async def test_a_claims_pod_is_a_holder_of_its_device(running: Node, kubelet: StandInKubelet) -> None:
    await running.dra.prepare(running.api.give(allocated("train", "gpu-1")))
    kubelet.extra_pods = [pod_with("trainer", "train", "gpu-1")]
    await kubelet.until(lambda: running.devices["gpu-1"].get("holders"))
    [holder] = running.devices["gpu-1"]["holders"]
    assert (holder["namespace"], holder["pod"], holder["claim"]) == ("ml", "trainer", "train")
    assert running.resource("allocated", "free") == (1, 1)


async def test_slices_that_the_kubelet_deletes_come_back_and_nothing_is_written_for_a_pod(
    running: Node, kubelet: StandInKubelet
) -> None:
    before = len(running.api.writes)
    await running.dra.prepare(running.api.give(allocated("train", "gpu-0")))
    assert len(running.api.writes) == before
    running.api.wipe()
    await kubelet.until(lambda: set(running.api.devices) == {"gpu-0", "gpu-1"})


async def test_an_agent_that_starts_again_leaves_the_slices_as_they_are(node: Node, kubelet: StandInKubelet) -> None:
    claim = node.api.give(allocated("a", "gpu-0"))
    async with node.running():
        await node.serving_by_dra()
        assert not (await node.dra.prepare(claim))["uid-a"].error
        kubelet.extra_pods = [pod_with("trainer", "a", "gpu-0")]
    before = list(node.api.writes)
    async with node.running():
        await node.serving_by_dra()
        await kubelet.until(lambda: node.condition("SlicesPublished")[0] == "Published")
        replace_file(node.folder / "devices.yaml", TWO.partition("- {index: 1")[0])
        await kubelet.until(lambda: node.api.devices["gpu-1"].get("taints"))
    assert [write.partition(" ")[0] for write in node.api.writes[len(before) :]] == ["update"]


async def test_slices_that_cannot_be_written_are_said_until_they_are(running: Node, kubelet: StandInKubelet) -> None:
    await kubelet.until(lambda: running.condition("SlicesPublished")[0] == "Published")
    running.api.problem = ApiError("503 the API server is away", status=503)
    running.api.wipe()
    await kubelet.until(lambda: running.condition("SlicesPublished") == ("NotPublished", "503 the API server is away"))
    running.api.problem = None
    await kubelet.until(lambda: running.condition("SlicesPublished")[0] == "Published")
    assert set(running.api.devices) == {"gpu-0", "gpu-1"}


async def test_after_a_kubelets_start_slices_come_back_once_it_has_registered_the_driver_again(
    running: Node, kubelet: StandInKubelet
) -> None:
    await kubelet.stop(leave_socket=True)
    await kubelet.until(lambda: "not registered" in running.condition("SlicesPublished")[1])
    running.api.wipe()
    await kubelet.start()
    writes = len(running.api.writes)
    replace_file(running.folder / "devices.yaml", TWO + THIRD)
    await kubelet.until(lambda: "gpu-2" in running.devices)
    assert len(running.api.writes) == writes, "a pod that is bound before the driver is registered fails once"
    await running.serving_by_dra(("gpu-0", "gpu-1", "gpu-2"))


@pytest.mark.parametrize("service", HEALTH_SERVICES)
async def test_the_kubelet_is_sent_the_health_of_each_device_of_the_pool_whenever_it_is_another(
    running: Node, kubelet: StandInKubelet, service: str
) -> None:
    file, good = running.folder / "devices.yaml", (HEALTHY, "")
    sent = running.dra.health(service, "gpu-0", "gpu-1")
    async with asyncio.timeout(PATIENCE_SECONDS), contextlib.aclosing(sent):
        assert await anext(sent) == (good, good)
        replace_file(file, TWO.partition("- {index: 1")[0])
        assert await anext(sent) == (good, (UNHEALTHY, "Missing"))
    await kubelet.until(lambda: running.api.devices["gpu-1"].get("taints"))
    assert running.api.devices["gpu-1"]["taints"][0]["value"] == "Missing"


async def test_a_device_has_one_name_in_slices_and_in_nodedevices_also_when_devices_are_numbered_anew(
    running: Node, kubelet: StandInKubelet
) -> None:
    await running.dra.prepare(running.api.give(allocated("train", "gpu-1")))
    swapped = TWO.replace("index: 0", "index: 9").replace("index: 1", "index: 0").replace("index: 9", "index: 1")
    replace_file(running.folder / "devices.yaml", swapped)
    await kubelet.until(
        lambda: {device["index"] for device in running.devices.values() if device["id"] == "ACME-1"} == {0}
    )
    names = {device["id"]: name for name, device in running.devices.items()}
    assert names["ACME-1"] == "gpu-1", "the claim's"
    await kubelet.until(
        lambda: {it["attributes"]["uuid"]["string"]: name for name, it in running.api.devices.items()} == names
    )


async def test_a_device_is_no_other_claims_until_the_first_gives_it_back(running: Node) -> None:
    first, second = (running.api.give(allocated(name, "gpu-0")) for name in ("first", "second"))
    await running.dra.prepare(first)
    waiting = running.dra.prepare(second)  # the agent waits for the device, longer than this
    assert not (await running.dra.unprepare(first))["uid-first"].error
    assert not (await waiting)["uid-second"].error


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (allocated("other", "gpu-0", pool="node-b"), "has no device of nodedevices.io allocated on node node-a"),
        (
            {**allocated("gone", "gpu-0"), "metadata": {"namespace": "ml", "name": "never", "uid": "u"}},
            "is no ResourceClaim",
        ),
    ],
)
async def test_a_claim_that_makes_no_sense_here_is_refused_at_once_and_by_name(
    running: Node, claim: dict[str, Any], why: str
) -> None:
    if claim["metadata"]["name"] != "never":
        running.api.give(claim)
    [answer] = (await running.dra.prepare(claim)).values()
    assert why in answer.error
    assert running.records == []


async def test_from_the_plugin_to_dra_a_device_that_a_pod_holds_comes_last(
    tmp_path: Path, kubelet: StandInKubelet
) -> None:
    node = Node(tmp_path, kubelet, config=PLUGIN)
    async with node.running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        [held] = (await kubelet.allocate(GPU, 1, pod="old")).ids
        node.configure(DRA)
        await node.dra.register()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0 and len(node.api.devices) == 1)
        assert kubelet.connected(GPU)  # or the pod's container could not start again
        assert f"gpu-{held.removeprefix('ACME-')}" not in node.api.devices
        await kubelet.until(lambda: node.resource("allocated", "managedBy") == (1, "dra"))
        with pytest.raises(AdmissionError):
            await kubelet.allocate(GPU, 1, pod="late")
        kubelet.release("old")
        await kubelet.until(lambda: set(node.api.devices) == {"gpu-0", "gpu-1"})
        await kubelet.until(lambda: not kubelet.connected(GPU))


async def test_from_dra_to_the_plugin_a_device_comes_after_it_has_left_the_slices_and_its_claim_has_ended(
    running: Node, kubelet: StandInKubelet
) -> None:
    claim = running.api.give(allocated("train", "gpu-0"))
    await running.dra.prepare(claim)
    running.configure(PLUGIN)
    await kubelet.until(lambda: not running.api.devices)
    assert kubelet.allocatable(GPU) == 0
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
    late = running.api.give(allocated("late", "gpu-1"))
    assert not (await running.dra.unprepare(late))["uid-late"].error
    await running.dra.unprepare(claim)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    await kubelet.until(lambda: not running.dra.socket.exists())


async def test_without_the_component_or_the_rights_the_device_plugin_goes_on_and_the_condition_says_what_to_install(
    tmp_path: Path, kubelet: StandInKubelet
) -> None:
    node = Node(tmp_path, kubelet, config=PLUGIN)
    node.api.problem = ApiError("403 resourceslices is forbidden", status=403)
    async with node.running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        node.configure(DRA)
        await kubelet.until(lambda: node.condition("ConfigApplied")[0] == "ConfigInvalid")
        assert "forbidden" in node.condition("ConfigApplied")[1]
        assert kubelet.allocatable(GPU) == 2


async def test_a_node_whose_component_was_taken_away_says_what_to_install_and_is_not_ready(
    node: Node, kubelet: StandInKubelet
) -> None:
    claim = node.api.give(allocated("train", "gpu-0"))
    async with node.running():
        await node.serving_by_dra()
        await node.dra.prepare(claim)
    node.dra.registry.rmdir()
    async with node.running():
        await kubelet.until(lambda: node.condition("ConfigApplied")[0] == "ConfigInvalid")
        assert "install the component dra" in node.condition("ConfigApplied")[1]
        assert kubelet.capacity(GPU) == 0, "a claim may have it"


async def test_beside_another_plugin_of_these_devices_nothing_is_published_until_it_has_gone(
    node: Node, kubelet: StandInKubelet
) -> None:
    other = device_plugins(kubelet.plugin_folder, EchoOffer())
    ids = tuple(SchedulableId(id=f"ACME-{index}", device_id=f"ACME-{index}") for index in range(2))
    await other.set_plan(Plan(resources=(OfferedResource(name=GPU, ids=ids),)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    async with node.running():
        await node.dra.register()
        await kubelet.until(lambda: node.condition("Ready")[0] == "ServedByAnother")
        assert not node.api.devices
        claim = node.api.give(allocated("late", "gpu-0"))
        waiting = asyncio.create_task(node.dra.prepare(claim))
        await other.stop()
        await kubelet.until(lambda: set(node.api.devices) == {"gpu-0", "gpu-1"})
        assert not (await waiting)["uid-late"].error


async def test_without_any_claim_a_device_comes_to_the_plugin_only_after_schedulers_have_seen_that_it_left(
    running: Node, kubelet: StandInKubelet
) -> None:
    running.configure(PLUGIN)
    await kubelet.until(lambda: not running.api.devices)
    assert kubelet.allocatable(GPU) == 0
    assert running.dra.socket.exists(), "a claim that is allocated one now is refused with a reason"
    late = running.api.give(allocated("late", "gpu-0", pool="node-b"))
    [answer] = (await running.dra.prepare(late)).values()
    assert "allocated on node" in answer.error
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    await kubelet.until(lambda: not running.dra.socket.exists())


async def test_while_the_api_server_refuses_everything_pods_with_claims_can_end(
    node: Node, kubelet: StandInKubelet
) -> None:
    claim = node.api.give(allocated("train", "gpu-0"))
    async with node.running():
        await node.serving_by_dra()
        await node.dra.prepare(claim)
    node.api.problem = ApiError("403 resourceslices is forbidden", status=403)
    async with node.running():
        await node.dra.register()
        await kubelet.until(lambda: "forbidden" in node.condition("ConfigApplied")[1])
        assert node.dra.socket.exists()
        assert not (await node.dra.unprepare(claim))["uid-train"].error


# --- shares -----------------------------------------------------------------------------------------------------------
async def test_claims_share_a_device_by_memory_and_each_pod_is_shown_with_what_it_has(
    tmp_path: Path, kubelet: StandInKubelet
) -> None:
    node = Node(tmp_path, kubelet, config=DRA | BY_MEMORY)
    async with node.running():
        await node.serving_by_dra()
        assert node.api.devices["gpu-0"]["allowMultipleAllocations"] is True
        assert node.api.devices["gpu-0"]["capacity"]["memory"]["value"] == "24Gi"
        before = len(node.api.writes)
        claims = [node.api.give(allocated(name, "gpu-0", memory=f"{size}Gi")) for name, size in (("a", 10), ("b", 14))]
        answers = await node.dra.prepare(*claims)
        assert [answer.error for answer in answers.values()] == ["", ""]
        assert {uid: answer.devices[0].share_id for uid, answer in answers.items()} == {
            "uid-a": "uid-a-0",
            "uid-b": "uid-b-0",
        }
        document = node.cdi("uid-a")
        assert document is not None
        assert "NODEDEVICES_MEMORY_LIMIT_MIB=10240" in document["devices"][0]["containerEdits"]["env"]
        kubelet.extra_pods = [pod_with("trainer", "a", "gpu-0"), pod_with("server", "b", "gpu-0")]
        await kubelet.until(lambda: len(node.devices["gpu-0"].get("holders", ())) == 2)
        shown = {holder["pod"]: holder for holder in node.devices["gpu-0"]["holders"]}
        fields = ("claim", "resource", "shares", "memory")
        assert [shown["trainer"][field] for field in fields] == ["a", "nodedevices.io/gpu-memory", 10, "10Gi"]
        assert shown["server"]["memory"] == "14Gi"
        assert node.resource("capacity", "allocated", "free") == (48, 24, 24)
        assert len(node.api.writes) == before, "the scheduler knows what is consumed"


async def test_a_device_with_a_prepared_share_changes_how_it_is_shared_when_its_claim_has_ended(
    tmp_path: Path, kubelet: StandInKubelet
) -> None:
    node = Node(tmp_path, kubelet, config=DRA | BY_MEMORY)
    claim = node.api.give(allocated("a", "gpu-0", memory="10Gi"))
    async with node.running():
        await node.serving_by_dra()
        assert not (await node.dra.prepare(claim))["uid-a"].error
        kubelet.extra_pods = [pod_with("trainer", "a", "gpu-0")]
        node.configure(DRA)
        await kubelet.until(lambda: set(node.api.devices) == {"gpu-1"})
        assert "allowMultipleAllocations" not in node.api.devices["gpu-1"]
    async with node.running():
        await node.dra.register()
        again = (await node.dra.prepare(claim))["uid-a"]
        assert not again.error
        assert set(node.api.devices) == {"gpu-1"}
        node.configure(PLUGIN)
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
        assert not (await node.dra.unprepare(claim))["uid-a"].error
        kubelet.extra_pods = []
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)


async def test_on_a_server_that_drops_sharing_shared_devices_are_left_out_and_the_policy_says_why(
    tmp_path: Path, kubelet: StandInKubelet
) -> None:
    node = Node(tmp_path, kubelet, config=DRA | BY_MEMORY)
    node.api.drops = frozenset({"allowMultipleAllocations"})
    async with node.running():
        await node.dra.register()
        await kubelet.until(lambda: "drops" in str(node.status.get("configuration", {}).get("unmatched", "")))
        assert node.api.devices == {}
