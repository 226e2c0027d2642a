"""NVIDIA's Multi-Process Service: what a node allows, what a client gets, what a daemon is sent and waited for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from nodedevices_api.sections import OfferMatch, Partitions, ResourceRule, Resources, SharedResource, Sharing
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Mount, Plan, SharingFacts
from nodedevices_plugin.offering.shape import PlanError, PlanSettings
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.pipeline.access import awaited
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.daemons import MpsFacts, silent, starting, unanswered, wanted as daemons
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.vendors.nvidia.vendor import InjectionContext
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.daemons import answers as said
from support.facts import GIB, START, gpu, gpu_id, healthy, inventory_of, partition, snapshot
from support.offers import allocate
from support.plans import make_plan

ROOT = "/run/nvidia/mps"
HOLDER = Holder(
    namespace="ml", pod="a", container="main", resource="nvidia.com/gpu", ids=(f"{gpu_id(0)}::1",), since=START
)
HELD = Holdings(state=HoldersState.SYNCED, holders=(HOLDER,))


def clients(
    *gpus: DeviceFact,
    replicas: int = 4,
    devices: tuple[str, ...] | None = None,
    rename: bool = False,
    mig: str = "none",
    root: str = ROOT,
) -> Plan:
    rule = SharedResource(name="nvidia.com/gpu", replicas=replicas, devices=devices)
    sharing = Sharing(strategy="mps", resources=(rule,), rename_by_default=rename, fail_requests_greater_than_one=True)
    settings = PlanSettings(sharing=sharing, partitions=Partitions(strategy=mig), modes=Settings(mps_root=root))
    return make_plan(inventory_of(*gpus), healthy(*gpus), settings)


def test_clients_are_ids_like_other_shares_and_mps_needs_its_directory_and_no_mig() -> None:
    (resource,) = clients(gpu(0), gpu(1)).resources
    assert (resource.name, resource.sharing) == ("nvidia.com/gpu", SharingFacts(mode=Mps(), replicas=4))
    assert [each.id for each in resource.ids][:5] == [*(f"{gpu_id(0)}::{n}" for n in range(4)), f"{gpu_id(1)}::0"]
    with pytest.raises(PlanError, match=r"sharing\.strategy: mps: needs .*--mps-root"):
        clients(gpu(0), root="")
    with pytest.raises(PlanError, match=r"sharing\.strategy: mps: not possible with partitions\.strategy mixed"):
        clients(gpu(0), mig="mixed")
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0),))
    with pytest.raises(PlanError, match="cannot share MIG devices; use timeSlicing"):
        clients(cut, mig="single")


@cases(("capability", "most"), ("6.1", 16), ("7.0", 48), ("7.5", 48), ("8.0", 48), ("10.0", 48), ("", 48), ("?", 48))
def test_a_gpu_takes_so_many_clients(capability: str, most: int) -> None:
    """NVIDIA's plugin holds a V100 (7.0) to 16; the daemon takes 48 from Volta on. A lost GPU says nothing."""
    assert mps.max_clients(capability) == most
    assert len(clients(gpu(0, compute_capability=capability), replicas=most).resources[0].ids) == most
    with pytest.raises(PlanError, match=rf"\.replicas: {most + 1}: GPU 0 .* takes {most} MPS clients at most"):
        clients(gpu(0, compute_capability=capability), replicas=most + 1)


def test_clients_and_whole_gpus_need_names_of_their_own() -> None:
    with pytest.raises(PlanError, match=r"\.devices: 1: .*names of their own; give rename"):
        clients(gpu(0), gpu(1), devices=("1",))
    many = tuple(gpu_id(index) for index in range(8))
    with pytest.raises(PlanError) as caught:
        clients(*(gpu(index) for index in range(9)), devices=many)
    assert caught.value.value == ", ".join(many)[:128]
    found = clients(gpu(0), gpu(1), devices=("1",), rename=True)
    assert [(each.name, each.sharing.name, len(each.ids)) for each in found.resources] == [
        ("nvidia.com/gpu", "none", 1),
        ("nvidia.com/gpu.shared", "mps", 4),
    ]


@cases(
    ("rule", "says"),
    (
        SharedResource(name="nvidia.com/gpu", replicas=4, rename="shm/gpu"),
        r"sharing\.resources\[nvidia\.com/gpu\]\.rename: shm/gpu: .*choose another domain, such as nvidia\.com/gpu",
    ),
    (
        SharedResource(name="shm/gpu", replicas=4),
        r"sharing\.resources\[shm/gpu\]\.name: shm/gpu: .*choose another domain, such as nvidia\.com/gpu",
    ),
)
def test_a_name_whose_folder_would_be_in_the_clients_shared_memory_is_refused(rule: SharedResource, says: str) -> None:
    found = inventory_of(gpu(0))
    sharing = Sharing(strategy="mps", resources=(rule,))
    resources = Resources(devices=(ResourceRule(match=OfferMatch(type="gpu"), name=rule.name),))
    settings = PlanSettings(sharing=sharing, resources=resources, modes=Settings(mps_root=ROOT))
    with pytest.raises(PlanError, match=says):
        make_plan(found, healthy(gpu(0)), settings)
    sliced = replace(settings, sharing=Sharing(strategy="timeSlicing", resources=(rule,)))
    (resource,) = make_plan(found, healthy(gpu(0)), sliced).resources
    assert resource.name == "shm/gpu", "no other mode has folders by name"


