"""serving.mode Observe, step by step from literals: another plugin serves the kubelet, this agent only looks."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from nodedevices_api import nodedevices as api
from nodedevices_api.meta import find
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, Registration, RegistrationState
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.settings.flags import Local, parse as parse_flags
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.report import report
from support.facts import START, gpu, gpu_id, old, xid
from support.reports import node_facts
from support.stepped_node import Node
from support.there import there

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
LOCAL = parse_flags(["--node-name=n1"], {})
OBSERVER = parse_flags(["--node-name=n1"], {"NODEDEVICES_SERVING_MODE": "Observe"})
NOBODY = Holdings(state=HoldersState.SYNCED, offered=(), taken=1.0)
THEIRS = replace(NOBODY, offered=(Offer(resource=GPU, ids=(gpu_id(0), gpu_id(1))),))
SLICED = replace(NOBODY, offered=(Offer(resource=GPU, ids=tuple(f"{gpu_id(n)}::{r}" for n in (0, 1) for r in (0, 1))),))
OBSERVE: dict[str, Any] = {"serving": {"mode": "Observe"}}
SERVE: dict[str, Any] = {"serving": {"mode": "Serve"}}


def seen(config: dict[str, Any] | None) -> SeenObject:
    return SeenObject(exists=True, generation=1, config=config, config_hash=None)


def holder(*ids: str, resource: str = GPU) -> Holder:
    return Holder(namespace="ml", pod="train-0", container="main", resource=resource, ids=ids, since=START)


def observer(local: Local = OBSERVER) -> Node:
    """Two GPUs of a driver that cannot say what they need."""
    devices = (gpu(number, readings=old()) for number in range(2))
    return Node(*devices, local=local, holdings=NOBODY, seen=seen({}))


def server() -> Node:
    return observer(LOCAL)


def status(node: Node) -> api.NodeDevicesStatus:
    world = node.world
    return report(
        node_facts(
            inventory=world.known.inventory,
            verdicts=world.known.verdicts,
            plan=world.plan,
            observed=world.observed,
            holdings=world.holdings,
            config=world.config,
            retired=world.state.retired,
            started=START,
            running_seconds=(node.time - START).total_seconds(),
            probes=(ProbeFacts(name="simulated", inventory=world.known.inventory),),
            now=node.time,
        )
    )


def resources(node: Node) -> dict[str, tuple[int, int, int, str]]:
    return {
        each.name: (each.capacity, each.healthy, each.allocated, each.managed_by) for each in status(node).resources
    }


def ready(node: Node) -> tuple[str, str, str]:
    found = there(find(status(node).conditions, "Ready"))
    return found.status, found.reason, found.message


def test_an_observer_by_flag_or_policy_offers_nothing_and_shows_what_the_other_plugin_offers() -> None:
    node = observer().given(holdings=replace(THEIRS, holders=(holder(gpu_id(1)),))).line()
    assert (set(node.offers), node.config) == (set(), "Applied")
    assert resources(node) == {GPU: (2, 2, 1, "plugin")}
    assert [len(each.holders) for each in status(node).devices] == [0, 1]
    assert ready(node)[:2] == ("True", "AgentRunning")
    assert GPU in ready(node)[2]
    assert set(server().given(seen=seen(OBSERVE)).line().offers) == set()
    assert set(observer().given(seen=seen(SERVE)).line().offers) == {GPU}
    assert set(server().line().offers) == {GPU}


def test_faults_are_judged_and_reported_and_a_plugin_that_goes_on_offering_the_device_is_named() -> None:
    node = observer().given(holdings=THEIRS).line().line(xids=(xid(79),))
    assert [each.health.reason for each in status(node).devices] == ["Xid79", ""]
    assert resources(node)[GPU][:2] == (2, 2)
    assert "gpu-0" in ready(node)[2]
    withdrawn = replace(NOBODY, offered=(Offer(resource=GPU, ids=(gpu_id(1),)),))
    assert resources(node.given(holdings=withdrawn).line())[GPU][:2] == (2, 1)
    assert "gpu-0" not in ready(node)[2]


def test_another_plugins_end_is_reported_and_its_name_is_retired_only_when_it_gave_it_up() -> None:
    node = observer().given(holdings=THEIRS).line().given(holdings=NOBODY).line()
    assert resources(node) == {GPU: (2, 0, 0, "plugin")}
    assert ready(node)[0] == "True"
    assert not status(node).retired_resources
    assert resources(node.restarted().given(holdings=NOBODY, seen=seen({})).line()) == {GPU: (2, 0, 0, "plugin")}
    shared = replace(NOBODY, offered=(Offer(resource=SHARED, ids=(f"{gpu_id(0)}::0", f"{gpu_id(1)}::0")),))
    node = observer().given(holdings=THEIRS).line().given(holdings=shared).line()
    assert [each.name for each in status(node).resources] == [SHARED]
    assert [each.name for each in status(node).retired_resources] == [GPU]
    assert not [each.name for each in status(node.given(holdings=THEIRS).line()).retired_resources if each.name == GPU]


def test_podresources_is_the_way_to_the_kubelet_and_before_its_first_answer_an_observer_is_starting() -> None:
    away = Holdings(state=HoldersState.UNAVAILABLE, message="PodResources does not answer")
    node = (
        observer()
        .given(holdings=THEIRS)
        .line()
        .given(holdings=replace(THEIRS, state=away.state, message=away.message))
        .line()
    )
    assert ready(node) == ("False", "KubeletUnreachable", "serving.mode Observe: PodResources does not answer")
    assert resources(node)[GPU][:2] == (2, 0)
    refused = replace(THEIRS, state=HoldersState.RATE_LIMITED, message="rejected by rate limit")
    assert ready(node.given(holdings=refused).line())[0] == "True"
    assert resources(node)[GPU][:2] == (2, 2)
    node = observer()
    node.clock = 0.0
    node.given(holdings=Holdings(state=HoldersState.UNAVAILABLE, message="not queried yet")).line()
    assert ready(node)[:2] == ("Unknown", "Starting")
    assert ready(node.line(after=20))[:2] == ("False", "KubeletUnreachable")


def test_what_others_offer_may_be_unknown_and_the_object_says_that_the_node_observes_as_long_as_it_does() -> None:
    node = observer().given(holdings=replace(NOBODY, offered=None, message="GetAllocatableResources failed")).line()
    assert ready(node)[:2] == ("True", "AgentRunning")
    assert "GetAllocatableResources failed" in ready(node)[2]
    node = observer().given(holdings=THEIRS).line()
    assert serving(node) == "Observe"
    assert serving(node.given(seen=seen(SERVE)).line()) is None
    assert serving(server().given(holdings=NOBODY).line()) is None


def serving(node: Node) -> str | None:
    made = status(node).configuration
    return None if made is None else made.serving


# --- from one mode to the other ---------------------------------------------------------------------------------------
def test_to_stop_serving_waits_for_pods_and_who_never_served_stops_at_once() -> None:
    node = server().given(holdings=replace(NOBODY, offered=None, holders=(holder(gpu_id(0)),))).line()
    node.given(seen=seen(OBSERVE)).line()
    assert (node.config, set(node.offers)) == ("WaitingForHolders", {GPU})
    assert "ml/train-0" in node.world.config.message
    node.given(holdings=replace(NOBODY, offered=None)).line()
    assert (node.config, set(node.offers)) == ("Applied", set())
    assert [each.name for each in status(node).retired_resources] == [GPU]
    assert not status(node.given(holdings=THEIRS).line()).retired_resources
    theirs = Registration(resource=GPU, state=RegistrationState.SERVED_BY_ANOTHER, message="another one")
    held = replace(THEIRS, holders=(holder(gpu_id(0)),))
    node = server().given(holdings=held, registrations=(theirs,)).line()
    assert set(node.offers) == {GPU}
    assert server().given(holdings=held).line().given(seen=seen(OBSERVE)).line().config == "WaitingForHolders"
    node.given(seen=seen(OBSERVE)).line()
    assert (set(node.offers), node.config) == (set(), "Applied")
    assert resources(node) == {GPU: (2, 2, 1, "plugin")}


def test_the_same_ids_are_taken_over_at_once_with_their_pods_unless_the_kubelet_does_not_say() -> None:
    node = (
        observer().given(holdings=replace(THEIRS, holders=(holder(gpu_id(0)),))).line().given(seen=seen(SERVE)).line()
    )
    assert (node.config, set(node.offers)) == ("Applied", {GPU})
    assert resources(node) == {GPU: (2, 2, 1, "plugin")}
    node = (
        observer().given(holdings=THEIRS).line().given(holdings=replace(THEIRS, state=HoldersState.UNAVAILABLE)).line()
    )
    assert node.given(seen=seen(SERVE)).line().config == "WaitingForHolders"


def test_other_ids_are_taken_over_when_their_pods_have_ended_and_their_plugin_has_left() -> None:
    node = (
        observer()
        .given(holdings=replace(SLICED, holders=(holder(f"{gpu_id(0)}::1"),)))
        .line()
        .given(seen=seen(SERVE))
        .line()
    )
    assert (node.config, set(node.offers)) == ("WaitingForHolders", set())
    assert "ml/train-0" in node.world.config.message
    node.given(holdings=SLICED).line()
    assert (node.config, set(node.offers)) == ("WaitingForHolders", set())
    assert set(node.given(holdings=NOBODY).line().offers) == {GPU}
    assert not status(node).retired_resources


def test_a_restart_remembers_that_it_observed_and_waits_as_before() -> None:
    node = server().given(seen=seen(OBSERVE), holdings=SLICED).line()
    again = node.restarted()
    again.given(holdings=Holdings(state=HoldersState.UNAVAILABLE), seen=None).line()
    assert set(again.offers) == set()
    assert resources(again) == {GPU: (4, 0, 0, "plugin")}
    assert again.given(seen=seen(SERVE), holdings=SLICED).line().config == "WaitingForHolders"
