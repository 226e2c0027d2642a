"""A sharing mode that is a file, and is passed in, goes through the whole pipeline as MPS does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_plugin.model import Holder
from nodedevices_plugin.sharing.base import HelperFacts, HelperProcess
from nodedevices_plugin.sharing.clients import client_verdict, with_helpers
from nodedevices_plugin.sharing.registry import MODES, SharingModes
from support.exclusive_window import NAME, ExclusiveWindow, Keeper, KeeperKind
from support.facts import START, gpu, gpu_id, old
from support.offers import allocate
from support.sharing import answers, facts
from support.stepped_node import LOCAL, Node

GPU = "nvidia.com/gpu"
DEVICES = (gpu(0, readings=old()), gpu(1, readings=old()))
RUNS = facts({(GPU, 3): ""})


def config(replicas: int = 3, **more: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": NAME, "resources": [{"name": GPU, "replicas": replicas, **more}]}}


WHOLE: dict[str, Any] = {}
SLICES = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 3}]}}


MODES_HERE = MODES.with_(ExclusiveWindow())


def node_with(helpers: HelperFacts | None = None, *, modes: SharingModes = MODES_HERE) -> Node:
    return helped(Node(*DEVICES, local=dataclasses.replace(LOCAL, modes=modes)), helpers or HelperFacts())


def helped(node: Node, helpers: HelperFacts) -> Node:
    """From now on these are the facts of its helpers."""
    node.given(helpers=helpers)
    return node


def holder(id_: str, pod: str = "train-0") -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=GPU, ids=(id_,), since=START)


def test_where_it_is_not_passed_in_the_agent_says_what_may_be_chosen() -> None:
    node = node_with(modes=MODES).now(config())
    assert node.world.config.reason == "ConfigInvalid"
    said = f'sharing.strategy: "{NAME}" is not allowed; choose none, timeSlicing, mps or memory'
    assert said in node.world.config.message


def test_its_shares_are_offered_when_its_helper_answers_and_its_containers_get_its_variable() -> None:
    node = node_with().now(config())
    assert (node.world.config.reason, node.counts) == ("WaitingForDaemon", {})
    ids = frozenset({gpu_id(0), gpu_id(1)})
    assert node.world.helpers == (Keeper(resource=GPU, windows=3, device_ids=ids),)
    helped(node, RUNS).now(config())
    assert (node.world.config.reason, node.counts) == ("Applied", {GPU: (6, 6)})
    assert node.world.plan is not None
    [resource] = node.world.plan.resources
    assert (resource.sharing.name, resource.sharing.replicas) == (NAME, 3)
    assert allocate(resource, [f"{gpu_id(1)}::2"], node.world.access.containers).envs == {
        "EXCLUSIVE_WINDOW": "2 of 3",
        "NVIDIA_VISIBLE_DEVICES": gpu_id(1),
    }


@pytest.mark.parametrize(
    ("requested", "said"),
    [
        (config(9), f"sharing.resources[{GPU}].replicas: 9: a device has 8 windows at most"),
        (
            {**config(), "partitions": {"strategy": "mixed"}},
            f"sharing.strategy: {NAME}: windows are of whole devices; use partitions.strategy none",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_in_its_words_and_the_last_good_configuration_stays(
    requested: dict[str, Any], said: str
) -> None:
    node = node_with(RUNS).now(config()).now(requested)
    assert (node.world.config.reason, node.counts) == ("ConfigInvalid", {GPU: (6, 6)})
    assert said in node.world.config.message


def test_a_change_to_it_and_from_it_waits_for_the_pods_that_hold_the_very_same_ids() -> None:
    share = holder(f"{gpu_id(0)}::1")
    node = helped(node_with().now(SLICES), RUNS).now(config(), share)
    waits = f"the change of {GPU} from timeSlicing to {NAME} waits until these pods have ended: ml/train-0"
    assert (node.world.config.reason, node.world.config.message) == ("WaitingForHolders", waits)
    assert not node.world.helpers
    assert node.now(config()).world.config.reason == "Applied"
    node.now(SLICES, share)
    assert node.world.config.message.startswith(f"the change of {GPU} from {NAME} to timeSlicing waits")
    assert [each.resource for each in node.world.helpers or ()] == [GPU], "its client keeps its helper"
    assert node.now(SLICES).world.helpers == ()


@pytest.mark.parametrize("elsewhere", [WHOLE, SLICES, config(2)], ids=["whole", "slices", "other limits"])
def test_where_the_state_is_lost_a_helper_stays_while_containers_are_its_clients(elsewhere: dict[str, Any]) -> None:
    """Whatever is configured then: the node's own settings, for one, while the operator does not answer."""
    runs = Keeper(resource=GPU, windows=3, device_ids=frozenset({gpu_id(0), gpu_id(1)}))
    client = holder(f"{gpu_id(0)}::1")
    node = node_with(replace(RUNS, before=(runs,))).now(elsewhere, client)
    assert runs in (node.world.helpers or (runs,))
    assert {healthy for _, healthy in node.counts.values()} <= {0}, "its devices take nobody but its clients"
    assert node.world.config.reason == "WaitingForHolders"
    node.now(elsewhere)
    assert runs not in (node.world.helpers or ())


def test_a_helper_that_has_ended_is_not_brought_back_by_a_pod_that_gets_its_ids_later() -> None:
    runs = Keeper(resource=GPU, windows=3, device_ids=frozenset({gpu_id(0), gpu_id(1)}))
    node = node_with(replace(RUNS, before=(runs,))).now(SLICES)
    assert node.world.helpers == ()
    node.now(SLICES, holder(f"{gpu_id(0)}::1"))
    assert (node.world.helpers, node.world.config.reason) == ((), "Applied")


def test_its_shares_are_withheld_while_its_helper_is_silent_and_their_holders_are_marked_in_its_words() -> None:
    def keeper(instance: str, *, answers_: bool = True) -> HelperFacts:
        said = answers({(GPU, 3): "" if answers_ else "does not run"})
        return HelperFacts(answers=said, processes={GPU: HelperProcess(answers=answers_, instance=instance)})

    share = holder(f"{gpu_id(0)}::1")
    node = node_with(keeper("one")).now(config()).now(config(), share)
    helped(node, keeper("one", answers_=False)).now(config(), share)
    assert (node.world.config.reason, node.counts) == ("ConfigInvalid", {GPU: (6, 0)})
    assert f"the window keeper of {GPU} does not run; its shares are not offered" in node.world.config.message
    shown = with_helpers(node.world.verdicts, node.world.state.clients, node.world.helpers)
    assert {each.reason for each in shown.values()} == {"WindowKeeperDown"}
    helped(node, keeper("two")).now(config(), share)
    assert node.counts == {GPU: (6, 6)}
    [client] = node.world.state.clients.clients.values()
    verdict = client_verdict(client, GPU, START, MODES_HERE)
    assert verdict is not None
    assert (verdict.reason, verdict.recovery_action) == ("WindowKeeperRestarted", "RestartApp")
    assert "place in the queue from before are lost" in verdict.message


@pytest.mark.parametrize(("exclusive", "wanted"), [(True, False), (False, True)])
def test_only_a_helper_that_takes_its_devices_for_itself_waits_for_pods_that_know_nothing_of_it(
    exclusive: bool, wanted: bool
) -> None:
    modes = MODES.with_(ExclusiveWindow(helper=KeeperKind(exclusive=exclusive)))
    node = node_with(modes=modes).now(config(), holder(gpu_id(0)))
    assert bool(node.world.helpers) is wanted
