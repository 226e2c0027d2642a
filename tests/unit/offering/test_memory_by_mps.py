"""Limits of memory shares that MPS enforces: the daemon that a resource needs, and what each of its clients gets."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_api.sections import Partitions, SharedResource, Sharing
from nodedevices_plugin.granting.answers import NodeContainers, edits, grant
from nodedevices_plugin.model import Mount, OfferedResource, PlanError
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.daemons import has_daemon, silent, unanswered, wanted
from nodedevices_plugin.vendors.nvidia.vendor import InjectionContext
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.daemons import answers
from support.facts import GIB, gpu, gpu_id, healthy, inventory_of, partition
from support.offers import allocate
from support.plans import make_plan

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
ROOT = Settings(mps_root="/run/nvidia/mps")
L4 = gpu(0, memory_bytes=23034 * (1 << 20))


def plan(*gpus: DeviceFact, mig: str = "none", modes: Settings = ROOT, **rule: Any) -> Any:
    shared = SharedResource(name=GPU, **{"memory_unit": "1Gi", "enforcement": "mps", **rule})
    sharing = Sharing(strategy="memory", resources=(shared,))
    settings = PlanSettings(sharing=sharing, partitions=Partitions(strategy=mig), modes=modes)
    return make_plan(inventory_of(*gpus), healthy(*gpus), settings)


def offered(*gpus: DeviceFact, **rule: Any) -> OfferedResource:
    [found] = plan(*gpus, **rule).resources
    return found  # type: ignore[no-any-return]


def ids(number: int, count: int) -> list[str]:
    return [f"{gpu_id(number)}::1Gi.{share}" for share in range(count)]


def test_its_daemon_gives_a_client_without_limits_what_is_divided_and_no_more() -> None:
    """Clients can only lower the daemon's limits, so that these are what the largest request may have."""
    other = gpu(1, memory_bytes=80 * GIB)
    [daemon] = wanted(plan(L4, other, memory_reserve="512Mi"), inventory_of(L4, other))
    assert daemon == mps.MpsDaemon(
        resource=MEMORY,
        percentage=100,
        gpus=(mps.Gpu(id=gpu_id(0), index=0, limit_mib=21 * 1024), mps.Gpu(id=gpu_id(1), index=1, limit_mib=79 * 1024)),
    )


def test_a_container_is_a_client_with_limits_of_its_own() -> None:
    found = allocate(offered(L4), ids(0, 8), InjectionContext(), modes=ROOT)
    assert found.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{MEMORY}/pipe"
    assert found.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert found.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "36", "8 of 22 shares"
    assert found.envs["NODEDEVICES_MEMORY_LIMIT_MIB"] == "8192"
    assert found.envs["NVIDIA_VISIBLE_DEVICES"] == gpu_id(0)
    pipe = f"/mps/{MEMORY}/pipe"
    assert found.mounts == (
        Mount(container_path=pipe, host_path=f"/run/nvidia{pipe}", read_only=False),
        Mount(container_path="/dev/shm", host_path="/run/nvidia/mps/shm", read_only=False),
    )


def test_without_enforcement_nobody_is_a_client_and_shares_wait_for_the_daemon_that_has_it() -> None:
    for enforcement in ("none", None):
        resource = offered(L4, enforcement=enforcement, modes=Settings())
        found = allocate(resource, ids(0, 1), InjectionContext())
        assert not [name for name in found.envs if name.startswith("CUDA_MPS")]
        assert (found.mounts, has_daemon(resource)) == ((), False)
    statuses = answers({(MEMORY, 100): "does not answer: no"})
    [waiting] = unanswered(plan(L4), statuses)
    waits = silent(waiting, statuses)
    assert waits == f"sharing.resources: enforcement: mps: the control daemon of {MEMORY} does not answer: no"
    assert not unanswered(plan(L4), answers({(MEMORY, 100): ""}))
    assert len(offered(gpu(0, memory_bytes=141 * GIB)).ids) == 141


@cases(("units", "of", "percent"), (22, 22, "100"), (1, 22, "4"), (1, 141, "1"), (7, 8, "87"))
def test_threads_go_with_memory_and_all_together_have_no_more_than_all(units: int, of: int, percent: str) -> None:
    card = gpu(0, memory_bytes=of * GIB)
    envs = allocate(offered(card), ids(0, units), InjectionContext(), modes=ROOT).envs
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent


@cases(("cores", "threads"), (50, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}), (None, {}))
def test_where_computing_power_is_shared_threads_go_with_that_and_are_not_limited_on_a_guess(
    cores: int | None, threads: dict[str, str]
) -> None:
    resource = offered(L4, cores=True)
    granted = replace(grant(resource, ids(0, 2)), cores=cores)
    node = NodeContainers(vendors={gpu_id(0): "nvidia"}, by_vendor={"nvidia": InjectionContext()}, modes=ROOT)
    envs = edits(granted, node).envs
    assert {name: value for name, value in envs.items() if "THREAD" in name} == threads
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"


@cases(
    ("gpus", "settings", "why"),
    ((L4,), {"modes": Settings()}, r"\.enforcement: mps: needs .*--mps-root"),
    (
        (L4,),
        {"mig": "mixed"},
        r"\.enforcement: mps: not possible with partitions\.strategy mixed; use enforcement none",
    ),
    (
        (gpu(0, mig_enabled=True, partitions=(partition(0, 0),)),),
        {"mig": "single"},
        r"\.enforcement: MIG-.*: MPS cannot share MIG devices; use enforcement none",
    ),
)
def test_what_mps_cannot_do_is_refused(gpus: tuple[DeviceFact, ...], settings: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=rf"sharing\.resources\[{GPU}\]{why}"):
        plan(*gpus, **settings)
