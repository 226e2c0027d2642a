"""The nvml probe as a process, through real pynvml and ctypes, against a library that says what each test wants.

It is below a driver's root, where a process that is a fork can load it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nodedevices_plugin.inputs.probe_sessions import ProbeProcess, ProbeSocket
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe import nvidia
from nodedevices_probe.protocol import DriverState, Link, PciePath, Readings, Snapshot
from nodedevices_probe.serving.requests import INTERVAL
from support.agentprocess import AgentProcess
from support.probes import COMMAND, cancelled, device, eventually
from support.served import probe_server
from support.trees import Tree

if TYPE_CHECKING:
    from nvml.conftest import FakeMachine

XID = 0x8
NOT_READY = 27  # an answer that says nothing about the device
H100 = "NVIDIA H100 80GB HBM3"
GPU: Any = {"vendor": "0x10de", "class": "0x030200"}  # on the PCI bus


def gpu_id(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def codes(snapshot: Snapshot) -> list[str]:
    return [problem.code for problem in snapshot.problems]


def test_eight_gpus_are_reported_with_all_that_identifies_them(machine: FakeMachine) -> None:
    for index in range(8):
        at = 0x10 + index * 0x10
        Tree(machine.root).pci(f"0000:{at + 7:02x}:00.0", behind=f"pci0000:{at:02x}", numa_node=index // 4, **GPU)
    machine.file("sys/class/dmi/id/product_name", "DGXH100\n")
    machine.file("proc/sys/kernel/random/boot_id", "0d9b2f3a-boot\n")
    machine.say(count=8, **{f"gpu{index}__nvlink": "switch" for index in range(8)}, gpu5__minor=7, gpu0__fabric=3)

    seen = machine.poll()

    assert seen.probe == "nvml"
    assert seen.boot_id == "0d9b2f3a-boot"
    assert (seen.driver.state, seen.driver.version, seen.driver.cuda_version) == ("Loaded", "570.148.08", "12.8")
    assert seen.machine.type == "DGXH100"
    assert seen.machine.mode == "compute"
    assert seen.machine.clique == "abababab-abab-abab-abab-abababababab.3"
    assert seen.accelerators_on_bus == 8
    assert seen.problems == ()
    assert [each.id for each in seen.devices] == [gpu_id(index) for index in range(8)]
    fifth = device(seen, 5)
    assert (fifth.minor, fifth.device_nodes) == (7, ("/dev/nvidia7",))
    assert (fifth.product_name, fifth.brand, fifth.architecture) == (H100, "Nvidia", "Hopper")
    assert (nvidia.compute_capability(fifth), fifth.capacity) == ("9.0", {"memory": "81559Mi"})
    assert (fifth.pci_bus_id, fifth.pcie_root, fifth.numa_node) == ("0000:67:00.0", "pci0000:60", 1)
    assert (fifth.extra[nvidia.MIG_CAPABLE].boolean, nvidia.mig_enabled(fifth), fifth.partitions) == (True, False, ())
    assert fifth.links == (Link(kind="NVLink", to="switch", count=18),)
    paths = {each.to: each.path for each in fifth.pcie}
    assert paths[gpu_id(4)] is PciePath.NODE
    assert paths[gpu_id(0)] is PciePath.SYSTEM
    assert gpu_id(5) not in paths
    assert fifth.readings.recovery_action == "None"
    assert fifth.readings.nvlinks_inactive == 0
    assert fifth.readings.temperature_celsius == 41


def test_where_virtual_machines_have_all_gpus_no_driver_is_missing(machine: FakeMachine) -> None:
    Tree(machine.root).pci("0000:17:00.0", behind="pci0000:16", driver="vfio-pci", **GPU)
    machine.say(init=9)

    seen = machine.poll()

    assert (seen.driver.state, seen.devices, seen.accelerators_on_bus, seen.problems) == ("Loaded", (), 0, ())


def test_a_gpu_that_fell_off_the_bus_before_the_driver_had_it_is_named_by_its_address(machine: FakeMachine) -> None:
    for bus_id, driver in (("0000:17:00.0", "nvidia"), ("0000:b3:00.0", ""), ("0000:c1:00.0", "vfio-pci")):
        Tree(machine.root).pci(bus_id, behind="pci0000:16", driver=driver, **GPU)
    machine.say(count=1)

    seen = machine.poll()

    assert (len(seen.devices), seen.accelerators_on_bus) == (1, 2)
    [problem] = seen.problems
    assert (problem.code, problem.message.split(": ")[0]) == ("DriverUnbound", "0000:b3:00.0")


def test_bridged_gpus_are_linked_with_each_other_and_a_card_without_nvlink_does_not_report_it(
    machine: FakeMachine,
) -> None:
    one, _, alone = machine.gpus({"nvlink": "pair"}, {"nvlink": "pair"}, {})

    assert one.links == (Link(kind="NVLink", to=gpu_id(1), count=18),)
    assert (alone.links, alone.readings.nvlinks_inactive) == ((), None)


def test_mig_devices_are_reported_with_placement_and_capability_nodes(machine: FakeMachine) -> None:
    machine.file(
        "proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu1/gi3/access 165\ngpu1/gi3/ci0/access 166\ngpu1/gi9/access 219\n",
    )
    machine.say(count=2, gpu1__mig=3, gpu1__mig0__gi=3, gpu1__mig0__slices=3, gpu1__mig0__memory_mib=40448)
    machine.say(gpu1__mig0__start=4, gpu1__mig0__size=4, gpu1__mig1__uuid="-", gpu1__mig2__gi=9)

    seen = machine.poll()

    assert device(seen, 0).partitions == ()
    assert nvidia.mig_enabled(device(seen, 1))
    big, small = device(seen, 1).partitions
    assert (big.profile, big.index, big.gi, big.ci) == ("3g.40gb", 0, 3, 0)
    assert (big.start, big.size, big.capacity["memory"], big.capacity["multiprocessors"]) == (4, 4, "40448Mi", "48")
    assert big.device_nodes == ("/dev/nvidia-caps/nvidia-cap165", "/dev/nvidia-caps/nvidia-cap166")
    assert (small.profile, small.index, small.gi) == ("1g.10gb", 2, 9)


def test_a_mig_profile_is_named_as_nvidia_names_it(machine: FakeMachine) -> None:
    me = f"{H100} MIG 1g.10gb+me"
    cases: dict[str, list[dict[str, object]]] = {
        "1g.10gb": [{"mig0.slices": 1, "mig0.memory_mib": 9984}],
        "1g.20gb": [{"mig0.slices": 1, "mig0.memory_mib": 20096}],
        "1c.2g.20gb": [{"mig0.slices": 2, "mig0.ci_slices": 1, "mig0.memory_mib": 20096}],
        "7g.80gb": [{"mig0.slices": 7, "mig0.memory_mib": 81152}],
        "1g.10gb+me": [{"mig_name": me}],  # as the driver names it
    }
    # What it has besides is in its name, whether the driver names the profile, without it, or not at all.
    for number, besides in {7: "+me", 9: "", 10: "+gfx", 13: "-me", 15: "+me.all"}.items():
        cases.setdefault(f"1g.10gb{besides}", []).extend(
            {"mig_name": said, "mig0.profile": number} for said in (H100, f"{H100} MIG 1g.10gb")
        )
    expected = [name for name, machines in cases.items() for _ in machines]

    found = machine.gpus(*({"mig": 1, **said} for machines in cases.values() for said in machines))

    assert [part.profile for each in found for part in each.partitions] == expected


def test_mig_devices_come_and_go_while_the_probe_runs(machine: FakeMachine) -> None:
    machine.say(count=1)
    with machine.probe() as probe:
        probe.until(lambda seen: not nvidia.mig_enabled(seen.devices[0]))
        machine.say(gpu0__mig=2)
        probe.until(lambda seen: len(seen.devices[0].partitions) == 2)
        machine.say(gpu0__mig=1)
        probe.until(lambda seen: len(seen.devices[0].partitions) == 1)


def test_a_mig_device_made_anew_under_the_id_of_another_is_read_anew(machine: FakeMachine) -> None:
    """The driver makes the id of the card and the place alone."""
    cases: tuple[tuple[dict[str, object], dict[str, object], str, str], ...] = (
        ({"mig0.slices": 2, "mig0.memory_mib": 20096, "mig0.size": 2}, {"mig0.slices": 1}, "2g.20gb", "1g.20gb"),
        ({"mig0.slices": 3, "mig0.memory_mib": 40448}, {"mig0.ci_slices": 1}, "3g.40gb", "1c.3g.40gb"),
        ({}, {"mig_name": f"{H100} MIG 1g.10gb+me"}, "1g.10gb", "1g.10gb+me"),
    )

    def profiles(seen: Snapshot) -> list[str]:
        return [part.profile for each in seen.devices for part in each.partitions]

    machine.say(count=len(cases))
    for index, (before, *_) in enumerate(cases):
        machine.say(**{f"gpu{index}__{key}": value for key, value in {"mig": 1, **before}.items()})
    with machine.probe() as probe:
        first = probe.until(lambda seen: profiles(seen) == [each[2] for each in cases])
        for index, (_, after, *_) in enumerate(cases):
            machine.say(**{f"gpu{index}__{key}": value for key, value in after.items()})
        second = probe.until(lambda seen: profiles(seen) == [each[3] for each in cases])
    ids = [[part.id for each in seen.devices for part in each.partitions] for seen in (first, second)]
    assert ids[0] == ids[1]


def test_a_mig_device_that_could_not_be_read_whole_is_read_again(machine: FakeMachine) -> None:
    machine.file("proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access 12\n")
    machine.say(count=1, gpu0__mig=1, gpu0__fail__nvmlDeviceGetGpuInstanceById=NOT_READY)
    with machine.probe() as probe:
        part = probe.until(lambda seen: bool(seen.devices[0].partitions)).devices[0].partitions[0]
        assert (part.start, len(part.device_nodes)) == (None, 1)
        machine.file("proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
        machine.say(gpu0__fail__nvmlDeviceGetGpuInstanceById=0)
        probe.until(lambda seen: [(p.start, len(p.device_nodes)) for p in seen.devices[0].partitions] == [(0, 2)])


def test_a_gpu_that_does_not_say_how_it_is_cut_is_not_whole_but_does_not_answer(machine: FakeMachine) -> None:
    asked = ("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetAttributes_v2")
    machine.say(count=len(asked), **{f"gpu{index}__mig": 2 for index in range(len(asked))})

    def without(seen: Snapshot) -> int:
        """How many are not whole; of these each has an error, in every line."""
        found = [each.readings.error for each in seen.devices if each.readings.error or len(each.partitions) != 2]
        assert None not in found
        return len(found)

    with machine.probe() as probe:
        probe.until(lambda seen: seen.devices and not without(seen))
        machine.say(**{f"gpu{index}__fail__{name}": NOT_READY for index, name in enumerate(asked)})
        seen = probe.until(lambda seen: without(seen) == len(asked))
        assert [str(each.readings.error).partition(":")[0] for each in seen.devices] == list(asked)
        machine.say(**{f"gpu{index}__fail__{name}": 0 for index, name in enumerate(asked)})
        probe.until(lambda seen: not without(seen))


def test_an_identity_that_could_not_be_read_whole_is_read_again(machine: FakeMachine) -> None:
    machine.say(count=1, gpu0__fail__nvmlDeviceGetName=NOT_READY)
    with machine.probe() as probe:
        probe.until(lambda seen: seen.devices[0].product_name == "")
        machine.say(gpu0__fail__nvmlDeviceGetName=0)
        probe.until(lambda seen: seen.devices[0].product_name == H100)


def test_the_clique_is_the_one_that_the_driver_reports_now(machine: FakeMachine) -> None:
    machine.say(count=1, gpu0__fabric=3)
    with machine.probe() as probe:
        probe.until(lambda seen: seen.machine.clique.endswith(".3"))
        machine.say(gpu0__fabric=4)
        probe.until(lambda seen: seen.machine.clique.endswith(".4"))
        machine.say(gpu0__fail__nvmlDeviceGetGpuFabricInfoV=NOT_READY)
        seen = probe.until(lambda seen: seen.devices[0].readings.fabric_state is None)
        assert seen.machine.clique.endswith(".4"), "it does not say"
        machine.say(gpu0__fail__nvmlDeviceGetGpuFabricInfoV=0, gpu0__fabric_state=1)
        probe.until(lambda seen: seen.machine.clique == "")


def test_nvlinks_that_do_not_say_how_they_are_are_not_up(machine: FakeMachine) -> None:
    machine.say(count=1, gpu0__nvlink="switch")
    with machine.probe() as probe:
        probe.until(lambda seen: seen.devices[0].readings.nvlinks_inactive == 0)
        machine.say(gpu0__fail__nvmlDeviceGetNvLinkState=NOT_READY)
        probe.until(lambda seen: seen.devices[0].readings.nvlinks_inactive is None)


def test_a_lost_gpu_keeps_its_identity_and_its_neighbours_their_readings(machine: FakeMachine) -> None:
    machine.say(count=4)
    with machine.probe() as probe:
        before = probe.until(lambda seen: len(seen.devices) == 4)
        machine.say(gpu2__lost=1)
        after = probe.until(lambda seen: device(seen, 2).readings.lost)

        assert device(after, 2).id == gpu_id(2)
        assert device(after, 2).product_name == H100
        assert device(after, 2).pcie == device(before, 2).pcie
        for index in (0, 1, 3):
            assert device(after, index) == device(before, index)

        machine.say(gpu2__lost=0)
        back = probe.until(lambda seen: not device(seen, 2).readings.lost)
        assert back.devices == before.devices


def test_a_gpu_lost_from_the_start_is_known_by_what_the_kernel_says_of_it(machine: FakeMachine) -> None:
    for index in range(2):
        machine.file(
            f"proc/driver/nvidia/gpus/0000:{0x17 + index * 0x10:02x}:00.0/information",
            f"Model: \t\t {H100}\nGPU UUID: \t {gpu_id(index)}\nDevice Minor: \t {index}\nBus Location: \t x\n",
        )
    machine.say(count=2, gpu1__lost=1)

    lost = device(machine.poll(), 1)

    assert lost.readings.lost
    assert (lost.id, lost.minor, lost.product_name, lost.pci_bus_id) == (gpu_id(1), 1, H100, "0000:27:00.0")


def test_a_gpu_that_nobody_knows_is_still_a_device(machine: FakeMachine) -> None:
    machine.say(count=2, gpu0__fail__nvmlDeviceGetHandleByIndex_v2=999)

    unknown = device(machine.poll(), 0)

    assert unknown.id == "nvml-index-0"
    assert unknown.readings.error == "nvmlDeviceGetHandleByIndex: Unknown Error"


def test_readings_say_what_the_driver_says(machine: FakeMachine) -> None:
    cases: tuple[tuple[dict[str, int], str, object], ...] = (
        ({"recovery": 1}, "recovery_action", "ResetDevice"),
        ({"recovery": 2}, "recovery_action", "RebootNode"),
        ({"recovery": 3}, "recovery_action", "DrainP2P"),
        ({"recovery": 4}, "recovery_action", "DrainAndReset"),
        ({"recovery": 5}, "recovery_action", "RecoverIMEXDomain"),
        ({"recovery": 6}, "recovery_action", "ResetBus"),
        ({"recovery": 7}, "recovery_action", "RebootSystem"),
        ({"recovery": 42}, "recovery_action", "RebootSystem"),
        ({"remap_pending": 1}, "remap_pending", True),
        ({"remap_failure": 1}, "remap_failure", True),
        ({"remap_uncorrectable": 3}, "remapped_uncorrectable", 3),
        ({"ecc_volatile": 2}, "ecc_uncorrectable_volatile", 2),
        ({"sram": 1}, "sram_threshold_exceeded", True),
        ({"temperature": 93}, "temperature_celsius", 93),
        ({"temperature": 0xFFFFFFFF}, "temperature_celsius", None),
        ({"fail.nvmlDeviceGetRemappedRows": 3}, "remap_failure", None),
        ({"fail.nvmlDeviceGetRemappedRows": 16}, "error", "nvmlDeviceGetRemappedRows: GPU requires restart"),
        ({"fail.nvmlDeviceGetPowerUsage": 999}, "error", None),
    )
    seen = machine.gpus(*(said for said, *_ in cases))
    found = [getattr(one.readings, reading) for one, (_, reading, _) in zip(seen, cases, strict=True)]
    assert found == [value for *_, value in cases]


def test_telemetry_is_read_where_it_is_requested_and_a_board_without_a_fan_has_none(machine: FakeMachine) -> None:
    machine.say(count=2, gpu0__fan=40, gpu0__utilization=87, gpu0__used_mib=1024)

    with_fan, without = (each.readings for each in machine.poll("--telemetry").devices)
    [plain, _] = (each.readings for each in machine.poll().devices)

    assert (with_fan.fan_percent, with_fan.utilization_percent, with_fan.memory_used_bytes) == (40, 87, 1 << 30)
    assert (with_fan.sm_clock_mhz, with_fan.memory_clock_mhz) == (1980, 2619)
    assert (without.fan_percent, without.error, without.utilization_percent) == (None, None, 0)
    assert (plain.fan_percent, plain.utilization_percent, plain.memory_used_bytes) == (None, None, None)


FIRST_NAMESPACE, OTHER_NAMESPACE = "pid:[4026531836]", "pid:[4026532841]"


async def used(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, *, age: str = "current", namespace: str = FIRST_NAMESPACE
) -> tuple[Readings, ...]:
    """The readings of each GPU, once the agent has asked for its use."""
    for key, value in machine.environment(age=age).items():
        monkeypatch.setenv(key, value)
    own = machine.root / "proc/self/ns/pid"
    own.parent.mkdir(parents=True)
    own.symlink_to(namespace)
    seen: list[Snapshot] = []
    arguments = ["nvml", "--root", str(machine.root), "--interval-seconds", "0.2"]
    process = ProbeProcess(arguments, on_snapshot=seen.append)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen)
        plain = device(seen[-1], 0).readings
        assert (plain.processes, plain.memory_allocated_bytes, plain.utilization_percent) == (None, None, None)
        process.want(use=True)
        await eventually(lambda: device(seen[-1], 0).readings.utilization_percent is not None)
        return tuple(each.readings for each in seen[-1].devices)
    finally:
        await cancelled(running)


async def test_who_uses_a_gpu_is_read_once_the_agent_asks_for_it(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.say(count=2, gpu0__processes=2, gpu0__graphics=1, gpu0__allocated_mib=512, gpu0__utilization=87)
    asked, nobodys = await used(machine, monkeypatch)
    assert (asked.processes, asked.memory_allocated_bytes, asked.utilization_percent) == (3, 512 << 20, 87)
    assert (nobodys.processes, nobodys.memory_allocated_bytes) == (0, 1 << 20)


async def test_that_no_process_is_listed_counts_only_where_those_of_all_containers_are(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.say(count=2, gpu1__processes=1)
    found = await used(machine, monkeypatch, namespace=OTHER_NAMESPACE)
    assert [each.processes for each in found] == [None, 1]
    assert [each.memory_allocated_bytes for each in found] == [1 << 20, 1 << 20]


async def test_an_old_driver_says_how_busy_a_gpu_is_and_not_by_whom(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.say(count=1, gpu0__processes=1)
    (asked,) = await used(machine, monkeypatch, age="old")
    assert (asked.processes, asked.memory_allocated_bytes, asked.error) == (None, None, None)


def test_a_driver_that_reports_no_telemetry_is_no_error_of_the_gpu(machine: FakeMachine) -> None:
    machine.say(count=1, gpu0__fail__nvmlDeviceGetUtilizationRates=999, gpu0__fail__nvmlDeviceGetClockInfo=999)

    [only] = machine.poll("--telemetry").devices

    assert (only.readings.error, only.readings.utilization_percent, only.readings.sm_clock_mhz) == (None, None, None)


def test_one_odd_return_code_is_no_error_of_the_gpu(machine: FakeMachine) -> None:
    odd = {1: 10, 2: 19, 3: 20, 4: 999}
    machine.say(count=5)
    with machine.probe(interval=600) as probe:
        before = probe.until(lambda seen: len(seen.devices) == 5)
        machine.say(**{f"gpu{gpu}__fail__nvmlDeviceGetRemappedRows": code for gpu, code in odd.items()})
        machine.event(0, XID, 13)  # brings the next poll forward
        doubtful = probe.until(lambda seen: codes(seen) == ["OddAnswer"] * len(odd))
        assert doubtful.devices == before.devices
        for gpu, problem in zip(odd, doubtful.problems, strict=True):
            assert problem.message.startswith(f"GPU {gpu}: nvmlDeviceGetRemappedRows: ")
        machine.say(**{f"gpu{gpu}__fail__nvmlDeviceGetRemappedRows": 0 for gpu in odd})
        after = probe.until(lambda seen: codes(seen) == [])
        assert after.devices == before.devices


def test_a_return_code_that_stays_is_an_error_at_the_second_poll(machine: FakeMachine) -> None:
    machine.say(count=2)
    with machine.probe(interval=600) as probe:
        probe.until(lambda seen: len(seen.devices) == 2)
        machine.say(gpu1__fail__nvmlDeviceGetRemappedRows=999)
        machine.event(0, XID, 13)
        seen = probe.until(lambda seen: device(seen, 1).readings.error)
        assert codes(seen) == []
        assert device(seen, 0).readings.error is None


def test_a_gpu_that_answers_oddly_again_and_again_is_no_longer_in_doubt(machine: FakeMachine) -> None:
    """It is well at each retry."""
    machine.say(count=2)
    with machine.probe(interval=600) as probe:
        probe.until(lambda seen: len(seen.devices) == 2)
        for doubts in range(3):
            machine.say(gpu1__fail__nvmlDeviceGetRemappedRows=999)
            machine.event(0, XID, 13)
            seen = probe.until(lambda seen: codes(seen) or device(seen, 1).readings.error)
            assert (codes(seen), device(seen, 1).readings.error is None) == (
                (["OddAnswer"], True) if doubts < 2 else ([], False)
            )
            machine.say(gpu1__fail__nvmlDeviceGetRemappedRows=0)
            machine.event(0, XID, 13)
            probe.until(lambda seen: not codes(seen) and device(seen, 1).readings.error is None)


def test_a_gpu_that_answers_the_very_first_poll_oddly_is_in_the_first_line_when_it_answers_the_second(
    machine: FakeMachine,
) -> None:
    machine.say(count=2, gpu1__odd__nvmlDeviceGetRemappedRows=1)
    with machine.probe(interval=600) as probe:
        first = probe.until(lambda _: True)
    assert [each.readings.error for each in first.devices] == [None, None]


def test_a_lost_gpu_is_reported_at_once_beside_one_in_doubt(machine: FakeMachine) -> None:
    machine.say(count=2)
    with machine.probe(interval=600) as probe:
        probe.until(lambda seen: len(seen.devices) == 2)
        machine.say(gpu0__lost=1, gpu1__fail__nvmlDeviceGetRemappedRows=999)
        machine.event(0, XID, 79)
        seen = probe.until(lambda seen: codes(seen) == ["OddAnswer"])
        assert device(seen, 0).readings.lost


def test_one_odd_count_of_the_gpus_is_no_error_of_all(machine: FakeMachine) -> None:
    machine.say(count=2)
    with machine.probe(interval=600) as probe:
        before = probe.until(lambda seen: len(seen.devices) == 2)
        machine.say(fail__nvmlDeviceGetCount_v2=999)
        machine.event(0, XID, 13)
        assert probe.until(lambda seen: "OddAnswer" in codes(seen)).devices == before.devices
        machine.say(fail__nvmlDeviceGetCount_v2=0)
        assert probe.until(lambda seen: codes(seen) == []).devices == before.devices


def test_an_old_driver_leaves_unknown_what_it_cannot_say(machine: FakeMachine) -> None:
    machine.say(count=2, driver="440.33.01", gpu0__nvlink="pair", gpu1__nvlink="pair")

    seen = machine.poll(age="old")

    first = device(seen, 0)
    assert (first.id, first.product_name, first.architecture) == (gpu_id(0), H100, "")
    assert first.links == (Link(kind="NVLink", to=gpu_id(1), count=18),)
    assert (first.extra[nvidia.MIG_CAPABLE].boolean, nvidia.mig_enabled(first)) == (False, False)
    readings = first.readings
    assert readings.recovery_action is None
    assert readings.remap_failure is None
    assert readings.sram_threshold_exceeded is None
    assert readings.thermal_slowdown is None
    assert readings.error is None


def test_an_xid_is_reported_at_once_with_its_gpu_and_instance(machine: FakeMachine) -> None:
    machine.say(count=4)
    machine.event(1, XID, 13)  # before the probe listens: history
    with machine.probe(interval=600) as probe:
        probe.until(lambda seen: len(seen.devices) == 4)
        machine.event(3, XID, 79)
        machine.event(2, XID, 31, 7, 0)
        seen = probe.until(lambda seen: len(seen.events) == 2)

    first, second = seen.events
    assert (first.kind, first.xid, first.device_id, first.gi, first.count) == ("xid", 79, gpu_id(3), None, 1)
    assert (second.xid, second.device_id, second.gi, second.ci) == (31, gpu_id(2), 7, 0)
    assert first.sequence < second.sequence


def test_other_events_are_reported_by_their_kind(machine: FakeMachine) -> None:
    machine.say(count=1)
    with machine.probe(interval=600) as probe:
        probe.until(lambda seen: seen.devices)
        for bit in (0x100, 0x200, 0x400, 0x1000, 0x4000, 0x8000):
            machine.event(0, bit)
        seen = probe.until(lambda seen: len(seen.events) == 6)
    kinds = {event.kind for event in seen.events}
    assert kinds == {"mig-config", "ecc-storm", "dram-retirement", "poison", "gpu-unavailable", "recovery-action"}


def test_a_flood_of_xids_is_counted_and_does_not_hide_another(machine: FakeMachine) -> None:
    machine.say(count=2)
    with machine.probe(interval=600) as probe:
        probe.until(lambda seen: seen.devices)
        for _ in range(300):
            machine.event(0, XID, 31)
        machine.event(1, XID, 79)
        reported: dict[int, int] = {}

        def all_told(seen: Snapshot) -> bool:
            reported.update({event.sequence: event.count for event in seen.events if event.xid == 31})
            return sum(reported.values()) == 300 and any(event.xid == 79 for event in seen.events)

        seen = probe.until(all_told)
    assert len(seen.events) == 2


def test_a_new_gpu_appears_and_its_events_are_seen(machine: FakeMachine) -> None:
    machine.say(count=1)
    with machine.probe() as probe:
        probe.until(lambda seen: len(seen.devices) == 1)
        machine.say(count=2)
        probe.until(lambda seen: len(seen.devices) == 2)
        machine.event(1, XID, 48)
        probe.until(lambda seen: [event.device_id for event in seen.events] == [gpu_id(1)])
        machine.say(count=1)
        probe.until(lambda seen: len(seen.devices) == 1)


def test_a_gpu_without_events_is_named_as_unmonitored(machine: FakeMachine) -> None:
    machine.say(count=2, gpu1__events=0)

    (problem,) = machine.poll().problems

    assert problem.code == "Unmonitored"
    assert problem.message == "no events from GPU 1: it has no XID events"


def test_events_that_cannot_be_waited_for_are_a_problem_until_they_can(machine: FakeMachine) -> None:
    machine.say(count=1, fail__nvmlEventSetWait_v2=999)
    with machine.probe() as probe:
        probe.until(lambda seen: "EventsUnavailable" in codes(seen) and seen.devices)
        machine.say(fail__nvmlEventSetWait_v2=0)
        probe.until(lambda seen: seen.problems == ())
        machine.event(0, XID, 79)
        probe.until(lambda seen: seen.events)


FAILING_LOG = """
import sys
import time
import pynvml
from nodedevices_probe.loop import EventLog
from nodedevices_probe.nvidia.calls import Monitor

