"""Claims that have shares whose limits MPS enforces: their daemon waits for them, and is not ended under them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from nodedevices_api.withheld import NO_FREE_CLIENTS
from nodedevices_plugin.claims.offer import ClaimOffer
from nodedevices_plugin.claims.records import Claim, DraFacts, Prepared, Record, Result, decode, encode
from nodedevices_plugin.model import DRA_DRIVER, Api, Holder, cuda_mps
from nodedevices_plugin.sharing.daemons import DaemonProcess, MpsFacts
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from nodedevices_plugin.vendors.nvidia.cdi import NEEDED
from support.daemons import answers
from support.facts import GIB, START, gpu, gpu_id, old
from support.local import at_once
from support.stepped_node import Node

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
LOCAL = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
TWO = tuple(gpu(number, memory_bytes=64 * GIB, compute_capability="6.1", readings=old()) for number in (0, 1))
BY_DRA: dict[str, Any] = {"serving": {"api": "DRA"}, "injection": {"deviceListStrategies": ["cdi-cri"]}}


def by_memory(enforcement: str) -> dict[str, Any]:
    rule = {"name": GPU, "memoryUnit": "1Gi", "enforcement": enforcement}
    return BY_DRA | {"sharing": {"strategy": "memory", "resources": [rule]}}


def record(name: str, number: int = 0) -> Record:
    """Of a claim that has 1 GiB of the first GPU."""
    result = Result(request="gpu", device="gpu-0", share=name, consumed={"memory": "1Gi"})
    entry = Prepared(result=result, part_id=gpu_id(0), resource=MEMORY, shares=(number,), unit="1Gi")
    return Record(uid=f"uid-{name}", namespace="ml", name=name, prepared=(entry,))


def pod(claim: str) -> Holder:
    """As the kubelet lists it."""
    name = f"{DRA_DRIVER}/n1/gpu-0"
    return Holder(namespace="ml", pod=f"pod-{claim}", container="c", claim=f"ml/{claim}", ids=(name,), since=START)


def claims(*records: Record) -> DraFacts:
    return DraFacts(records={record.uid: record for record in records})


def daemon(*, instance: str = "one") -> MpsFacts:
    process = DaemonProcess(answers=True, instance=instance)
    return MpsFacts(statuses=answers({(MEMORY, 100): ""}), processes={MEMORY: process})


def node(enforcement: str) -> Node:
    made = Node(*TWO, local=LOCAL).given(cdi={"nvidia": CdiEnvironment(toolkit_libraries=True)}, mps=daemon())
    made.now(by_memory(enforcement))
    assert [resource.api for resource in made.plan.resources] == [Api.DRA]
    return made


def condition(of: Node) -> tuple[str, str]:
    return of.world.config.reason, of.world.config.message


def test_a_change_to_or_from_mps_waits_for_prepared_claims_whether_or_not_the_kubelet_lists_their_pods() -> None:
    for before, after in (("none", "mps"), ("mps", "none")):
        made = node(before).given(dra=claims(record("a")))
        reason, message = condition(made.now(by_memory(after)))
        assert (reason, "the claim ml/a has ended" in message) == ("WaitingForHolders", True)
        reason, message = condition(made.now(by_memory(after), pod("a")))
        assert (reason, "have ended: ml/pod-a" in message) == ("WaitingForHolders", True)
        assert [wanted.resource for wanted in made.world.daemons or ()] == ([MEMORY] if before == "mps" else [])
        made.given(dra=claims())
        assert condition(made.now(by_memory(after)))[0] == "Applied"


def test_no_daemon_takes_a_gpu_that_a_claim_has_whole_though_no_pod_is_listed_yet() -> None:
    whole = Prepared(result=Result(request="gpu", device="gpu-0"), part_id=gpu_id(0), resource=GPU)
    made = Node(*TWO, local=LOCAL).given(cdi={"nvidia": CdiEnvironment(toolkit_libraries=True)}).now(BY_DRA)
    made.given(dra=claims(Record(uid="u", namespace="ml", name="a", prepared=(whole,))))
    reason, message = condition(made.now(by_memory("mps")))
    assert (reason, "the claim ml/a has ended" in message) == ("WaitingForHolders", True)
    assert not made.world.daemons


def test_a_daemon_is_not_ended_under_its_clients_though_the_state_file_is_lost() -> None:
    made = node("mps")
    wanted = made.world.daemons or ()
    again = Node(*TWO, local=LOCAL, clock=made.clock).given(
        cdi={"nvidia": CdiEnvironment(toolkit_libraries=True)},
        mps=MpsFacts(statuses=daemon().statuses, before=wanted),
        dra=claims(record("a")),
    )
    again.now(by_memory("none"))
    assert [one.resource for one in again.world.daemons or ()] == [MEMORY]
    again.given(dra=claims())
    assert not again.now(by_memory("none")).world.daemons


def test_a_claim_whose_daemon_was_restarted_is_marked() -> None:
    made = node("mps").given(dra=claims(record("a")))
    made.now(by_memory("mps"), pod("a"))
    made.given(mps=daemon(instance="two")).now(by_memory("mps"), pod("a"))
    [client] = made.world.state.clients.clients.values()
    assert client.reason == "MpsDaemonRestarted"


def test_a_gpu_with_as_many_claims_as_mps_takes_clients_is_left_out() -> None:
    made = node("mps").given(dra=claims(*(record(f"c{number}", number) for number in range(16))))
    made.now(by_memory("mps"), *(pod(f"c{number}") for number in range(15)))
    [resource] = made.plan.resources
    reasons = {(entry.device_id, entry.blocked.reason) for entry in resource.ids if entry.blocked is not None}
    assert reasons == {(gpu_id(0), NO_FREE_CLIENTS)}


def test_limits_that_a_driver_directory_brings_are_those_of_the_claim_also_when_it_is_prepared_again() -> None:
    made = Node(*TWO, local=LOCAL).given(existing=frozenset(NEEDED))
    made.given(mps=MpsFacts(statuses=answers({(GPU, 25): ""}), processes={GPU: DaemonProcess(answers=True)}))
    rule = {"name": GPU, "replicas": 4}
    by_mps = {"sharing": {"strategy": "mps", "resources": [rule], "failRequestsGreaterThanOne": False}}
    made.now({"serving": {"api": "DRA"}, "injection": {"deviceListStrategies": ["driver-directory"]}, **by_mps})
    offer = ClaimOffer(nullcontext())
    offer.use(made.plan, made.world.known.inventory, made.world.access.containers)
    result = Result(request="gpu", device="gpu-1", share="s", consumed={"shares": "2"})
    decided = offer.prepare(Claim(uid="u", namespace="ml", name="a", results=(result,)))
    first = offer.edits(decided.record)["gpu"]
    assert first.envs[cuda_mps.MEMORY_LIMIT] == f"0={32 * 1024}M"
    assert first.envs[cuda_mps.THREAD_PERCENTAGE] == "50"
    again = decode(encode(decided.record), uid="u")
    assert offer.edits(again)["gpu"] == first
