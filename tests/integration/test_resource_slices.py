"""ResourceSlices on a real API server, with the rights of the component dra and no others: what the agent publishes is
stored as it is meant, comes back, and no agent writes another node's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from nodedevices_api.sections import Serving, SharedResource, Sharing
from nodedevices_plugin.claims.slices import Writes, devices_of, dropped, publish, stored, writes
from nodedevices_plugin.inputs.reader import ProbeLineError, parse_line
from nodedevices_plugin.model import DRA_DRIVER, Api, HoldersState, Holdings, device_names
from nodedevices_plugin.offering.shape import PlanSettings, make_shape
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import Inputs, begin
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.status.client import KubeStore
from nodedevices_plugin.status.slices import SlicePublisher
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import Snapshot
from support import audit
from support.accepted_lines import LINES, published
from support.access import Account, Refused, kubeconfig, token_of_pod
from support.apiserver import ApiServer
from support.audit import Right
from support.facts import START, gpu, healthy, inventory_of
from support.fuzzing import scaled
from support.kubectl import Kubectl, wait_until
from support.patience import PATIENCE_SECONDS
from support.steps import step

LOCAL = parse(["--standalone", "--mig-strategy=mixed"], {})
ROOT = Path(__file__).parents[2]
COMPONENT = ROOT / "manifests" / "components" / "dra"
NAMESPACE, ACCOUNT, NODE = "nodedevices-system", "nodedevices-agent", "node-a"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
Json = dict[str, Any]


def role() -> Json:
    """The rules that the component adds to the agent's role."""
    patches = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())["patches"]
    [added] = [each["patch"] for each in patches if each["target"] == {"kind": "ClusterRole", "name": ACCOUNT}]
    rules = [operation["value"] for operation in yaml.safe_load(added)]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "dra"},
        "rules": rules,
    }


@pytest.fixture(scope="module")
def _installed(admin: Kubectl) -> Iterator[None]:
    """The component's rights and its admission policy, in force."""
    admission = [each for each in yaml.safe_load_all((COMPONENT / "own-slices.yaml").read_text()) if each]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "dra"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dra"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}}
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    admin.apply(account, role(), binding, *admission)
    unbound = Account.of(admin.kubeconfig, admin.run("create", "token", ACCOUNT, "-n", NAMESPACE).strip())

    def refused() -> bool:
        try:
            unbound.request("POST", f"{SLICES}?dryRun=All", body("probe"))
        except Refused as error:
            return "not bound to a pod on a node" in str(error)
        return False

    wait_until("a token of no pod writes no slice", refused)
    yield
    for each in admission:
        admin.run("delete", each["kind"], each["metadata"]["name"])
    admin.run("delete", "clusterroles,clusterrolebindings", "dra")


@pytest.fixture
def token(_installed: None, kubectl: Kubectl) -> Iterator[str]:
    """Of an agent's pod on the node."""
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    yield token_of_pod(kubectl, ACCOUNT, namespace=NAMESPACE, node=NODE)
    kubectl.run("delete", "resourceslices", "--all")


def device(name: str, **fields: Any) -> Json:
    return {"name": name, "attributes": {"vendor": {"string": "acme"}}, **fields}


TAINTED = device("gpu-1", taints=[{"key": "nodedevices.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"}])


def shared_devices() -> list[Json]:
    """Devices as policies share them: few and many shares, and of GPUs that report odd amounts."""
    found: list[Json] = []
    rules: list[tuple[str, bool, Json]] = [
        ("timeSlicing", False, {"replicas": 2}),
        ("timeSlicing", False, {"replicas": 16384}),
        ("timeSlicing", True, {"replicas": 4}),
        ("mps", False, {"replicas": 48}),
        ("memory", False, {"memory_unit": "1Gi", "memory_reserve": "1Gi"}),
        ("memory", False, {"memory_unit": "3Mi"}),
        ("memory", False, {"memory_unit": "79Gi"}),
        ("memory", False, {"memory_unit": "30Gi"}),
    ]
    for number, (strategy, once, rule) in enumerate(rules):
        odd = {"bandwidth": "1.5G", "none": "0", "shares": "7", "acme.com/tiles": "9223372036854775807"}
        fact = gpu(number, memory_bytes=81559 * 1024**2)
        fact = dataclasses.replace(fact, capacity={**fact.capacity, **odd} if number else fact.capacity)
        inventory = inventory_of(fact)
        settings = PlanSettings(
            serving=Serving(api="DRA"),
            sharing=Sharing(
                strategy=strategy,
                fail_requests_greater_than_one=once,
                resources=(SharedResource(name="nvidia.com/gpu", **rule),),
            ),
            modes=Settings(mps_root="/run/nvidia/mps"),
        )
        resources = make_shape(inventory, settings).by(Api.DRA).resources
        found += publish(resources, inventory, healthy(fact), driver=DRA_DRIVER).devices
    return found