class Failing(EventLog):
    def record(self, key, **_):
        raise ValueError("a bug")

pynvml.nvmlInit()
monitor = Monitor({"GPU-0": pynvml.nvmlDeviceGetHandleByIndex(0)}, Failing())
print("listening", file=sys.stderr)  # the library makes noise on the standard output
deadline = time.monotonic() + 600
while monitor.failed is None and time.monotonic() < deadline:
    time.sleep(0.01)
print(monitor.failed, file=sys.stderr)
"""


def test_whatever_ends_the_thread_that_sees_events_is_seen(machine: FakeMachine) -> None:
    machine.say(count=1)
    command, environment = [sys.executable, "-c", FAILING_LOG], {**os.environ, **machine.environment()}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "listening\n"
        machine.event(0, XID, 79)
        assert process.stderr.readline() == "ValueError: a bug\n"


def test_no_library_is_a_normal_case(machine: FakeMachine) -> None:
    seen = machine.poll(age="none")

    assert seen.driver.state is DriverState.UNKNOWN
    assert seen.devices == ()
    assert codes(seen) == ["DriverNotLoaded"]
    assert "libnvidia-ml.so.1 is not where the system searches for libraries" in seen.problems[0].message


def test_only_one_failure_to_start_says_that_no_driver_is_loaded(machine: FakeMachine) -> None:
    for code, state in (
        (9, DriverState.NOT_LOADED),
        (999, DriverState.UNKNOWN),
        (4, DriverState.UNKNOWN),
        (18, DriverState.VERSION_MISMATCH),
    ):
        machine.say(count=1, init=code)
        assert machine.poll().driver.state is state


def test_without_a_library_the_kernel_says_whether_the_driver_of_its_gpus_is_loaded(machine: FakeMachine) -> None:
    machine.file("sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n")
    machine.file("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n")
    assert machine.poll(age="none").driver.state is DriverState.NOT_LOADED
    machine.file("sys/module/nvidia/refcnt", "0\n")
    assert machine.poll(age="none").driver.state is DriverState.UNKNOWN


def test_the_library_below_the_drivers_root_outranks_the_one_that_the_system_finds(machine: FakeMachine) -> None:
    """Which a new interpreter's loader finds where LD_LIBRARY_PATH says."""
    machine.say(count=1)
    for root, recovery in (
        (machine.library("lib64/libnvidia-ml.so.1", age="old"), None),  # which has no such field
        (machine.folder / "empty", "None"),
        ("", "None"),
        ("/", "None"),
    ):
        command = [*COMMAND, *machine.arguments(root), "--once"]
        environment = {**os.environ, **machine.environment()}
        (only,) = parse_line(subprocess.run(command, env=environment, capture_output=True, check=True).stdout).devices
        assert only.readings.recovery_action == recovery, root


