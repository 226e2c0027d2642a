"""What the agent shows at /metrics of devices, their holders and resources, from literals of every stage."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from nodedevices_plugin.model import MemoryShares, OfferedResource, Plan, SchedulableId, SharingFacts
from nodedevices_plugin.model.plan import DraCounters, KubeletCall, Method, Result
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.sharing.memory import Memory
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.metrics import AgentMetrics
from support.exposed import GPU, MEMORY, SINCE, Samples, agent, by_memory, facts, parsed
from support.facts import GIB, START, gpu, gpu_id, inventory_of, partition, snapshot, well
from support.reports import node_facts


def of(samples: Samples, metric: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The values of these labels -> value."""
    return {tuple(dict(key)[each] for each in labels): value for key, value in samples[metric].items()}


def test_each_device_is_counted_in_exactly_one_state() -> None:
    assert of(agent(), "nodedevices_devices", "state") == {
        ("healthy",): 2,
        ("degraded",): 1,
        ("unhealthy",): 1,
        ("unknown",): 1,
        ("missing",): 1,
        ("unschedulable",): 0,
    }


def test_a_device_out_of_service_counts_as_that_only_while_nothing_is_wrong_with_it() -> None:
    shown = facts()
    cordoned = replace(shown, unschedulable=dict.fromkeys([gpu_id(0), gpu_id(1), gpu_id(2), gpu_id(4)], "RMA 4711"))
    samples = parsed(AgentMetrics(facts=lambda: cordoned, probes=dict).render().decode())
    states = of(samples, "nodedevices_devices", "state")
    assert {state: count for (state,), count in states.items()} == {
        "healthy": 1,
        "degraded": 0,
        "unhealthy": 1,
        "unknown": 1,
        "missing": 1,
        "unschedulable": 2,
    }
    assert of(samples, "nodedevices_device_healthy", "index")["0",] == 0


def test_a_fault_is_counted_and_a_device_held_and_not_used_says_for_how_long_and_by_whom() -> None:
    assert of(agent(), "nodedevices_device_faults", "index", "reason") == {("2", "Xid79"): 3}
    shown = of(agent(), "nodedevices_device_idle_seconds", "index", "namespace", "pod", "idle")
    assert shown == {("0", "ml", "train-0", "Idle"): 300}
    assert of(agent(), "nodedevices_device_unused_seconds_total", "namespace") == {("ml",): 300}
    assert of(agent(), "nodedevices_device_held_seconds_total", "namespace") == {("ml",): 7200}


def test_devices_say_what_they_are_why_they_are_unwell_and_what_may_be_handed_out() -> None:
    shown = of(agent(), "nodedevices_device_unwell", "index", "state", "reason", "recovery_action")
    assert shown == {
        ("1", "degraded", "RowRemapPending", "ResetDevice"): 1,
        ("2", "unhealthy", "Xid79", "RebootNode"): 1,
        ("3", "unknown", "ProbeSilent", "None"): 1,
        ("4", "unhealthy", "Missing", "Inspect"): 1,
    }
    shown = of(agent(), "nodedevices_device_healthy", "index")
    assert shown == {("0",): 1, ("1",): 1, ("2",): 0, ("3",): 1, ("4",): 0, ("5",): 1}
    samples = agent()
    info = of(samples, "nodedevices_device_info", "uuid", "type", "vendor", "model", "pci_bus_id", "numa_node")
    assert info[gpu_id(4), "gpu", "nvidia", "NVIDIA H100 80GB HBM3", "0000:04:00.0", "1"] == 1
    since = of(samples, "nodedevices_device_health_last_transition_timestamp_seconds", "index")
    assert since["2",] == SINCE.timestamp()


def test_each_container_that_holds_a_device_or_a_part_of_it_is_named_until_it_ended() -> None:
    shown = of(agent(), "nodedevices_device_holder", "uuid", "resource", "namespace", "pod", "container")
    assert shown == {
        (gpu_id(0), GPU, "ml", "train-0", "main"): 1,
        (gpu_id(2), GPU, "ml", "train-1", "main"): 1,
        (gpu_id(5), "", "ml", "infer", "main"): 1,
    }
    before = facts()
    after = node_facts(before, holdings=replace(before.world.holdings, holders=()))
    assert "nodedevices_device_holder" not in agent(after)


