"""A policy's `discovery.probes`: which of the node's probes run, in the place of the node's own list."""

from __future__ import annotations

from typing import Any

from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.registry import KINDS
from support.cases import cases
from support.facts import gpu, gpu_id
from support.local import at_once
from support.probed_node import BOTH, BROKEN, CONFIG, GPU, NICS, RDMA, Node, nic, said

GPUS = said("nvml")
KNOWN = ", ".join(KINDS)
FLAGS = at_once(["--node-name=n1", "--probe=nvml", f"--probe={NICS}"], {})


def by(node: Node, *names: str, **more: Any) -> Node:
    """The node's object says these."""
    config = {**CONFIG, **({"discovery": {"probes": list(names)}} if names else {}), **more}
    return node.sees(config=config).step()


def refused(node: Node) -> tuple[str, str, str]:
    config = node.world.config
    return config.reason, config.refused.field if config.refused else "", config.message


@cases(
    ("names", "runs"),
    (("amd",), ("amd",)),
    (("nvml", "nics"), ("nvml", NICS)),
    (("nics", "intel", "nvml"), (NICS, "intel", "nvml")),
    (("auto", "nics"), ("amd", NICS)),
)
def test_a_policy_replaces_the_nodes_list_by_names_known_there(names: tuple[str, ...], runs: tuple[str, ...]) -> None:
    for node in (Node(BOTH, None, None, frozenset({"amd"})), Node(FileOutcome(), FLAGS, None, frozenset({"amd"}))):
        assert by(node, *names).runs == runs
        assert node.world.config.reason != "ConfigInvalid"


def test_probes_of_the_file_are_there_for_policies_and_of_one_name_the_flags_is_meant() -> None:
    flags = at_once(["--node-name=n1", "--config-file=/c", "--probe=nvml"], {})
    node = Node(BOTH, flags)
    assert node.runs == ("nvml",)
    assert by(node, "nvml", "nics").runs == ("nvml", NICS)
    assert by(Node(said("nvml", "nics=/opt/other"), FLAGS), "nics").runs == (NICS,)


def test_a_policy_that_takes_a_probe_away_or_that_goes_retires_its_devices() -> None:
    node = by(Node(said("nvml", NICS)), "nvml", "nics").line("nvml", gpu(0)).line("nics", nic()).held(RDMA, "NIC-0")
    by(node.uses(GPUS))
    assert node.runs == ("nvml",)
    node.wait(30, nvml=(gpu(0),))
    assert (node.devices, node.offered) == ([gpu_id(0), "NIC-0"], [gpu_id(0)])
    node.held(RDMA).wait(30, nvml=(gpu(0),))
    assert node.devices == [gpu_id(0)]
    node = Node(BOTH).line("nvml", gpu(0)).line("nics", nic()).held(GPU, gpu_id(0))
    by(node, "nics").wait(30, nics=(nic(),))
    assert (node.runs, node.offered, node.devices) == ((NICS,), ["NIC-0"], [gpu_id(0), "NIC-0"])
    assert by(node, "nvml", "nics").line("nvml", gpu(0)).line("nics", nic()).offered == ["NIC-0", gpu_id(0)]


@cases(
    ("names", "complaint"),
    (
        ("nvml", "rocm"),
        f": this node has no probe 'rocm'; give auto, {KNOWN}, or what the node's flags and file define: nics",
    ),
    (("nvml", "simulated"), " simulated: needs --simulated, a file of devices or a profile such as 'h100 x 8'"),
    (
        ("nvml", "generic"),
        " generic: needs --devices-dir, a folder with generic.yaml, which says what devices there are",
    ),
)
def test_an_unknown_name_or_one_without_its_options_changes_nothing(names: tuple[str, ...], complaint: str) -> None:
    node = Node(BOTH).line("nvml", gpu(0)).line("nics", nic())
    by(node, *names)
    assert node.runs == ("nvml", NICS)
    message = f"discovery.probes{complaint}; the previous configuration stays in effect"
    assert refused(node) == ("ConfigInvalid", "discovery.probes", message)
    assert node.offered == ["NIC-0", gpu_id(0)]
    assert by(node, "nics").runs == (NICS,)
    assert node.world.config.reason == "Applied"


@cases("name", "nics=/opt/x", "x=unix:/run/x.sock", "/bin/sh", "nvml nics", "N")
def test_a_policy_brings_no_program(name: str) -> None:
    node = by(Node(BOTH).line("nvml", gpu(0)).line("nics", nic()), name)
    assert node.runs == ("nvml", NICS)
    assert refused(node)[:2] == ("ConfigInvalid", "discovery.probes[0]")


def test_the_policys_probes_run_after_a_restart_and_never_on_a_standalone_node() -> None:
    state = by(Node(BOTH).line("nvml", gpu(0)), "nics").line("nics", nic()).world.state
    assert Node(BOTH, None, state).runs == (NICS,)
    assert Node(BROKEN, None, state).runs == (NICS,), "and while the file that defines it cannot be read"
    state = by(Node(BOTH).line("nvml", gpu(0)), "nics").line("nics", nic()).world.state
    local = parse(["--standalone", "--config-file=/c"], {})
    assert Node(BOTH, local, state).runs == ("nvml", NICS)


def test_whatever_else_is_wrong_those_that_run_stay_and_the_state_says_which_auto_stands_for() -> None:
    node = by(Node(BOTH).line("nvml", gpu(0)).line("nics", nic()), "nics", sharing={"strategy": "no such"})
    assert (node.runs, refused(node)[1]) == (("nvml", NICS), "sharing.strategy")
    node = by(Node(BOTH).line("nvml", gpu(0)), "nics").uses(BROKEN)
    assert node.runs == (NICS,)
    node = by(Node(said("simulated")), "nvml").line("nvml", gpu(0))
    assert (node.runs, node.world.config.reason) == (("nvml",), "Applied")
    node = by(Node(GPUS, None, None, frozenset({"nvml", "amd"})), "auto").line("nvml", gpu(0)).line("amd", nic())
    assert node.world.state.auto_probes == ("nvml", "amd")
    assert by(node, "nvml", "amd").world.state.auto_probes == ()
