"""Which probes run, by flag and by file, and what becomes of the devices of one that is taken away while it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from nodedevices_plugin.model import HoldersState, Holdings, RecentAllocate
from nodedevices_plugin.pipeline.probe_set import PROVEN_SECONDS
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import begin
from nodedevices_plugin.settings import file as files
from nodedevices_plugin.settings.file import ConfigError, FileOutcome, NamedFiles
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.protocol import DeviceFact, Readings
from nodedevices_probe.registry import KINDS
from nodedevices_probe.remote import TYPE as POOL, UNREACHABLE, VENDOR as REMOTE
from support.cases import cases
from support.facts import CONFIRMED, START, gpu, gpu_id, xid
from support.probed_node import BOTH, BROKEN, GPU, NICS, OTHER_NICS, RDMA, Node, nic, said

WHICH = f"give auto, {', '.join(KINDS)}, NAME=COMMAND or NAME=unix:/PATH"


def both() -> Node:
    return Node().line("nvml", gpu(0)).line("nics", nic())


# --- which run --------------------------------------------------------------------------------------------------------
def test_flags_come_before_the_file_that_applies_before_what_ran_last_and_that_before_the_default() -> None:
    ran = State(probes=("ib=/opt/ib",))
    flags = parse(["--node-name=n1", "--config-file=/c", "--probe=fpga=/opt/fpga"], {})
    assert Node(BOTH, flags, ran).runs == ("fpga=/opt/fpga",)
    assert Node(BOTH, None, ran).runs == ("nvml", NICS)
    assert Node(BROKEN, None, ran).runs == ("ib=/opt/ib",)
    assert Node(BROKEN).runs == ("nvml",)
    assert Node(FileOutcome(), None, ran).runs == ("nvml",), "without a file, or without the key in it: the default"
    local = parse(["--standalone", "--config-dir=/c", "--default-config=nics"], {})
    named = NamedFiles(folder="/c", files={"nics": BOTH, "gpus": said("nvml")})
    assert begin(State(), local, now=START, monotonic=0.0, files=named).known.probe_set.texts == ("nvml", NICS)


def test_a_file_that_cannot_be_used_changes_no_probe_and_a_refused_policy_keeps_none_from_starting() -> None:
    node = both().uses(BROKEN)
    assert node.runs == ("nvml", NICS)
    assert node.uses(said("nvml")).runs == ("nvml",)
    node = Node(said("nvml")).line("nvml", gpu(0))
    node.sees(config={"sharing": {"strategy": "no such"}})
    node.uses(BOTH)
    assert (node.runs, node.world.config.reason) == (("nvml", NICS), "ConfigInvalid")


def test_the_state_file_has_those_that_run_one_is_enough_and_a_command_may_have_commas() -> None:
    state = both().world.state
    assert state.probes == ("nvml", NICS)
    assert Node(BROKEN, None, replace(state, probes=())).runs == ("nvml",)
    assert Node(BROKEN, None, replace(state, probes=("removed-since",))).runs == ("nvml",)
    assert files.parse(json.dumps({"flags": {"probe": "nics=/x a,b"}}).encode()).flags["probe"] == ("nics=/x a,b",)


@cases(
    ("given", "complaint"),
    (["rocm"], f"flags.probe: 'rocm' is not allowed; {WHICH}"),
    ([], f"flags.probe: empty; {WHICH}"),
    (["nvml", "nvml=/x"], "flags.probe: nvml is given twice; give each probe its own name"),
    (["nics="], "flags.probe nics: no command after =; give a program with its arguments"),
    ({"nics": "/x"}, "flags.probe: {'nics': '/x'} is not a list of names"),
)
def test_a_probe_of_the_file_that_cannot_be_is_refused_with_what_is_right(given: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        files.parse(json.dumps({"flags": {"probe": given}}).encode())
    assert refused.value.problems == (complaint,)
    assert refused.value.place == "flags.probe"


def test_a_probe_of_the_file_that_lacks_a_flag_is_refused_and_a_flag_for_one_is_no_mistake() -> None:
    node = both().uses(said("simulated"))
    assert node.runs == ("nvml", NICS)
    config = node.world.config
    assert (config.reason, config.refused and config.refused.field) == ("ConfigInvalid", "flags.probe")
    assert config.message.startswith(
        "configuration file /c: flags.probe simulated: needs --simulated, a file of devices or a profile"
    )
    arguments = ["--node-name=n1", "--simulated=h100 x 2"]
    local = parse([*arguments, "--config-file=/c"], {})
    assert Node(said("simulated"), local).runs == ("simulated",)
    assert Node(said("nvml"), local).runs == ("nvml",)
    with pytest.raises(ConfigError, match="--simulated: only valid with --probe simulated"):
        parse(arguments, {})


# --- one more ---------------------------------------------------------------------------------------------------------
def test_a_probe_that_is_added_is_waited_for_and_takes_nothing_from_the_others() -> None:
    node = Node(said("nvml")).line("nvml", gpu(0)).wait(60, nvml=(gpu(0),)).uses(BOTH)
    assert (node.offered, node.last.silent) == ([gpu_id(0)], frozenset())
    assert sorted(node.line("nics", nic()).offered) == sorted([gpu_id(0), "NIC-0"])
    late = Node(said("nvml")).line("nvml", gpu(0)).uses(BOTH).wait(16, nvml=(gpu(0),))
    assert (late.offered, late.last.silent) == ([gpu_id(0)], frozenset({"nics"}))


# --- one less ---------------------------------------------------------------------------------------------------------
def test_what_nobody_holds_goes_to_no_new_pod_and_is_gone_once_that_is_sure() -> None:
    node = both().uses(said("nvml"))
    assert (node.offered, node.devices) == ([gpu_id(0)], [gpu_id(0), "NIC-0"])
    why = "its probe is no longer configured; listed until no pod holds it and it is healthy"
    assert node.problems == [f"ProbeRemoved: nic-0: not offered: {why}"]
    node.wait(PROVEN_SECONDS - 1, nvml=(gpu(0),))
    assert node.devices == [gpu_id(0), "NIC-0"]
    node.wait(2, nvml=(gpu(0),))
    assert (node.devices, node.problems, [each.name for each in node.world.plan.resources]) == ([gpu_id(0)], [], [GPU])  # type: ignore[union-attr]


def test_what_a_pod_holds_or_was_just_handed_stays_listed_and_is_no_fault() -> None:
    node = both().held(RDMA, "NIC-0").uses(said("nvml")).wait(600, nvml=(gpu(0),))
    assert (node.offered, node.devices) == ([gpu_id(0)], [gpu_id(0), "NIC-0"])
    assert node.states == {gpu_id(0): ("Healthy", ""), "NIC-0": ("Unknown", "ProbeSilent")}
    assert [each.probe for each in node.world.known.inventory.devices] == ["nvml", "nics"]
    assert node.last.silent == frozenset(), "a probe that does not run is not silent"
    assert node.held(RDMA).devices == [gpu_id(0)]
    node = both()
    now = node.time
    node.uses(said("nvml"))
    node.given(recent=(RecentAllocate(resource=RDMA, ids=("NIC-0",), time=now, monotonic=node.clock + 0.2),))
    node.wait(PROVEN_SECONDS + 5, nvml=(gpu(0),))
    assert node.devices == [gpu_id(0), "NIC-0"]


def test_while_nobody_knows_what_pods_hold_nothing_is_dropped_and_no_fault_is_forgotten() -> None:
    node = both()
    node.given(holdings=Holdings(state=HoldersState.UNAVAILABLE))
    node.uses(said("nvml")).wait(600, nvml=(gpu(0),))
    assert (node.offered, node.devices) == ([gpu_id(0)], [gpu_id(0), "NIC-0"])
    node = both().line("nvml", gpu(0), events=(xid(79, sequence=3),)).uses(said(NICS)).wait(600, nics=(nic(),))
    assert node.states[gpu_id(0)] == ("Unhealthy", "Xid79")
    again = node.uses(BOTH).line("nvml", gpu(0), instance="again")
    assert (again.states[gpu_id(0)], again.offered) == (("Unhealthy", "Xid79"), ["NIC-0"])


def test_a_pool_that_could_not_be_reached_leaves_with_its_probe() -> None:
    """Nothing of it is on this node, and its probe would judge it anew: nobody has to confirm anything."""
    pool = DeviceFact(id="pool:a", index=0, type=POOL, vendor=REMOTE, readings=Readings(conditions=(UNREACHABLE,)))
    pools = "pools=/opt/pools"
    node = Node(said("nvml", pools)).line("nvml", gpu(0)).line("pools", pool)
    assert node.states["pool:a"] == ("Unhealthy", "ControllerUnreachable")
    assert node.world.known.verdicts["pool:a"].recovery_action == "Inspect"
    node.uses(said("nvml")).wait(PROVEN_SECONDS + 5, nvml=(gpu(0),))
    assert (node.devices, node.problems) == ([gpu_id(0)], [])
    held = Node(said("nvml", pools)).line("nvml", gpu(0)).line("pools", pool).held("remote.nodedevices.io/a", "pool:a")
    assert held.uses(said("nvml")).wait(600, nvml=(gpu(0),)).devices == [gpu_id(0), "pool:a"], "while no pod holds it"


def test_a_broken_device_of_a_gone_probe_leaves_on_a_persons_word_and_its_late_line_counts_for_nothing() -> None:
    node = both().line("nvml", gpu(0), events=(xid(79, sequence=3),)).uses(said(NICS)).wait(60, nics=(nic(),))
    node.sees(confirm=f"{gpu_id(0)}=removed@{CONFIRMED}")
    assert node.line("nics", nic()).devices == ["NIC-0"]
    node = both().uses(said("nvml")).line("nics", nic(), nic(1))
    assert node.devices == [gpu_id(0), "NIC-0"]


# --- another in its place ---------------------------------------------------------------------------------------------
@cases("text", "ib=/opt/nic-probe", OTHER_NICS)
def test_a_device_that_the_next_probe_reports_too_is_offered_all_the_time_and_held_as_before(text: str) -> None:
    node, name = both().held(RDMA, "NIC-0"), text.partition("=")[0]
    assert sorted(node.uses(said("nvml", text)).offered) == sorted([gpu_id(0), "NIC-0"])
    assert sorted(node.line(name, nic()).offered) == sorted([gpu_id(0), "NIC-0"])
    assert {each.fact.id: each.probe for each in node.world.known.inventory.devices}["NIC-0"] == name
    assert (node.states["NIC-0"], node.problems) == (("Healthy", ""), [])


@cases(
    ("old", "new"),
    ({}, {}),
    ({"pci_bus_id": "", "device_nodes": ("/dev/u0", "/dev/cm")}, {"device_nodes": ("/dev/u0",)}),
)
def test_hardware_under_another_id_goes_to_no_pod_while_one_holds_it(old: dict[str, Any], new: dict[str, Any]) -> None:
    renamed, beside = nic(0, id="mlx5_0", **new), nic(1, id="mlx5_1")
    node = Node().line("nvml", gpu(0)).line("nics", nic(0, **old)).held(RDMA, "NIC-0")
    node.uses(said("nvml", OTHER_NICS)).line("nics", renamed, beside)
    assert sorted(node.offered) == sorted([gpu_id(0), "mlx5_1"])
    assert any("a removed probe may have reported this device" in each for each in node.problems)
    node.wait(60, nvml=(gpu(0),), nics=(renamed, beside)).held(RDMA)
    assert sorted(node.offered) == sorted([gpu_id(0), "mlx5_0", "mlx5_1"])


def test_no_two_ids_of_the_same_hardware_are_on_offer_also_after_two_changes_in_a_row() -> None:
    node = both().uses(said("nvml", "ib=/opt/ib", "fpga=/opt/fpga"))
    assert sorted(node.offered) == sorted([gpu_id(0), "NIC-0"]), "fpga has not reported yet"
    node.line("ib", nic(0, id="mlx5_0"))
    assert node.offered == [gpu_id(0)]
    node.wait(PROVEN_SECONDS + 1, nvml=(gpu(0),), ib=(nic(0, id="mlx5_0"),))
    assert sorted(node.offered) == sorted([gpu_id(0), "mlx5_0"])
    node = both().uses(said("nvml", "ib=/opt/ib")).line("ib", nic(0, id="mlx5_0")).uses(BOTH)
    assert node.devices == [gpu_id(0), "NIC-0", "mlx5_0"]
    assert node.offered == [gpu_id(0)]
    assert sorted(node.line("nics", nic()).offered) == [gpu_id(0)]
    assert sorted(node.wait(PROVEN_SECONDS + 1, nvml=(gpu(0),), nics=(nic(),)).offered) == [gpu_id(0), "NIC-0"]


# --- restarts ---------------------------------------------------------------------------------------------------------
def test_a_restart_in_the_middle_keeps_what_pods_hold_and_saves_nothing_before_a_probe_has_reported() -> None:
    node = both().held(RDMA, "NIC-0").uses(said("nvml")).restart().line("nvml", gpu(0)).wait(60, nvml=(gpu(0),))
    assert (node.offered, node.devices) == ([gpu_id(0)], [gpu_id(0), "NIC-0"])
    assert node.held(RDMA).devices == [gpu_id(0)]
    assert replace(Node().wait(1).world.state, spec=None) == State()


def test_a_restart_with_another_command_knows_the_devices_of_before_and_is_the_same_as_the_change() -> None:
    renamed = nic(0, id="mlx5_0")
    node = both().held(RDMA, "NIC-0").uses(said("nvml", OTHER_NICS)).line("nics", renamed)
    again = node.restart().line("nvml", gpu(0)).line("nics", renamed).wait(60, nvml=(gpu(0),), nics=(renamed,))
    assert (again.offered, again.states["NIC-0"][0]) == ([gpu_id(0)], "Unknown")
    assert sorted(again.held(RDMA).offered) == sorted([gpu_id(0), "mlx5_0"])
    assert again.world.state.retired_devices == ()
    node = both().held(RDMA, "NIC-0").restart(said("nvml", OTHER_NICS))
    node.line("nvml", gpu(0)).line("nics", nic(0, id="mlx5_0"))
    assert node.offered == [gpu_id(0)]
    assert sorted(node.held(RDMA).offered) == sorted([gpu_id(0), "mlx5_0"])


def test_a_gpu_that_a_nic_of_another_probe_renames_goes_to_no_second_pod() -> None:
    near = {"resources": {"devices": [{"match": {"type": "gpu", "near": "nic"}, "name": "example.com/near"}]}}
    node = Node(said("nvml"))
    node.sees(config=near)
    node.line("nvml", gpu(0, pcie_root="pci0000:16"), gpu(1)).held(GPU, gpu_id(0))
    node.uses(BOTH).line("nics", nic(pcie_root="pci0000:16")).line("nvml", gpu(0, pcie_root="pci0000:16"), gpu(1))
    names = {each.name: [one.id for one in each.ids if one.healthy] for each in node.plan.resources}
    assert names == {GPU: [gpu_id(1)], "example.com/near": []}
    node.held(GPU)
    assert sorted(node.offered) == [gpu_id(0), gpu_id(1)]
    node.line("nics")
    assert node.states["NIC-0"] == ("Unknown", "Missing")
    assert sorted(node.offered) == [gpu_id(0), gpu_id(1)], "a NIC that fails renames no GPU"
