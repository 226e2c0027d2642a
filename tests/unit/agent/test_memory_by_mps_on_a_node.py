"""Memory shares whose limits MPS enforces, on a node: their daemon, and what a change of the enforcement waits for."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.model import Holder
from nodedevices_plugin.sharing.daemons import DaemonProcess, MpsFacts
from support.daemons import answers
from support.facts import GIB, START, gpu, gpu_id, old
from support.local import at_once
from support.stepped_node import Node

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
LOCAL = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
TWO = tuple(gpu(number, memory_bytes=8 * GIB, readings=old()) for number in (0, 1))
SHARE = f"{gpu_id(0)}::1Gi.0"


def by_memory(enforcement: str, unit: str = "1Gi", **more: Any) -> dict[str, Any]:
    rule = {"name": GPU, "memoryUnit": unit, "enforcement": enforcement, **more}
    return {"sharing": {"strategy": "memory", "resources": [rule]}}


def pod(*ids: str, resource: str = MEMORY) -> Holder:
    return Holder(namespace="ml", pod="a", container="c", resource=resource, ids=ids, since=START)


def daemon(*, ready: bool = True, instance: str = "one") -> MpsFacts:
    said = answers({(MEMORY, 100): "" if ready else "does not answer: no"})
    return MpsFacts(statuses=said, processes={MEMORY: DaemonProcess(answers=ready, instance=instance)})


def node(*, mps: MpsFacts | None = None, enforcement: str = "none") -> Node:
    made = Node(*TWO, local=LOCAL)
    made.given(mps=mps or MpsFacts())
    return made.now(by_memory(enforcement))


def condition(of: Node) -> tuple[str, str]:
    return of.world.config.reason, of.world.config.message


def test_a_change_to_mps_waits_for_all_pods_since_none_of_them_is_its_client() -> None:
    made = node()
    made.given(mps=daemon())
    made.now(by_memory("mps"), pod(SHARE))
    reason, message = condition(made)
    assert reason == "WaitingForHolders"
    assert f"{MEMORY} from memory to memory with enforcement mps waits until these pods have ended: ml/a" in message
    assert not made.world.daemons, "it would take the GPU from the pod"
    assert made.offers[MEMORY] == [SHARE], "nobody gets a share meanwhile that is no client's"
    made.now(by_memory("mps"))
    assert condition(made)[0] == "Applied"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in made.container(MEMORY, SHARE).envs


def test_what_is_divided_changes_for_clients_when_they_have_ended_and_what_has_no_ids_at_once() -> None:
    for after in (by_memory("none"), by_memory("mps", "2Gi"), by_memory("mps", memoryReserve="1Gi"), {}):
        made = node(mps=daemon(), enforcement="mps").now(after, pod(SHARE))
        assert condition(made)[0] == "WaitingForHolders", after
        assert [each.resource for each in made.world.daemons or ()] == [MEMORY]
        assert condition(made.now(after))[0] == "Applied"
    made = node(mps=daemon(), enforcement="mps")
    assert condition(made.now(by_memory("mps", packing="spread"), pod(SHARE)))[0] == "Applied"


def test_a_pod_with_the_whole_gpu_is_waited_for_before_the_daemon_takes_it() -> None:
    made = Node(*TWO, local=LOCAL).now({})
    made.given(mps=daemon(ready=False))
    made.now(by_memory("mps"), pod(gpu_id(0), resource=GPU))
    reason, message = condition(made)
    assert reason == "WaitingForHolders"
    assert message.startswith(f"sharing {MEMORY} by MPS waits until these pods have ended: ml/a")
    assert not made.world.daemons


def test_no_share_is_offered_before_the_daemon_answers_and_none_while_it_does_not() -> None:
    made = node()
    made.given(mps=daemon(ready=False))
    reason, message = condition(made.now(by_memory("mps")))
    assert (reason, len(made.offers[MEMORY])) == ("ConfigInvalid", 16), "the last good configuration stays"
    assert f"sharing.resources: enforcement: mps: the control daemon of {MEMORY} does not answer: no" in message
    made.given(mps=daemon())
    assert condition(made.now(by_memory("mps")))[0] == "Applied"
    made.given(mps=daemon(ready=False))
    assert made.now(by_memory("mps")).offers == {MEMORY: []}


def test_the_end_of_its_daemon_is_known_to_have_ended_a_clients_work() -> None:
    made = node(mps=daemon(), enforcement="mps").now(by_memory("mps"), pod(SHARE))
    made.given(mps=daemon(instance="two"))
    made.now(by_memory("mps"), pod(SHARE))
    [client] = made.world.state.clients.clients.values()
    assert client.reason == "MpsDaemonRestarted"


def test_a_gpu_with_as_many_containers_as_mps_takes_has_no_share_for_another() -> None:
    """16 before Volta, 48 since; a container may have several shares, so that this is no number of shares."""
    old_gpu, new_gpu = (
        gpu(number, memory_bytes=64 * GIB, compute_capability=capability, readings=old())
        for number, capability in enumerate(("6.1", "8.9"))
    )
    made = Node(old_gpu, new_gpu, local=LOCAL)
    made.given(mps=daemon())
    pods = [
        replace(pod(*(f"{gpu_id(number)}::1Gi.{2 * n + one}" for one in (0, 1))), pod=f"{number}-{n}")
        for number in (0, 1)
        for n in range(16)
    ]
    made.now(by_memory("mps"), *pods)
    held = {id_ for each in pods for id_ in each.ids}
    free = [id_ for id_ in made.offers[MEMORY] if id_ not in held]
    assert held < set(made.offers[MEMORY]), "what is held stays as it is"
    assert {id_.partition("::")[0] for id_ in free} == {gpu_id(1)}
    assert len(free) == 32
    made.now(by_memory("mps"), *pods[1:])
    assert f"{gpu_id(0)}::1Gi.0" in made.offers[MEMORY], "one of them has ended"