class Published:
    """A publisher at work, and the slices as kubectl shows them."""

    def __init__(self, publisher: SlicePublisher, kubectl: Kubectl) -> None:
        self.publisher = publisher
        self.kubectl = kubectl

    def now(self) -> Mapping[str, Json]:
        found = self.kubectl.items("resourceslices")
        return {each["name"]: each for piece in found for each in devices_of(piece["spec"])}

    async def until(self, names: set[str]) -> Mapping[str, Json]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while set(found := await asyncio.to_thread(self.now)) != names:  # noqa: ASYNC110  another process writes them
                await asyncio.sleep(0.1)
        return found


@contextlib.asynccontextmanager
async def publishing(config: Path, kubectl: Kubectl) -> AsyncIterator[Published]:
    store = KubeStore(str(config))
    publisher = SlicePublisher(store, node=NODE, driver=DRA_DRIVER, on_change=lambda: None, may_add=lambda: True)
    task = asyncio.create_task(publisher.run())
    try:
        yield Published(publisher, kubectl)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.close()


async def test_what_is_published_is_stored_comes_back_and_is_taken_back(
    apiserver: ApiServer, kubectl: Kubectl, token: str, tmp_path: Path
) -> None:
    begin = audit.end(apiserver.audit_log)
    config = kubeconfig(apiserver.kubeconfig, tmp_path / "kubeconfig", token)
    many = [device(f"gpu-{number}") for number in range(2, 130)]
    async with publishing(config, kubectl) as slices:
        slices.publisher.want([device("gpu-0"), TAINTED, *many])
        names = {f"gpu-{number}" for number in range(130)}
        found = await slices.until(names)
        [taint] = found["gpu-1"]["taints"]
        assert (taint["value"], taint["effect"]) == ("Xid79", "NoSchedule")
        assert len(kubectl.items("resourceslices")) == 3
        kubectl.run("delete", "resourceslices", "--all")
        assert (await slices.until(names))["gpu-1"]["taints"][0]["value"] == "Xid79"
        before = slices.publisher.written
        slices.publisher.want([device("gpu-0"), TAINTED, *many])
        slices.publisher.want([device("gpu-0")])
        await slices.until({"gpu-0"})
        slices.publisher.want(None)
        await slices.until(set())
        assert slices.publisher.written > before
        with contextlib.closing(KubeStore(str(config))) as store:
            assert await store.claim("ml", "none") == {}
    made = [
        each for each in audit.requests(apiserver.audit_log, after=begin) if each.account == f"{NAMESPACE}:{ACCOUNT}"
    ]
    assert [each.text for each in made if each.refused] == []
    reviews: set[Right] = {("authentication.k8s.io", "selfsubjectreviews", "create")}
    assert audit.used(made, f"{NAMESPACE}:{ACCOUNT}") - reviews == audit.granted([role()])