def test_a_library_that_comes_with_a_driver_container_is_found(machine: FakeMachine) -> None:
    machine.say(count=1)
    with machine.probe(driver_root=machine.folder / "driver-root") as probe:
        seen = probe.until(lambda seen: seen.driver.state is DriverState.UNKNOWN)
        assert "is neither below" in seen.problems[0].message
        machine.library("usr/lib64/libnvidia-ml.so.1")
        probe.until(lambda seen: len(seen.devices) == 1)


def test_a_library_that_cannot_be_loaded_is_named_and_waited_for(machine: FakeMachine) -> None:
    machine.say(count=1)
    broken = machine.library("usr/lib64/libnvidia-ml.so.1") / "usr/lib64/libnvidia-ml.so.1"
    broken.write_bytes(b"half of it")
    with machine.probe(driver_root=machine.folder / "driver-root") as probe:
        seen = probe.until(lambda seen: seen.problems)
        assert str(broken) in seen.problems[0].message
        machine.library("usr/lib64/libnvidia-ml.so.1")
        probe.until(lambda seen: len(seen.devices) == 1)


async def test_the_agents_probe_finds_the_library_as_configured(machine: FakeMachine, tmp_path: Path) -> None:
    machine.say(count=2)
    root = machine.library("usr/lib64/libnvidia-ml.so.1")
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\n")
    made = AgentProcess(
        tmp_path,
        arguments=("--standalone", f"--config-file={config}"),
        environment={**os.environ, **machine.environment(age="none")},
    )
    made.arguments = [each for each in made.arguments if "simulated" not in each]
    async with made as agent:
        await agent.until(lambda: agent.lines("serving metrics and health"))
        await agent.until(lambda: "is neither below /driver-root nor" in agent.get("/readyz")[1])
        config.write_text(f"version: v1\nflags: {{plugin: {{containerDriverRoot: {root}}}}}\n")
        await agent.until(lambda: [each["ids"] for each in agent.lines("offering")] == [2])
        config.write_text("version: [")
        await agent.until(lambda: agent.lines("configuration"))
        assert agent.lines("probe started")[-1]["command"].endswith(f"--driver-root-ctr-path={root}")


