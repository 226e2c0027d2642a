"""filter and prioritize as kube-scheduler sends and reads them, and the two moments in which the cache is behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from nodedevices_common.errors import InputError
from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.verbs import Filtered, Verbs, read_arguments
from support.cases import cases
from support.nodeshares import MEMORY, cache, container, gpu, holder, node_devices, pod


def verbs(remembered: SharesCache, *, sees: bool = True) -> Verbs:
    return Verbs(remembered, problem=lambda: "" if sees else "listing pods", clock=lambda: 1.0)


def asked(wanted: Mapping[str, Any], *names: str) -> bytes:
    return json.dumps({"Pod": wanted, "Nodes": None, "NodeNames": list(names)}).encode()


def filtered(remembered: SharesCache, wanted: Mapping[str, Any], *names: str, sees: bool = True) -> Filtered:
    return asyncio.run(verbs(remembered, sees=sees).filter(read_arguments(asked(wanted, *names))))


def answered(remembered: SharesCache, body: bytes) -> dict[str, Any]:
    async def answer() -> bytes:
        arguments = read_arguments(body)
        return (await verbs(remembered).filter(arguments)).answer(arguments)

    result: dict[str, Any] = json.loads(asyncio.run(answer()))
    return result


TWO = (node_devices("n1", gpu(0, 24, held=9), gpu(1, 24, held=20)), node_devices("n2", gpu(0, 24)))


# --- the protocol ----------------------------------------------------------------------------------------------------
def test_names_in_names_out_with_the_reason_for_each_node_that_is_left_out() -> None:
    body = (
        '{"Pod":{"metadata":{"name":"a","namespace":"d"},"spec":{"containers":[{"name":"c","resources":{"limits":'
        '{"nodedevices.io/gpu-memory":"20"}}}]}},"Nodes":null,"NodeNames":["n1","n2"]}'
    )
    assert answered(cache(*TWO), body.encode()) == {
        "Nodes": None,
        "NodeNames": ["n2"],
        "FailedNodes": {"n1": "no single GPU has 20 free units of nodedevices.io/gpu-memory (largest free: 15)"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_whole_nodes_in_whole_nodes_out_with_keys_in_any_case() -> None:
    nodes = {"kind": "NodeList", "items": [{"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n2")]}
    body = json.dumps({"Pod": pod("p", 20), "Nodes": nodes, "NodeNames": None}).encode()
    found = answered(cache(*TWO), body)
    assert found["Nodes"] == {"kind": "NodeList", "items": [{"metadata": {"name": "n2", "labels": {"a": "b"}}}]}
    assert (found["NodeNames"], list(found["FailedNodes"])) == (None, ["n1"])
    body = json.dumps({"pod": pod("p", 20), "nodenames": ["n1", "n2"]}).encode()
    assert answered(cache(*TWO), body)["NodeNames"] == ["n2"]
    body = json.dumps({"POD": pod("p", 20), "nodes": {"items": [{"metadata": {"name": "n1"}}]}}).encode()
    assert answered(cache(*TWO), body)["Nodes"] == {"items": []}


def test_an_answer_has_the_nodes_as_they_were_sent_and_says_where_preemption_would_not_help() -> None:
    found = filtered(cache(*TWO), pod("p", 25), "n1", "n2")
    assert (found.passed, found.failed, sorted(found.never)) == ([], {}, ["n1", "n2"])
    found = filtered(cache(*TWO), pod("p", 2), "n2", "n9", "n1")
    assert (found.passed, found.unknown) == (["n2", "n9", "n1"], 1)


def test_priorities_are_by_packing_and_0_for_what_is_not_known() -> None:
    known = cache(node_devices("full", gpu(0, 20, held=18)), node_devices("empty", gpu(0, 20)))
    made = verbs(known)
    body = asked(pod("p", 2), "full", "empty", "unknown")
    assert json.loads(made.prioritize(read_arguments(body))) == [
        {"Host": "full", "Score": 10},
        {"Host": "empty", "Score": 1},
        {"Host": "unknown", "Score": 0},
    ]


@cases(
    ("body", "words"),
    (b"", "the body is not JSON"),
    (b"{", "the body is not JSON"),
    (b"[]", "send extender/v1 ExtenderArgs"),
    (b"{}", "Pod: absent"),
    (b'{"Pod": 7, "NodeNames": []}', "Pod: absent or not an object"),
    (b'{"Pod": {}}', "NodeNames and Nodes are both absent"),
    (b'{"Pod": {}, "NodeNames": "n1"}', "NodeNames: not a list of names"),
    (b'{"Pod": {}, "NodeNames": [1]}', "NodeNames: not a list of names"),
    (b'{"Pod": {}, "Nodes": []}', "Nodes: not a NodeList"),
    (b'{"Pod": {}, "Nodes": {"items": [1]}}', "Nodes: not a NodeList"),
)
def test_what_cannot_be_read_is_named(body: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_arguments(body)


# --- what passes -----------------------------------------------------------------------------------------------------
def test_whatever_it_knows_nothing_of_passes() -> None:
    assert filtered(cache(*TWO), pod("p", container("main", 0)), "n1", "n2").passed == ["n1", "n2"]
    found = filtered(cache(*TWO), pod("p", 1000), "n1", "n2", sees=False)
    assert (found.passed, found.unknown) == (["n1", "n2"], 2)


def test_a_pod_of_two_resources_needs_room_for_both_and_the_words_name_what_is_short() -> None:
    other = "example.com/other"
    known = cache(node_devices("n1", gpu(0, 24), gpu(1, 24, held=20, resource=other)))
    wanted = pod("p", container("a", 20), container("b", 5, resource=other))
    assert filtered(known, wanted, "n1").failed == {
        "n1": f"no single GPU has 5 free units of {other} (largest free: 4)"
    }
    found = filtered(cache(*TWO), pod("p", 20), "n1")
    assert MEMORY in found.failed["n1"]


# --- a burst of pods -------------------------------------------------------------------------------------------------
async def test_the_next_pod_is_judged_once_the_last_is_seen_bound() -> None:
    """The scheduler does not wait for a binding before it goes on."""
    known = cache(node_devices("n1", gpu(0, 24), gpu(1, 10)))
    made = verbs(known)
    first = await made.filter(read_arguments(asked(pod("a", 20), "n1")))
    second = asyncio.create_task(made.filter(read_arguments(asked(pod("b", 20), "n1"))))
    await asyncio.sleep(0)
    assert not second.done()
    known.observe_pod(pod("a", 20, node="n1"))
    assert (first.passed, (await second).passed) == (["n1"], [])


async def test_a_pod_that_fits_is_answered_as_soon_as_the_last_is_bound() -> None:
    """Not only when the time has passed for which a binding is waited for."""
    known = cache(node_devices("n1", gpu(0, 24)))
    made = verbs(known)
    await made.filter(read_arguments(asked(pod("a", 20), "n1")))
    second = asyncio.create_task(made.filter(read_arguments(asked(pod("b", 2), "n1"))))
    await asyncio.sleep(0)
    known.observe_pod(pod("a", 20, node="n1"))
    for _ in range(10):  # turns of the event loop, which take no time
        await asyncio.sleep(0)
    assert second.done()


async def test_a_pod_that_is_never_bound_holds_up_one_other_for_a_moment_and_not_itself() -> None:
    made = verbs(cache(node_devices("n1", gpu(0, 24))))
    found = [await made.filter(read_arguments(asked(pod(name, 20), "n1"))) for name in ("a", "b")]
    assert [each.passed for each in found] == [["n1"], ["n1"]]
    made = verbs(cache(node_devices("n1", gpu(0, 24))))
    arguments = read_arguments(asked(pod("a", 20), "n1"))
    await made.filter(arguments)
    repeated = asyncio.create_task(made.filter(arguments))
    await asyncio.sleep(0)
    assert repeated.done()
    assert repeated.result().passed == ["n1"]


async def test_a_refusal_everywhere_is_judged_again_when_a_pod_ends_just_then() -> None:
    """The scheduler may know of it a moment earlier, and would ask again only after another event."""
    ending = pod("ending", 24, node="n1")
    known = cache(node_devices("n1", gpu(0, 24, holder("ending", 24))), ending)
    judged = asyncio.create_task(verbs(known).filter(read_arguments(asked(pod("p", 20), "n1"))))
    await asyncio.sleep(0)
    known.observe_pod(ending, gone=True)
    assert (await judged).passed == ["n1"]
