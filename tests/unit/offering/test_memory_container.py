"""What a policy gives containers with shares of memory: variables made of what they have, and files of the node."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_api.container import WORDS
from nodedevices_api.errors import parse
from nodedevices_api.sections import Injection, SharedResource, Sharing
from nodedevices_plugin.granting.answers import edits, grant, node_containers
from nodedevices_plugin.model import AllocationError, ContainerEdits, Mount, OfferedResource
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.sharing.base import Settings, mode_of
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import gpu, gpu_id, healthy, inventory_of
from support.plans import make_plan
from support.there import there

GPU = "nvidia.com/gpu"
L4 = gpu(0, memory_bytes=23034 * (1 << 20))
LIBRARY = {"hostPath": "/opt/limiter/lib/libvgpu.so", "containerPath": "/usr/local/vgpu/libvgpu.so"}
PRELOAD = {"hostPath": "/opt/limiter/ld.so.preload", "containerPath": "/etc/ld.so.preload"}


def offered(env: dict[str, str] | None = None, mounts: tuple[dict[str, str], ...] = (), **more: Any) -> OfferedResource:
    template = {"env": [{"name": name, "value": value} for name, value in (env or {}).items()], "mounts": [*mounts]}
    rule = parse(SharedResource, {"name": GPU, "memoryUnit": "1Gi", "container": template, **more})
    settings = PlanSettings(sharing=Sharing(strategy="memory", resources=(rule,)), modes=Settings(mps_root="/run/mps"))
    [resource] = make_plan(inventory_of(L4), healthy(L4), settings).resources
    return resource


def container(
    resource: OfferedResource, units: int = 8, allowed: tuple[str, ...] = (), *gpus: DeviceFact
) -> ContainerEdits:
    node = node_containers(inventory_of(*(gpus or (L4,))), Injection(), modes=Settings(mount_dirs=allowed))
    return edits(grant(resource, [f"{gpu_id(0)}::1Gi.{share}" for share in range(units)]), node)


def test_every_word_of_the_schema_is_replaced_by_what_the_container_has() -> None:
    found = container(offered({word: f"$({word})" for word in WORDS}))
    assert {word: found.envs[word] for word in WORDS} == {
        "MEMORY_LIMIT_MIB": "8192",
        "MEMORY_LIMIT_BYTES": str(8 << 30),
        "MEMORY_TOTAL_MIB": "23034",
        "MEMORY_FRACTION": "0.3556",
        "MEMORY_UNITS": "8",
        "DEVICE_ID": gpu_id(0),
        "DEVICE_INDEX": "0",
    }


def test_a_limiter_library_gets_its_limit_and_its_files_read_only_and_text_beside_words_stays() -> None:
    resource = offered({"CUDA_DEVICE_MEMORY_LIMIT_0": "$(MEMORY_LIMIT_MIB)m"}, (LIBRARY, PRELOAD))
    found = container(resource, 4, ("/opt/other", "/opt/limiter"))
    assert found.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert found.mounts == tuple(
        Mount(host_path=each["hostPath"], container_path=each["containerPath"], read_only=True)
        for each in (LIBRARY, PRELOAD)
    )
    assert container(offered({"A": "$x $$(MEMORY_UNITS)/$(MEMORY_UNITS)$"}), 2).envs["A"] == "$x $2/2$"


def test_it_goes_with_limits_by_mps() -> None:
    resource = offered({"XLA_PYTHON_CLIENT_MEM_FRACTION": "$(MEMORY_FRACTION)"}, (LIBRARY,), enforcement="mps")
    found = container(resource, 8, ("/opt/limiter",))
    assert found.envs["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.3556"
    assert found.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert len(found.mounts) == 3


@cases(
    ("allowed", "possible"),
    (("/opt/limiter",), True),
    (("/opt/limiter/lib/libvgpu.so",), True),
    (("/opt",), True),
    ((), False),
    (("/opt/limit",), False),
    (("/opt/limiter/lib/libvgpu",), False),
    (("/usr",), False),
)
def test_a_path_is_mounted_only_below_a_folder_that_the_node_allows(allowed: tuple[str, ...], possible: bool) -> None:
    resource = offered(mounts=(LIBRARY,))
    mode = there(mode_of(resource))
    why = mode.refusal(resource, Settings(mount_dirs=allowed))
    assert (why is None) is possible
    if possible:
        assert container(resource, 1, allowed).mounts
    else:
        said = f"sharing.resources[].container.mounts: {LIBRARY['hostPath']}: this node allows "
        assert str(why).startswith(said + (" and ".join(allowed) or "no directory"))
        with pytest.raises(
            AllocationError, match=r"libvgpu\.so, which this node does not allow \(--container-mount-dir\);"
        ):
            container(resource, 1, allowed)
