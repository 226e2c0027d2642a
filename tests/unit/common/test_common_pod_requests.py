"""What containers request of shared devices, on which agent, extender and operator agree because all call it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st
from nodedevices_common.pod_requests import ALL, INIT, MAIN, SIDECAR, Container, Demand, pod_containers, wants
from support.cases import cases
from support.odd_json import JSON

MEMORY = "nodedevices.io/gpu-memory"
VCUDA = "tencent.com/vcuda-core"


def container(size: int, cores: str | None = None, name: str = "main", **more: Any) -> Container:
    return Container(name=name, requests={MEMORY: size}, cores=cores, **more)


def demands(*containers: Container) -> dict[str, Demand]:
    return {each.container: each.demand for each in wants(containers, MEMORY)}


# --- from a pod ------------------------------------------------------------------------------------------------------
def test_containers_come_in_the_order_in_which_the_kubelet_allocates_each_with_its_annotation() -> None:
    amounts = {"limits": {MEMORY: "2", "cpu": "1"}, "requests": {MEMORY: "2", "cpu": "1"}}
    pod = {
        "metadata": {
            "annotations": {
                "nodedevices.io/gpu-cores.main": "30",
                "nodedevices.io/gpu-cores.mian": "20",
                "example.com/owner": "40",
            }
        },
        "spec": {
            "containers": [{"name": "main", "resources": amounts}],
            "initContainers": [{"name": "warm"}, {"name": "proxy", "restartPolicy": "Always"}],
        },
    }
    assert pod_containers(pod) == (
        (
            Container(name="warm", kind=INIT),
            Container(name="proxy", kind=SIDECAR),
            Container(name="main", kind=MAIN, requests={MEMORY: 2}, cores="30"),
        ),
        ("mian",),
    )


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON), JSON, JSON)
def test_whatever_stands_in_a_pod_nothing_is_raised(pod: dict[str, Any], containers: Any, resources: Any) -> None:
    pod_containers(pod)
    odd = {"initContainers": containers, "containers": [{"name": "main", "resources": {"limits": resources}}]}
    pod_containers({"spec": odd, "metadata": {"annotations": containers}})


# --- computing power -------------------------------------------------------------------------------------------------
@cases(
    ("of", "needs"),
    (container(2, "30"), Demand(percent=30)),
    (container(2), Demand(units=2)),
    (Container(name="main", requests={MEMORY: 2, VCUDA: 45}), Demand(percent=45)),
    (Container(name="main", requests={MEMORY: 2, VCUDA: 45}, cores="7"), Demand(percent=7)),
    (Container(name="main", requests={MEMORY: 2, VCUDA: 99}), Demand(percent=99)),
)
def test_a_container_needs_what_it_says_else_its_vcuda_cores_else_its_share(of: Container, needs: Demand) -> None:
    [want] = wants([of], MEMORY)
    assert (want.demand, want.problem) == (needs, "")


@cases("text", "", "0", "101", "30%", "3.5", "-1", "030", "thirty", "1 0", "٣٠", "1" * 5000)
def test_an_annotation_that_is_no_percentage_counts_as_all_and_is_named_with_what_would_be_right(text: str) -> None:
    [want] = wants([container(2, text)], MEMORY)
    assert want.demand == ALL
    assert want.problem == (
        f'annotation nodedevices.io/gpu-cores.main: {text[:64]!r}: give a percentage of one device, "1" to "100".'
    )


@cases("said", 7, None, {}, ["30"])
def test_an_annotation_that_is_no_text_is_no_percentage(said: Any) -> None:
    pod = {
        "metadata": {"annotations": {"nodedevices.io/gpu-cores.main": said}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {MEMORY: 2}}}]},
    }
    [want] = wants(pod_containers(pod)[0], MEMORY)
    assert want.demand == ALL
    assert want.problem


def test_an_annotation_that_names_no_container_is_named_and_harms_no_other() -> None:
    [want] = wants([container(2)], MEMORY, ["mian"])
    assert want.problem == (
        "annotation nodedevices.io/gpu-cores.mian names no container of the pod; did you mean "
        "nodedevices.io/gpu-cores.main? Correct it, or remove it for a part like the container's memory."
    )
    [want] = wants([container(2, "30")], MEMORY, ["mian"])
    assert (want.demand, want.problem) == (Demand(percent=30), "")


@cases("cores", 100, 200)
def test_whole_gpus_of_vcuda_cores_do_not_go_with_shares_of_memory(cores: int) -> None:
    [want] = wants([Container(name="main", requests={MEMORY: 2, VCUDA: cores})], MEMORY)
    assert want.demand == ALL
    assert want.problem.startswith(
        f"container main requests {cores} of tencent.com/vcuda-core: 100 and more are whole GPUs"
    )


def test_sidecars_and_the_first_container_carry_the_largest_demand_of_the_init_containers() -> None:
    found = demands(
        container(4, "50", "warm", kind=INIT),
        container(1, "10", "proxy", kind=SIDECAR),
        container(4, "20", "late", kind=INIT),
        container(2, "30"),
        container(2, "40", "side"),
    )
    assert found == {name: Demand(50) for name in ("warm", "proxy", "late", "main")} | {"side": Demand(40)}


def test_init_containers_alone_are_refused_and_parts_of_a_device_add_up_exactly() -> None:
    [want] = wants([container(3, "80", "warm", kind=INIT)], MEMORY)
    assert want.problem == (
        f"its init container warm requests {MEMORY} and no container does; request the same amount in a container."
    )
    assert 3 * Demand(units=8).scaled(24) == ALL.scaled(24)
    assert Demand(units=8).percent_of(24) == 34
    assert Demand(percent=30, units=12).percent_of(24) == 50
    assert Demand(units=48).scaled(24) == ALL.scaled(24)
    assert ALL.percent_of(0) == 0