def test_memory_shares_and_their_holders_add_up() -> None:
    shown = of(agent(by_memory()), "nodedevices_device_memory_shares_bytes", "index", "resource", "state")
    assert shown == {
        ("0", MEMORY, "held"): 6 * GIB,
        ("0", MEMORY, "free"): 3 * GIB,
        ("0", MEMORY, "not_offered"): 0,
        ("0", MEMORY, "unallocatable"): GIB,
        ("1", MEMORY, "held"): 0,
        ("1", MEMORY, "free"): 0,
        ("1", MEMORY, "not_offered"): 9 * GIB,
        ("1", MEMORY, "unallocatable"): GIB,
    }
    labels = ("uuid", "resource", "namespace", "pod", "container")
    shown = of(agent(by_memory()), "nodedevices_device_holder_memory_bytes", *labels)
    assert shown == {(gpu_id(0), MEMORY, "ml", "small", "main"): 6 * GIB}
    assert not {each for each in agent() if "memory_shares" in each or "holder_memory" in each}


def test_of_a_gpu_that_is_missing_the_memory_that_pods_hold_counts_and_no_other() -> None:
    before = by_memory()
    inventory = stage.update(before.inventory, snapshot(sequence=2), now=START, monotonic=1.0)
    shown = agent(node_facts(before, inventory=inventory))
    counted = of(shown, "nodedevices_device_memory_shares_bytes", "index", "state")
    assert {key: value for key, value in counted.items() if value} == {("0", "held"): 6 * GIB}


def test_of_mig_devices_shared_by_memory_their_gpu_has_the_sum() -> None:
    parts = (partition(0, 0), partition(0, 1))
    device = gpu(0, mig_enabled=True, partitions=parts)
    ids = tuple(
        SchedulableId(id=f"{part.id}::4Gi.0", device_id=device.id, partition_id=part.id, replica=0) for part in parts
    )
    memory = MemoryShares(unit="4Gi", unit_bytes=4 * GIB, devices={part.id: 10 * GIB for part in parts})
    offered = OfferedResource(name=MEMORY, ids=ids, sharing=SharingFacts(mode=Memory(), memory=memory))
    shown = agent(facts(inventory=inventory_of(device), verdicts={}, plan=Plan(resources=(offered,))))
    assert of(shown, "nodedevices_device_memory_shares_bytes", "uuid", "state") == {
        (gpu_id(0), "held"): 0,
        (gpu_id(0), "free"): 8 * GIB,
        (gpu_id(0), "not_offered"): 0,
        (gpu_id(0), "unallocatable"): 12 * GIB,
    }


def test_a_resource_has_its_capacity_and_the_first_refused_allocate_is_an_increase() -> None:
    samples = agent()
    shown = [samples[f"nodedevices_resource_{each}"][("resource", GPU),] for each in ("capacity", "healthy")]
    assert shown == [5, 2]
    assert samples["nodedevices_resource_allocated"][("resource", GPU),] == 2
    # Prometheus' increase() does not see a series that begins at 1.
    latest = facts()
    metrics = AgentMetrics(facts=lambda: latest, probes=dict)
    refused = (("resource", GPU), ("result", "refused"))
    assert parsed(metrics.render().decode())["nodedevices_allocations_total"][refused] == 0
    metrics.kubelet_called(KubeletCall(Method.ALLOCATE, GPU, Result.REFUSED, 0.0))
    assert parsed(metrics.render().decode())["nodedevices_allocations_total"][refused] == 1


def test_every_call_between_kubelet_and_agent_is_counted_with_its_result_and_timed() -> None:
    latest = facts()
    metrics = AgentMetrics(facts=lambda: latest, probes=dict)
    for method, result, seconds in (
        (Method.REGISTER, Result.FAILED, 15.0),
        (Method.REGISTER, Result.GRANTED, 0.02),
        (Method.ALLOCATE, Result.GRANTED, 0.0002),
        (Method.PREFERRED, Result.REFUSED, 0.004),
    ):
        metrics.kubelet_called(KubeletCall(method, GPU, result, seconds))
    samples = parsed(metrics.render().decode())
    assert of(samples, "nodedevices_registrations_total", "result") == {
        ("granted",): 1,
        ("refused",): 0,
        ("failed",): 1,
    }
    assert of(samples, "nodedevices_allocations_total", "result") == {("granted",): 1, ("refused",): 0, ("failed",): 0}
    assert of(samples, "nodedevices_preferred_allocations_total", "result")["refused",] == 1
    assert of(samples, "nodedevices_kubelet_call_seconds_count", "method") == {
        ("Register",): 2,
        ("Allocate",): 1,
        ("GetPreferredAllocation",): 1,
    }
    assert of(samples, "nodedevices_kubelet_call_seconds_sum", "method")["Register",] == pytest.approx(15.02)