def test_a_driver_that_goes_while_waiting_for_events_hangs_is_left_to_a_fresh_process(machine: FakeMachine) -> None:
    machine.say(count=1, hang="nvmlEventSetWait_v2")
    with machine.probe(fresh=True) as probe:
        probe.until(lambda seen: seen.devices)
        machine.say(init=9)
        probe.until(lambda seen: seen.driver.state is DriverState.NOT_LOADED)
        assert probe.process.wait(20) == 75


def test_numbers_that_no_driver_means_do_not_spoil_the_line(machine: FakeMachine) -> None:
    machine.say(count=2, gpu0__minor=-1, gpu0__memory_mib=2**45, gpu0__ecc_volatile=-1)
    machine.say(gpu0__mig=2, gpu0__mig0__gi=-1, gpu0__mig1__start=-1, gpu0__mig1__memory_mib=-1)

    first, second = machine.poll().devices

    assert (first.minor, first.device_nodes, first.capacity) == (None, (), {})
    assert first.readings.ecc_uncorrectable_volatile is None
    assert [(each.start, "memory" in each.capacity) for each in first.partitions] == [(None, False)]
    assert second.capacity["memory"]


def test_the_probe_finds_a_driver_that_is_loaded_later_and_notices_when_it_goes(machine: FakeMachine) -> None:
    machine.say(count=2, init=9)
    with machine.probe() as probe:
        probe.until(lambda seen: seen.driver.state is DriverState.NOT_LOADED)
        machine.say(init=0)
        probe.until(lambda seen: len(seen.devices) == 2 and seen.driver.state is DriverState.LOADED)
        machine.say(init=9)
        probe.until(lambda seen: seen.driver.state is DriverState.NOT_LOADED and seen.devices == ())
        machine.say(init=0)
        probe.until(lambda seen: len(seen.devices) == 2)
        machine.event(1, XID, 79)
        probe.until(lambda seen: seen.events)


