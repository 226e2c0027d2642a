"""Plans of nodes in trouble, as they were before there were gates (recorded on 23 November 2026): which ids a new
container gets, which it does not, and which are kept for the pod that holds them. The reasons came with the gates."""

from __future__ import annotations

from typing import Any

from nodedevices_plugin.model import Holder
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.sharing.daemons import DaemonProcess, MpsFacts
from nodedevices_probe.protocol import Readings
from support.daemons import answers
from support.facts import START, gpu, gpu_id, mig_id, partition
from support.stepped_node import Node

GPU, SHARED, LARGE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
LOCAL = parse(["--node-name=n1", "--operator-wait-seconds=0", "--mps-root=/run/nvidia/mps"], {})
TWO = (gpu(0), gpu(1))
HALVES = tuple(partition(1, part, profile="3g.40gb", start=4 * part, size=4) for part in (0, 1))
SHORT = {gpu_id(0): "0", gpu_id(1): "1", mig_id(1, 0): "1a", mig_id(1, 1): "1b"}


def shared(strategy: str = "timeSlicing", replicas: int = 2, **rule: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": strategy, "resources": [{"name": GPU, "replicas": replicas, **rule}]}}


def pod(id_: str, resource: str = GPU) -> Holder:
    return Holder(namespace="ml", pod="a", container="c", resource=resource, ids=(id_,), since=START)


def daemon(words: str, resource: str = GPU) -> MpsFacts:
    process = DaemonProcess(answers=not words, instance="one")
    return MpsFacts(statuses=answers({(resource, 50): words}), processes={resource: process})


def plan(node: Node) -> dict[str, str]:
    """By resource its ids in order, with `!` and the reason where they are blocked, in brackets those kept for pods."""
    assert node.world.plan is not None

    def short(id_: str) -> str:
        device, _, share = id_.partition("::")
        return SHORT[device] + (f".{share}" if share else "")

    found = {}
    for resource in node.world.plan.resources:
        ids = [f"{short(each.id)}{f'!{each.blocked.reason}' if each.blocked else ''}" for each in resource.ids]
        found[resource.name] = " ".join([*ids, *(f"[{short(each.id)}]" for each in resource.retained)])
    return found


def test_a_lost_gpu_takes_its_own_shares_alone() -> None:
    node = Node(gpu(0), gpu(1, readings=Readings(lost=True))).now(shared())
    assert plan(node) == {GPU: "0.0 0.1 1.0!Unhealthy 1.1!Unhealthy"}


def test_a_gpu_that_is_held_whole_gives_no_shares_and_stays_with_its_pod() -> None:
    node = Node(*TWO).now({}).now(shared(), pod(gpu_id(0)))
    assert plan(node) == {GPU: "0.0!HeldInAnotherShape 0.1!HeldInAnotherShape 1.0 1.1 [0]"}
    assert plan(node.now(shared())) == {GPU: "0.0 0.1 1.0 1.1"}


def test_a_name_that_is_gone_stays_for_its_pod_and_gives_the_next_one_nothing() -> None:
    node = Node(*TWO).now(shared(rename=SHARED)).now({}, pod(f"{gpu_id(0)}::1", SHARED))
    assert plan(node) == {GPU: "0!HeldInAnotherShape 1", SHARED: "[0.1]"}


def test_a_gpu_that_was_cut_under_its_pod_keeps_its_parts_back() -> None:
    mixed = {"partitions": {"strategy": "mixed"}}
    node = Node(*TWO).now(mixed)
    node.devices = (gpu(0), gpu(1, mig_enabled=True, partitions=HALVES))
    assert plan(node.now(mixed, pod(gpu_id(1)))) == {GPU: "0 [1]", LARGE: "1a!HeldInAnotherShape 1b!HeldInAnotherShape"}


def test_shares_by_mps_stay_listed_while_their_daemon_does_not_answer() -> None:
    node = Node(*TWO, local=LOCAL)
    node.given(mps=daemon(""))
    assert plan(node.now(shared("mps"))) == {GPU: "0.0 0.1 1.0 1.1"}
    node.given(mps=daemon("does not answer: no"))
    assert plan(node.now(shared("mps"))) == {
        GPU: "0.0!HelperNotReady 0.1!HelperNotReady 1.0!HelperNotReady 1.1!HelperNotReady"
    }


def test_what_a_change_to_mps_takes_away_goes_to_nobody_new_while_it_waits_for_pods() -> None:
    node = Node(*TWO, local=LOCAL).now(shared())
    node.given(mps=daemon(""))
    node.now(shared("mps"), pod(f"{gpu_id(0)}::0"))
    assert plan(node) == {GPU: "0.0 0.1!ChangeWaits 1.0!ChangeWaits 1.1!ChangeWaits"}


def test_of_a_resource_that_goes_the_held_share_stays_as_long_as_its_daemons_client() -> None:
    node = Node(*TWO, local=LOCAL)
    node.given(mps=daemon(""))
    node.now(shared("mps")).now({}, pod(f"{gpu_id(0)}::0"))
    assert plan(node) == {GPU: "0.0 0.1!ChangeWaits 1.0!ChangeWaits 1.1!ChangeWaits"}
    assert plan(node.now({})) == {GPU: "0 1"}