async def test_devices_that_claims_share_are_stored_as_they_are_meant_and_written_once(
    apiserver: ApiServer, kubectl: Kubectl, token: str, tmp_path: Path
) -> None:
    config = kubeconfig(apiserver.kubeconfig, tmp_path / "kubeconfig", token)
    devices = shared_devices()
    names = {one["name"] for one in devices}
    assert len(names) == 8
    async with publishing(config, kubectl) as slices:
        slices.publisher.want(devices)
        found = await slices.until(names)
        assert (slices.publisher.problem, slices.publisher.drops, slices.publisher.written) == ("", frozenset(), 1)
        assert dropped({"devices": devices}, {"devices": list(found.values())}) == frozenset()
        kept = [stored(piece) for piece in kubectl.items("resourceslices")]
        assert writes(NODE, DRA_DRIVER, devices, kept) == Writes()
        slices.publisher.want([])
        await slices.until(set())


@pytest.mark.long
async def test_where_the_server_drops_sharing_and_taints_such_devices_are_left_out_and_no_whole_one_slips_out(
    tmp_path: Path,
) -> None:
    """As Kubernetes 1.34 and 1.35 have it by default."""
    off = "DRAConsumableCapacity=false,DRAFractionalCapacityRange=false,DRADeviceTaints=false,DRADeviceTaintRules=false"
    with ApiServer(tmp_path / "apiserver", gates=off) as server:
        kubectl = Kubectl(server.kubeconfig, str(server.kubectl))
        kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        async with publishing(server.kubeconfig, kubectl) as slices:
            others = [device("bad", taints=TAINTED["taints"]), *shared_devices()]
            slices.publisher.want([device("whole"), *others])
            await slices.until({"whole"})
            assert slices.publisher.drops == {"taints", "allowMultipleAllocations"}
            assert slices.publisher.left_out == {one["name"] for one in others}
            assert slices.publisher.written == 1, "none was stored as another thing meanwhile"


@settings(
    max_examples=scaled(500, share=20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
@given(LINES)
def test_whatever_a_probe_says_is_stored_as_it_is_published_and_what_is_left_out_is_named(
    apiserver: ApiServer, token: str, said: Snapshot
) -> None:
    try:
        line = parse_line(encode(said))
    except ProbeLineError:
        assume(False)
        raise
    inputs = Inputs(snapshot=line, arrived=1.0, holdings=Holdings(state=HoldersState.SYNCED, taken=1.0))
    world = step(begin(State(), LOCAL, now=START, monotonic=0.0), inputs, LOCAL, now=START, monotonic=1.0).world
    found = published(world.known.inventory)
    agent = Account.of(apiserver.kubeconfig, token)
    for name, spec in writes(NODE, DRA_DRIVER, found.devices, ()).creates.items():
        kept = agent.request("POST", f"{SLICES}?dryRun=All", body(name) | {"spec": spec})["spec"]
        assert not dropped(spec, kept)
        assert [(one["name"], one["attributes"]) for one in kept.get("devices", ())] == [
            (one["name"], one["attributes"]) for one in spec["devices"]
        ]
    names = device_names(world.known.inventory)
    stored = {one["name"]: one["attributes"] for one in found.devices}
    for device in world.known.inventory.devices:
        said_of_it = stored.get(names[device.fact.id], {})
        told = [name for name, value in device.fact.extra.items() if value.string != ""]  # an empty text says nothing
        for extra in told if said_of_it else ():
            assert extra in said_of_it or extra.rpartition("/")[2] in " ".join(found.unsaid[names[device.fact.id]])


def body(name: str, **spec: Any) -> Json:
    pool = {"name": spec.get("nodeName", NODE), "generation": 1, "resourceSliceCount": 1}
    wanted = {"driver": DRA_DRIVER, "nodeName": NODE, "pool": pool} | spec
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": wanted}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeName": "node-b"}, "node node-a may not write ResourceSlices of another node"),
        ({"driver": "gpu.nvidia.com"}, "only ResourceSlices of the driver nodedevices.io"),
    ],
)
def test_an_agent_writes_no_slice_of_another_node_or_driver(
    apiserver: ApiServer, kubectl: Kubectl, token: str, spec: Json, why: str
) -> None:
    agent = Account.of(apiserver.kubeconfig, token)
    with pytest.raises(Refused, match=why):
        agent.request("POST", SLICES, body("stolen", **spec))
    kubectl.apply(body("theirs", **spec))
    with pytest.raises(Refused, match=why):
        agent.request("DELETE", f"{SLICES}/theirs")