def test_a_driver_upgraded_under_the_probe_makes_it_request_a_fresh_process(machine: FakeMachine) -> None:
    machine.say(count=1)
    with machine.probe() as probe:
        probe.until(lambda seen: seen.devices)
        machine.say(init=18)
        probe.until(lambda seen: seen.driver.state is DriverState.VERSION_MISMATCH)
        assert probe.process.wait(20) == 75


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_a_driver_upgraded_under_a_probe_server_is_mapped_anew_without_a_new_server(
    machine: FakeMachine, tmp_path: Path
) -> None:
    machine.say(count=1)
    seen: list[Snapshot] = []
    path = tmp_path / "probes.sock"
    with probe_server(path, environment=machine.environment()) as server:
        assert "libnvidia-ml" not in maps(server.pid)
        source = ProbeSocket(str(path), lambda: ["nvml", f"--{INTERVAL}=0.2"], on_snapshot=seen.append)
        running = asyncio.create_task(source.run())
        try:
            await eventually(lambda: seen and seen[-1].devices)
            machine.say(init=18)
            await eventually(lambda: seen[-1].driver.state is DriverState.VERSION_MISMATCH)
            machine.say(init=0)
            await eventually(lambda: seen[-1].devices)
        finally:
            await cancelled(running)
        assert len({each.instance for each in seen}) >= 2
        assert server.poll() is None