def test_claims_and_slices_are_counted_from_the_first_on_and_only_where_dra_serves() -> None:
    assert not [name for name in agent() if "claim" in name or "slice" in name]
    dra = DraCounters(driver="nodedevices.io", prepared=2, slice_writes=3)
    metrics = AgentMetrics(facts=lambda: None, probes=dict, dra=lambda: dra)
    by_result = ("nodedevices_claim_prepares_total", "driver", "result")
    assert of(parsed(metrics.render().decode()), *by_result)["nodedevices.io", "refused"] == 0
    metrics.kubelet_called(KubeletCall(Method.PREPARE, "nodedevices.io", Result.REFUSED, 1.5))
    samples = parsed(metrics.render().decode())
    assert of(samples, *by_result)["nodedevices.io", "refused"] == 1
    assert samples["nodedevices_prepared_claims"] == {(("driver", "nodedevices.io"),): 2}
    assert samples["nodedevices_resource_slice_writes_total"] == {(("driver", "nodedevices.io"),): 3}
    assert of(samples, "nodedevices_kubelet_call_seconds_sum", "method") == {("NodePrepareResources",): 1.5}


def test_a_probes_time_is_counted_once_for_each_reading_and_a_node_says_its_drivers_and_generation() -> None:
    metrics = AgentMetrics(facts=lambda: None, probes=dict)
    for milliseconds in (40, None, 2000):
        metrics.probe_read("nvml", snapshot(gpu(0), read_milliseconds=milliseconds))
    samples = parsed(metrics.render().decode())
    assert of(samples, "nodedevices_probe_read_seconds_count", "probe") == {("nvml",): 2}
    assert of(samples, "nodedevices_probe_read_seconds_sum", "probe")["nvml",] == pytest.approx(2.04)
    shown = agent(replace(facts(), config=ConfigStatus(generation=7)))
    assert shown["nodedevices_config_observed_generation"] == {(): 7}
    assert of(shown, "nodedevices_driver_info", "name", "version", "cuda_version") == {("nvidia", "570.148.08", ""): 1}
    assert "nodedevices_config_observed_generation" not in agent(), "no object was read yet"


def test_each_probe_says_when_its_last_line_came_and_before_the_first_plan_there_are_no_resources() -> None:
    reported, never = ProbeFacts(name="nvml", inventory=inventory_of()), facts().inventory
    silent = ProbeFacts(name="acme", inventory=replace(never, line_time=None))
    shown = agent(replace(facts(), probes=(reported, silent)))["nodedevices_probe_last_line_timestamp_seconds"]
    assert shown == {(("probe", "nvml"),): START.timestamp(), (("probe", "acme"),): 0}
    assert "nodedevices_resource_capacity" not in agent(node_facts(facts(), plan=None))
    assert "nodedevices_resource_capacity" not in agent(node_facts(facts(), plan=Plan()))


def test_telemetry_is_shown_in_base_units_and_only_where_it_is_switched_on() -> None:
    readings = well(
        temperature_celsius=61,
        power_milliwatts=350_500,
        fan_percent=40,
        utilization_percent=87,
        memory_used_bytes=1 << 30,
        sm_clock_mhz=1980,
        ecc_uncorrectable_volatile=3,
    )
    latest = facts(inventory=inventory_of(gpu(0, readings=readings)))
    expected = {
        "temperature_celsius": 61,
        "power_watts": 350.5,
        "fan_speed_ratio": 0.4,
        "utilization_ratio": 0.87,
        "memory_used_bytes": 1 << 30,
        "sm_clock_hertz": 1.98e9,
        "ecc_uncorrectable_volatile": 3,
        "memory_bytes": 80 << 30,
    }
    on = parsed(AgentMetrics(facts=lambda: latest, probes=dict, telemetry=True).render().decode())
    shown = {name: of(on, f"nodedevices_device_{name}", "uuid")[gpu_id(0),] for name in expected}
    assert shown == pytest.approx(expected)
    assert "nodedevices_device_memory_clock_hertz" not in on
    off = parsed(AgentMetrics(facts=lambda: latest, probes=dict).render().decode())
    assert "nodedevices_device_errors" not in on, "a GPU counts none"
    assert not [name for name in off if name.removeprefix("nodedevices_device_") in expected]


def test_telemetry_has_the_errors_that_a_device_counts_by_the_names_of_its_probe() -> None:
    latest = facts(inventory=inventory_of(gpu(0, readings=well(counters={"symbolError": 7, "linkDowned": 0}))))
    on = parsed(AgentMetrics(facts=lambda: latest, probes=dict, telemetry=True).render().decode())
    assert of(on, "nodedevices_device_errors", "counter") == {("symbolError",): 7, ("linkDowned",): 0}