def test_a_client_gets_the_pipe_of_its_resource_and_the_shared_memory() -> None:
    resource = clients(gpu(0), rename=True).resources[0]
    answer = allocate(resource, [f"{gpu_id(0)}::1"], InjectionContext(), modes=Settings(mps_root=f"{ROOT}/"))
    assert answer.envs == {
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe",
        "NVIDIA_VISIBLE_DEVICES": gpu_id(0),
    }
    assert answer.mounts == (
        Mount(
            container_path="/mps/nvidia.com/gpu.shared/pipe",
            host_path="/run/nvidia/mps/nvidia.com/gpu.shared/pipe",
            read_only=False,
        ),
        Mount(container_path="/dev/shm", host_path="/run/nvidia/mps/shm", read_only=False),
    )


def test_the_daemon_of_a_resource_splits_its_gpus_evenly() -> None:
    gpus = (gpu(0, memory_bytes=40 * GIB), gpu(1, memory_bytes=80 * GIB), gpu(2))
    plan = clients(*gpus, replicas=3, devices=("0", "1"), rename=True)
    (daemon,) = daemons(plan, inventory_of(*gpus))
    assert daemon == mps.MpsDaemon(
        resource="nvidia.com/gpu.shared",
        percentage=33,
        gpus=(mps.Gpu(id=gpu_id(0), index=0, limit_mib=13653), mps.Gpu(id=gpu_id(1), index=1, limit_mib=27306)),
    )
    assert (mps.thread_command(daemon.percentage), *mps.memory_commands(daemon.gpus)) == (
        "set_default_active_thread_percentage 33",
        "set_default_device_pinned_mem_limit 0 13653M",
        "set_default_device_pinned_mem_limit 1 27306M",
    )


def test_without_mps_or_for_a_gpu_that_left_there_is_no_daemon() -> None:
    lost = gpu(1, memory_bytes=0)
    (daemon,) = daemons(clients(gpu(0), lost), inventory_of(gpu(0), lost))
    assert [command.split()[1] for command in mps.memory_commands(daemon.gpus)] == ["0"]
    gone = stage.update(inventory_of(gpu(0), gpu(1)), snapshot(gpu(0)), now=START, monotonic=1)
    (daemon,) = daemons(clients(gpu(0), gpu(1)), gone)
    assert [each.id for each in daemon.gpus] == [gpu_id(0)]
    plan = make_plan(inventory_of(gpu(0)), {}, PlanSettings())
    assert daemons(plan, inventory_of(gpu(0))) == ()
    assert unanswered(plan, {}) == ()


def test_shares_are_offered_when_their_daemon_answers_however_long_a_clients_list_is() -> None:
    plan = clients(gpu(0), gpu(1))
    assert unanswered(plan, {}) == unanswered(plan, said({("nvidia.com/gpu", 50): ""})) == plan.resources
    [shared] = plan.resources
    assert silent(shared, {}).endswith("control daemon of nvidia.com/gpu has not been queried yet")
    assert silent(shared, said({("nvidia.com/gpu", 25): "does not answer"})).endswith("nvidia.com/gpu does not answer")
    assert unanswered(plan, said({("nvidia.com/gpu", 25): ""})) == ()
    answer = "\n".join(["4711", "4711", "x", "9" * 5000, *map(str, range(1, 100_000))])
    assert mps.servers(answer)[:2] == (4711, 1)
    assert len(mps.servers(answer)) == mps.MAX_SERVERS
    assert mps.servers("4194304 41943040") == (4194304,), "the kernel's largest process id, and none"


@cases(
    ("answers", "only_starting"),
    ({}, True),
    ({("nvidia.com/gpu", 25): "is being started"}, True),
    ({("nvidia.com/gpu", 25): "does not answer: no such file"}, False),
    ({("nvidia.com/gpu", 50): "does not answer: of other limits"}, True),
)
def test_a_daemon_that_starts_is_no_failing_one(answers: dict[tuple[str, int], str], only_starting: bool) -> None:
    assert starting(clients(gpu(0), gpu(1)), said(answers)) is only_starting


@cases(
    ("answers", "holdings", "wanted"),
    pytest.param({("nvidia.com/gpu", 25): ""}, HELD, True, id="a pod holds a share"),
    pytest.param({("nvidia.com/gpu", 25): ""}, replace(HELD, holders=()), False, id="no pod does"),
    pytest.param({("nvidia.com/gpu", 25): ""}, Holdings(state=HoldersState.INCOMPLETE), True, id="not known"),
    pytest.param({}, HELD, False, id="it does not run"),
)
def test_a_daemon_of_a_name_that_another_plugin_serves_stays_while_pods_hold_its_shares(
    answers: dict[tuple[str, int], str], holdings: Holdings, wanted: bool
) -> None:
    facts = MpsFacts(statuses=said(answers))
    found = awaited(clients(gpu(0)), inventory_of(gpu(0)), holdings, facts, {"nvidia.com/gpu"})
    assert bool(found.daemons) is wanted