def test_a_display_card_is_no_device(machine: FakeMachine) -> None:
    machine.say(count=3, gpu1__name="DGX Display")

    assert [each.index for each in machine.poll().devices] == [0, 2]


def test_when_gpus_cannot_be_counted_those_known_are_in_error(machine: FakeMachine) -> None:
    machine.say(count=2)
    with machine.probe() as probe:
        probe.until(lambda seen: len(seen.devices) == 2)
        machine.say(fail__nvmlDeviceGetCount_v2=999)
        seen = probe.until(lambda seen: codes(seen) == ["NvmlError"])
        assert [each.readings.error for each in seen.devices] == ["nvmlDeviceGetCount: Unknown Error"] * 2
        assert device(seen, 1).id == gpu_id(1)


async def test_a_hanging_driver_ends_in_a_new_probe_and_blocks_nobody(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.say(count=1)
    for key, value in machine.environment().items():
        monkeypatch.setenv(key, value)
    seen: list[Snapshot] = []
    process = ProbeProcess(
        ["nvml", "--root", str(machine.root), "--interval-seconds", "0.2"],
        on_snapshot=seen.append,
        kill_after_silence_seconds=8.0,
    )
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen)
        machine.say(hang="nvmlDeviceGetUUID")
        await eventually(lambda: process.counters.kills)
        machine.say(hang="nothing")
        first = seen[-1].instance
        await eventually(lambda: seen[-1].instance != first)
    finally:
        await cancelled(running)
    assert process.pid is None
