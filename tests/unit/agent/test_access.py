"""How containers get their devices: what nvidia-ctk has to make before anything is decided, and what follows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_plugin.model import ContainerEdits
from nodedevices_plugin.pipeline.assess import Assessment, assess
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, ToolkitDevice
from nodedevices_plugin.vendors.nvidia.cdi import GPU_KIND, CtkRequest
from nodedevices_probe.protocol import DeviceFact, Partition
from support.cases import cases
from support.facts import gpu, gpu_id, mig_id, old, snapshot
from support.local import at_once
from support.stepped_node import Node
from support.there import there

LOCAL = at_once(["--node-name=n1", "--nvidia-cdi-hook-path=/usr/bin/nvidia-ctk"], {})
DEVICES = (gpu(0, readings=old()), gpu(1, readings=old()))
BY_CDI = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
BY_INDEX = {"injection": {"deviceListStrategies": ["cdi-cri"], "deviceIDStrategy": "index"}}
PLAIN: dict[str, Any] = {}
NOTHING = CdiEnvironment()
MADE = CdiEnvironment(made=frozenset({gpu_id(0), gpu_id(1)}), kept=True)
TOOLKIT = CdiEnvironment(
    toolkit=tuple(ToolkitDevice(name=str(each), nodes=frozenset({f"/dev/nvidia{each}"})) for each in (0, 1)),
    toolkit_libraries=True,
)


def made() -> Node:
    return Node(*DEVICES, local=LOCAL)


def using(node: Node, requested: dict[str, Any], environment: CdiEnvironment) -> Node:
    """A line later, with what CDI finds given between the halves of the step."""
    return node.given(cdi={"nvidia": environment}).now(requested)


def assessed(node: Node, requested: dict[str, Any], *devices: DeviceFact) -> Assessment:
    """The first half of the next step."""
    line = snapshot(*devices) if devices else None
    inputs = replace(node.sees(config=requested).inputs, snapshot=line, arrived=node.clock + 1)
    return assess(node.world, inputs, LOCAL, now=node.time + timedelta(seconds=1), monotonic=node.clock + 1)


def toolkit_request(node: Node, requested: dict[str, Any], environment: CdiEnvironment) -> CtkRequest | None:
    assessment = assessed(node, requested, *DEVICES)
    request = assessment.with_cdi({"nvidia": environment}).program_requests().get("nvidia")
    assert request is None or isinstance(request, CtkRequest)
    return request


def needed(node: Node) -> tuple[tuple[str, ...], CtkRequest | None]:
    """The kinds of the specifications that are needed, and what nvidia-ctk has to make."""
    needs = node.world.access.cdi.get("nvidia") or CdiNeeds()
    assert needs.request is None or isinstance(needs.request, CtkRequest)
    return tuple(each.kind for each in needs.specs), needs.request


def first_gpu(node: Node) -> ContainerEdits:
    """What a container with it gets."""
    [resource] = node.plan.resources
    return node.container(resource.name, gpu_id(0))


def test_what_would_be_refused_without_a_specification_is_requested_before_it_is_decided() -> None:
    node = made()
    request = there(toolkit_request(node, BY_CDI, NOTHING))
    assert (sorted(request.names), request.hook_path) == (sorted([gpu_id(0), gpu_id(1)]), "/usr/bin/nvidia-ctk")
    assert using(node, BY_CDI, NOTHING).config == "ConfigInvalid"
    assert using(node, BY_CDI, MADE).config == "Applied"


@cases(
    ("requested", "environment"),
    pytest.param(BY_CDI, MADE, id="it is made"),
    pytest.param(BY_CDI, TOOLKIT, id="the container toolkit has all"),
    pytest.param(PLAIN, NOTHING, id="no container gets devices by CDI"),
    pytest.param(BY_CDI | {"serving": {"mode": "Observe"}}, NOTHING, id="another plugin serves"),
)
def test_nothing_is_requested_that_is_not_needed(requested: dict[str, Any], environment: CdiEnvironment) -> None:
    assert toolkit_request(made(), requested, environment) is None


def test_a_gpu_in_mig_mode_that_is_offered_whole_has_no_cdi_name_and_is_withheld() -> None:
    part = Partition(id=mig_id(1, 0), index=0, profile="1g.10gb", gi=7, ci=0, start=0, size=1)
    cut = gpu(1, readings=old(), mig_enabled=True, partitions=(part,))
    names = CdiEnvironment(made=frozenset({gpu_id(0), part.id}), kept=True)
    node = Node(DEVICES[0], cut, local=LOCAL)
    assert using(node, BY_CDI, names).offers == {"nvidia.com/gpu": [gpu_id(0)]}
    [resource] = node.plan.resources
    [withheld] = [each.blocked for each in resource.ids if each.blocked is not None]
    assert (withheld.reason, "set partitions.strategy" in withheld.message) == ("NoCDISpecification", True)
    offered = using(node, BY_CDI | {"partitions": {"strategy": "mixed"}}, names).offers
    assert offered == {"nvidia.com/gpu": [gpu_id(0)], "nvidia.com/mig-1g.10gb": [part.id]}


def test_before_the_first_line_it_is_not_known_for_which_devices_to_query() -> None:
    assert assessed(made(), BY_CDI, *DEVICES).uses_cdi
    assert not assessed(made(), BY_CDI).with_cdi({"nvidia": NOTHING}).program_requests()


def test_while_cdi_is_refused_the_way_in_effect_goes_on_and_other_names_come_with_the_last_good_libraries() -> None:
    node = using(using(made(), PLAIN, NOTHING), BY_CDI, NOTHING)
    assert node.config == "ConfigInvalid"
    assert not first_gpu(node).cdi_devices
    assert needed(node) == ((), None)
    assert toolkit_request(node, BY_CDI, NOTHING) is not None, "and it is requested again"
    node = using(using(made(), BY_CDI, MADE), BY_INDEX, MADE)
    _, request = needed(node)
    assert request is not None
    assert (sorted(request.names), request.id_strategy) == (["0", "1"], "index")


def test_what_containers_get_follows_from_what_is_in_effect() -> None:
    node = using(made(), BY_CDI, MADE)
    assert needed(node)[0] == (GPU_KIND,)
    assert first_gpu(node).cdi_devices == (f"{GPU_KIND}={gpu_id(0)}",)
    using(node, BY_CDI, TOOLKIT)
    assert needed(node) == ((), None)
    assert first_gpu(node).cdi_devices == ("nvidia.com/gpu=0",)
    using(node, PLAIN, TOOLKIT)
    assert first_gpu(node).envs == {"NVIDIA_VISIBLE_DEVICES": gpu_id(0)}
