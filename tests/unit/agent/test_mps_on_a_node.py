"""MPS goes through the whole pipeline: its daemons are awaited, kept for their clients, and withhold what they take."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.model import Holder
from nodedevices_plugin.sharing.daemons import DaemonProcess, MpsFacts, client_verdict, with_daemons
from nodedevices_plugin.sharing.mps import MpsDaemon
from support.cases import cases
from support.daemons import answers, facts
from support.facts import START, gpu, gpu_id, old
from support.local import at_once
from support.stepped_node import Node
from support.there import there

GPU = "nvidia.com/gpu"
LOCAL = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
DEVICES = (gpu(0, readings=old()), gpu(1, readings=old()))
RUNS = facts({(GPU, 33): ""})
SHARE = f"{gpu_id(0)}::1"


def config(replicas: int = 3) -> dict[str, Any]:
    return {"sharing": {"strategy": "mps", "resources": [{"name": GPU, "replicas": replicas}]}}


WHOLE: dict[str, Any] = {}
SLICES = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 3}]}}


def node_with(daemons: MpsFacts | None = None) -> Node:
    return told(Node(*DEVICES, local=LOCAL), daemons or MpsFacts())


def told(node: Node, daemons: MpsFacts) -> Node:
    """From now on these are the facts of its daemons."""
    node.given(mps=daemons)
    return node


def daemon() -> MpsDaemon:
    [wanted] = node_with(RUNS).now(config()).world.daemons or ()
    return wanted


def holder(id_: str, pod: str = "train-0") -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=GPU, ids=(id_,), since=START)


def test_its_shares_are_offered_when_its_daemon_answers() -> None:
    node = node_with().now(config())
    assert (node.world.config.reason, node.counts) == ("WaitingForDaemon", {})
    [wanted] = node.world.daemons or ()
    assert (wanted.key, wanted.device_ids) == ((GPU, 33), frozenset({gpu_id(0), gpu_id(1)}))
    told(node, RUNS).now(config())
    assert (node.world.config.reason, node.counts) == ("Applied", {GPU: (6, 6)})


def test_a_change_to_it_and_from_it_waits_for_the_pods_that_hold_the_very_same_ids() -> None:
    share = holder(SHARE)
    node = told(node_with().now(SLICES), RUNS).now(config(), share)
    waits = f"the change of {GPU} from timeSlicing to mps waits until these pods have ended: ml/train-0"
    assert (node.world.config.reason, node.world.config.message) == ("WaitingForHolders", waits)
    assert not node.world.daemons
    assert node.now(config()).world.config.reason == "Applied"
    node.now(SLICES, share)
    assert node.world.config.message.startswith(f"the change of {GPU} from mps to timeSlicing waits")
    assert [each.resource for each in node.world.daemons or ()] == [GPU], "its client keeps its daemon"
    assert node.now(SLICES).world.daemons == ()


@cases("elsewhere", WHOLE, SLICES, config(2), ids=["whole", "slices", "other limits"])
def test_where_the_state_is_lost_a_daemon_stays_while_containers_are_its_clients(elsewhere: dict[str, Any]) -> None:
    """Whatever is configured then: the node's own settings, for one, while the operator does not answer."""
    runs, client = daemon(), holder(SHARE)
    node = node_with(replace(RUNS, before=(runs,))).now(elsewhere, client)
    assert runs in (node.world.daemons or (runs,))
    assert {healthy for _, healthy in node.counts.values()} <= {0}, "its devices take nobody but its clients"
    assert node.world.config.reason == "WaitingForHolders"
    node.now(elsewhere)
    assert runs not in (node.world.daemons or ())


def test_no_daemon_is_started_or_brought_back_for_a_pod_that_knows_nothing_of_it() -> None:
    node = node_with(replace(RUNS, before=(daemon(),))).now(SLICES)
    assert node.world.daemons == ()
    node.now(SLICES, holder(SHARE))
    assert (node.world.daemons, node.world.config.reason) == ((), "Applied")
    assert not node_with().now(config(), holder(gpu_id(0))).world.daemons


def test_its_shares_are_withheld_while_its_daemon_is_silent_and_their_holders_are_marked() -> None:
    def process(instance: str, *, answers_: bool = True) -> MpsFacts:
        said = answers({(GPU, 33): "" if answers_ else "does not run"})
        return MpsFacts(statuses=said, processes={GPU: DaemonProcess(answers=answers_, instance=instance)})

    share = holder(SHARE)
    node = node_with(process("one")).now(config()).now(config(), share)
    told(node, process("one", answers_=False)).now(config(), share)
    assert (node.world.config.reason, node.counts) == ("ConfigInvalid", {GPU: (6, 0)})
    assert f"the control daemon of {GPU} does not run; its shares are not offered" in node.world.config.message
    shown = with_daemons(node.world.known.verdicts, node.world.state.clients, node.world.daemons)
    assert {each.reason for each in shown.values()} == {"MpsDaemonDown"}
    told(node, process("two")).now(config(), share)
    assert node.counts == {GPU: (6, 6)}
    [client] = node.world.state.clients.clients.values()
    verdict = there(client_verdict(client, GPU, START))
    assert (verdict.reason, verdict.recovery_action) == ("MpsDaemonRestarted", "RestartApp")
    assert "CUDA contexts from before are lost" in verdict.message
