"""How containers get their devices: what nvidia-ctk has to make before anything is decided, and what follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from nodedevices_plugin.granting.containers import edits
from nodedevices_plugin.granting.grants import grant
from nodedevices_plugin.model import ContainerEdits, HoldersState, Holdings
from nodedevices_plugin.pipeline.assess import Assessment, assess
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import decide
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.effective import from_saved
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, ToolkitDevice
from nodedevices_plugin.vendors.nvidia.cdi import GPU_KIND
from nodedevices_plugin.vendors.nvidia.ctk import CtkRequest
from support.facts import START, gpu, gpu_id, old, snapshot

LOCAL = parse(["--node-name=n1", "--operator-wait-seconds=0", "--nvidia-cdi-hook-path=/usr/bin/nvidia-ctk"], {})
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


class Node:
    """Both halves of each step, with what CDI finds given between them."""

    def __init__(self) -> None:
        self.clock = 100.0
        self.saved: State = State()
        self.world: World = begin(State(), LOCAL, now=START, monotonic=self.clock)

    def assessed(self, requested: dict[str, Any]) -> tuple[Assessment, Inputs]:
        self.clock += 1
        inputs = Inputs(
            snapshot=snapshot(*DEVICES),
            arrived=self.clock,
            seen=SeenObject(exists=True, generation=1, config=requested),
            holdings=Holdings(state=HoldersState.SYNCED, taken=1.0),
            saved=from_saved(self.saved.applied) if self.saved.applied is not None else None,
        )
        at = START + timedelta(seconds=self.clock)
        return assess(self.world, inputs, LOCAL, now=at, monotonic=self.clock), inputs

    def toolkit_request(self, requested: dict[str, Any], environment: CdiEnvironment) -> CtkRequest | None:
        request = self.assessed(requested)[0].program_requests(frozenset(), {"nvidia": environment}).get("nvidia")
        assert request is None or isinstance(request, CtkRequest)
        return request

    def now(self, requested: dict[str, Any], environment: CdiEnvironment) -> Node:
        for _ in range(2):  # a change, and its save
            assessment, inputs = self.assessed(requested)
            self.world = decide(assessment, replace(inputs, cdi={"nvidia": environment}), LOCAL).world
            self.saved = self.world.state
        return self

    @property
    def cdi(self) -> tuple[tuple[str, ...], CtkRequest | None]:
        """The kinds of the specifications that are needed, and what nvidia-ctk has to make."""
        needs = self.world.access.cdi.get("nvidia") or CdiNeeds()
        assert needs.request is None or isinstance(needs.request, CtkRequest)
        return tuple(each.kind for each in needs.specs), needs.request

    def given(self) -> ContainerEdits:
        """What a container with the first GPU gets."""
        assert self.world.plan is not None
        [resource] = self.world.plan.resources
        return edits(grant(resource, [gpu_id(0)]), self.world.access.containers)


def test_what_would_be_refused_without_a_specification_is_requested_before_it_is_decided() -> None:
    node = Node()
    request = node.toolkit_request(BY_CDI, NOTHING)
    assert request is not None
    assert (sorted(request.names), request.hook_path) == (sorted([gpu_id(0), gpu_id(1)]), "/usr/bin/nvidia-ctk")
    assert node.now(BY_CDI, NOTHING).world.config.reason == "ConfigInvalid"
    assert node.now(BY_CDI, MADE).world.config.reason == "Applied"


@pytest.mark.parametrize(
    ("requested", "environment"),
    [
        pytest.param(BY_CDI, MADE, id="it is made"),
        pytest.param(BY_CDI, TOOLKIT, id="the container toolkit has all"),
        pytest.param(PLAIN, NOTHING, id="nobody gets devices by CDI"),
        pytest.param(BY_CDI | {"serving": {"mode": "Observe"}}, NOTHING, id="another plugin serves"),
    ],
)
def test_nothing_is_requested_that_is_not_needed(requested: dict[str, Any], environment: CdiEnvironment) -> None:
    assert Node().toolkit_request(requested, environment) is None


def test_before_the_first_line_nobody_knows_for_which_devices_to_query() -> None:
    node = Node()
    assessment, inputs = node.assessed(BY_CDI)
    assert assessment.uses_cdi
    nothing = assess(node.world, replace(inputs, snapshot=None), LOCAL, now=START, monotonic=1.0)
    assert not nothing.program_requests(frozenset(), {"nvidia": NOTHING})


def test_while_cdi_is_refused_the_way_in_effect_goes_on() -> None:
    node = Node().now(PLAIN, NOTHING).now(BY_CDI, NOTHING)
    assert node.world.config.reason == "ConfigInvalid"
    assert not node.given().cdi_devices
    assert node.cdi == ((), None)
    assert node.toolkit_request(BY_CDI, NOTHING) is not None, "and it is requested again"


def test_other_names_take_effect_with_the_last_good_libraries_and_nvidia_ctk_is_called_for_them() -> None:
    node = Node().now(BY_CDI, MADE).now(BY_INDEX, MADE)
    _, request = node.cdi
    assert request is not None
    assert (sorted(request.names), request.id_strategy) == (["0", "1"], "index")


def test_what_containers_get_follows_from_what_is_in_effect() -> None:
    node = Node().now(BY_CDI, MADE)
    assert node.cdi[0] == (GPU_KIND,)
    assert node.given().cdi_devices == (f"{GPU_KIND}={gpu_id(0)}",)
    node.now(BY_CDI, TOOLKIT)
    assert node.cdi == ((), None)
    assert node.given().cdi_devices == ("nvidia.com/gpu=0",)
    node.now(PLAIN, TOOLKIT)
    assert node.given().envs == {"NVIDIA_VISIBLE_DEVICES": gpu_id(0)}
