"""Devices by configuration, from trees of /dev and sysfs to the probe's line and to what pods are given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from nodedevices_plugin.model import AllocationError, DeviceNode, Holder, Mount, ids
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_probe import generic as attributes
from nodedevices_probe.files import WatchedFile
from nodedevices_probe.generic.config import parse
from nodedevices_probe.generic.probe import GenericSource
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact
from nodedevices_probe.registry import KINDS
from support.facts import START
from support.local import at_once
from support.sources import line_of
from support.stepped_node import Node, nodes
from support.trees import Tree, char_device, usb

DOMAIN = "generic.nodedevices.io"
LOCAL = at_once(["--node-name=n1", "--probe=generic", "--devices-dir=/etc"], {})


class Machine:
    """A tree, a file, and the probe that reads both."""

    def __init__(self, root: Path, file: str) -> None:
        self.tree = Tree(root / "root")
        self.tree.file("proc/sys/kernel/osrelease", "6.8.0")
        self.path = root / "generic.yaml"
        self.source = GenericSource(
            file=WatchedFile(path=self.path, parse=parse), system=System(self.tree.root), poll_seconds=1.0
        )
        self.says(file)

    def says(self, file: str) -> None:
        """Replaced whole, as a ConfigMap is; read at the second poll."""
        new = self.path.with_name("new")
        new.write_text(file)
        new.replace(self.path)
        self.source.poll()

    def poll(self) -> SourceFacts:
        return self.source.poll()

    @property
    def found(self) -> dict[str, tuple[str, ...]]:
        return {each.id: each.device_nodes for each in self.poll().devices}

    def node(self) -> Node:
        """The agent's steps with this machine's devices and file."""
        return self.seen_by(Node(local=LOCAL))

    def seen_by(self, node: Node, *holders: Holder) -> Node:
        node.devices = self.poll().devices
        node.given(device_files={attributes.FILE: DeviceFileOutcome(content=parse(self.path.read_bytes()))})
        return node.now({}, *holders)


def pod(name: str, resource: str, *ids: str) -> Holder:
    return Holder(namespace="ml", pod=name, container="c", resource=resource, ids=ids, since=START)


def extra(fact: DeviceFact) -> dict[str, object]:
    return {name: each.string if each.string is not None else each.integer for name, each in fact.extra.items()}


# --- what is found ---------------------------------------------------------------------------------------------------
def test_a_preset_is_offered_to_as_many_pods_as_it_says_where_the_node_has_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "devices: [{preset: fuse, count: 3}, {preset: kvm}]")
    char_device(machine.tree, "/dev/fuse")
    node = machine.node()
    assert node.offers == {f"{DOMAIN}/fuse": ["dev-fuse::0", "dev-fuse::1", "dev-fuse::2"]}, "no /dev/kvm is no fault"
    assert node.container(f"{DOMAIN}/fuse", "dev-fuse::1").devices == nodes("/dev/fuse")


def test_each_match_is_a_device_of_its_own_in_natural_order(tmp_path: Path) -> None:
    machine = Machine(tmp_path, '[{name: serial, paths: [{path: "/dev/ttyUSB*"}]}]')
    for number in (10, 2):
        machine.tree.node(f"/dev/ttyUSB{number}")
    (machine.tree.root / "dev/ttyUSB.d").mkdir()
    assert machine.found == {"dev-ttyUSB2": ("/dev/ttyUSB2",), "dev-ttyUSB10": ("/dev/ttyUSB10",)}
    assert [each.name for each in machine.poll().devices] == ["serial-ttyusb2", "serial-ttyusb10"]


def test_parts_that_belong_together_are_paired_by_their_order(tmp_path: Path) -> None:
    file = '[{name: cam, paths: [{path: "/dev/video*"}, {path: "/dev/snd/controlC*"}, {path: /dev/timer, limit: 2}]}]'
    machine = Machine(tmp_path, file)
    for path in ("video3", "video7", "video8", "snd/controlC0", "snd/controlC1", "timer"):
        machine.tree.node(f"/dev/{path}")
    assert machine.found == {
        "dev-video3": ("/dev/video3", "/dev/snd/controlC0", "/dev/timer"),
        "dev-video7": ("/dev/video7", "/dev/snd/controlC1", "/dev/timer"),
    }
    assert extra(machine.poll().devices[0])["exclusiveNodes"] == 2


def test_or_by_what_their_wildcards_stand_for(tmp_path: Path) -> None:
    paths = '{path: "/dev/video*"}, {path: "/dev/mic*"}, {path: "/dev/led*", optional: true}'
    machine = Machine(tmp_path, f"[{{name: cam, pair: match, paths: [{paths}]}}]")
    for path in ("video0", "video1", "video2", "mic1", "mic2", "led2"):
        machine.tree.node(f"/dev/{path}")
    assert machine.found == {
        "dev-video1": ("/dev/video1", "/dev/mic1"),
        "dev-video2": ("/dev/video2", "/dev/mic2", "/dev/led2"),
    }


def test_or_all_of_them_are_one_device(tmp_path: Path) -> None:
    machine = Machine(tmp_path, '[{name: sound, together: true, paths: [{path: "/dev/snd/*"}]}]')
    for path in ("pcmC0D0p", "controlC0"):
        machine.tree.node(f"/dev/snd/{path}")
    (machine.tree.root / "dev/snd/by-path").mkdir()
    assert machine.found == {"all:sound": ("/dev/snd/controlC0", "/dev/snd/pcmC0D0p")}


def test_where_all_paths_are_optional_a_device_has_those_that_are_there_and_one_id(tmp_path: Path) -> None:
    paths = "{path: /dev/ttyS0, optional: true}, {path: /dev/ttyUSB0, optional: true}"
    machine = Machine(tmp_path, f"[{{name: serial, groups: [{{paths: [{paths}]}}]}}]")
    assert machine.found == {}, "none of them is there"
    machine.tree.node("/dev/ttyUSB0")
    assert machine.found == {"dev-ttyS0": ("/dev/ttyUSB0",)}
    machine.tree.node("/dev/ttyS0")
    assert machine.found == {"dev-ttyS0": ("/dev/ttyS0", "/dev/ttyUSB0")}


def test_where_one_of_them_has_wildcards_each_of_its_matches_is_a_device(tmp_path: Path) -> None:
    paths = '{path: /dev/led, optional: true}, {path: "/dev/a*", optional: true}'
    machine = Machine(tmp_path, f"[{{name: a, paths: [{paths}]}}]")
    for path in ("led", "a0", "a1"):
        machine.tree.node(f"/dev/{path}")
    assert machine.found == {"dev-a0": ("/dev/led", "/dev/a0"), "dev-a1": ("/dev/a1",)}


def test_a_mount_path_with_a_slash_at_its_end_is_the_folder_of_the_devices(tmp_path: Path) -> None:
    machine = Machine(tmp_path, '[{name: serial, paths: [{path: "/dev/ttyUSB*", mountPath: /dev/serial/}]}]')
    machine.tree.node("/dev/ttyUSB0")
    machine.tree.node("/dev/ttyUSB1")
    given = machine.node().container(f"{DOMAIN}/serial", "dev-ttyUSB0", "dev-ttyUSB1").devices
    assert [(each.host_path, each.container_path) for each in given] == [
        ("/dev/ttyUSB0", "/dev/serial/ttyUSB0"),
        ("/dev/ttyUSB1", "/dev/serial/ttyUSB1"),
    ]


@pytest.mark.parametrize(
    ("mount_path", "inside"), [("", "/dev/snd"), ("/sound", "/sound"), ("/dev/sound/", "/dev/sound/snd")]
)
def test_a_folder_is_its_device_nodes(mount_path: str, inside: str, tmp_path: Path) -> None:
    where = f", mountPath: {mount_path}" if mount_path else ""
    machine = Machine(tmp_path, f"[{{name: audio, groups: [{{count: 10, paths: [{{path: /dev/snd{where}}}]}}]}}]")
    (machine.tree.root / "dev/snd/by-path").mkdir(parents=True)
    assert machine.found == {}, "there is none in it"
    machine.tree.node("/dev/snd/controlC0")
    machine.tree.node("/dev/snd/seq/timer")
    (machine.tree.root / "dev/snd/by-path/pci-0000").symlink_to("../controlC0")
    assert machine.found == {"dev-snd": ("/dev/snd/controlC0", "/dev/snd/seq/timer")}
    given = machine.node().container(f"{DOMAIN}/audio", "dev-snd::0").devices
    assert [each.container_path for each in given] == [f"{inside}/controlC0", f"{inside}/seq/timer"]


def test_a_folder_with_more_nodes_than_a_device_can_have_says_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: audio, paths: [{path: /dev/snd}]}]")
    for number in range(17):
        machine.tree.node(f"/dev/snd/pcmC{number}")
    [device] = machine.poll().devices
    assert device.readings.error == "17 device nodes; a device can have at most 16"


def test_usb_specifications_of_one_group_are_alternatives_and_a_device_of_two_of_them_is_one(tmp_path: Path) -> None:
    specs = '{vendor: "1209", product: "000f"}, {vendor: "1209", serial: "A"}, {vendor: "04b8", product: "0136"}'
    machine = Machine(tmp_path, f"[{{name: u2f, usb: [{specs}]}}]")
    assert machine.found == {}
    usb(machine.tree, "1-1", ids="1209:000f", number=7, serial="A")
    assert machine.found == {"usb:1209:000f:A": ("/dev/bus/usb/001/007",)}
    usb(machine.tree, "1-2", ids="04b8:0136", number=8, serial="B")
    assert machine.found.keys() == {"usb:1209:000f:A", "usb:04b8:0136:B"}
    machine.says(f"[{{name: u2f, together: true, usb: [{specs}]}}]")
    assert machine.found == {"all:u2f": ("/dev/bus/usb/001/007", "/dev/bus/usb/001/008")}


def test_an_optional_part_comes_and_goes_without_another_id(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: a, paths: [{path: /dev/led, optional: true}, {path: /dev/a}]}]")
    machine.tree.node("/dev/a")
    assert machine.found == {"dev-a": ("/dev/a",)}
    machine.tree.node("/dev/led")
    assert machine.found == {"dev-a": ("/dev/led", "/dev/a")}
    assert extra(machine.poll().devices[0])["parts"] == "0,1"


def test_a_usb_device_is_found_by_its_ids_with_the_nodes_that_its_drivers_made(tmp_path: Path) -> None:
    machine = Machine(tmp_path, '[{name: ch340, usb: [{vendor: "1A86", product: "7523"}]}]')
    machine.tree.pci("0000:00:14.0", behind="pci0000:00", numa_node=1)
    usb(machine.tree, "1-1.4", ids="1a86:7523", number=7, serial="A1", tty="ttyUSB0")
    usb(machine.tree, "1-1.10", ids="1a86:7523", number=12)
    usb(machine.tree, "2-1", ids="046d:c52b", number=3)
    one, other = machine.poll().devices
    assert (one.id, one.device_nodes) == ("usb:1a86:7523:A1", ("/dev/bus/usb/001/007", "/dev/ttyUSB0"))
    assert (one.numa_node, one.pcie_root, one.product_name, one.name) == (
        1,
        "pci0000:00",
        "QinHeng USB Serial",
        "ch340-1a86-7523",
    )
    assert extra(one)["serial"] == "A1"
    assert (other.id, other.device_nodes) == ("usb:1a86:7523:at-1-1.10", ("/dev/bus/usb/001/012",))


@pytest.mark.parametrize("serial", [":3", "A:", "A::B", ":"])
def test_a_usb_device_whose_serial_number_has_odd_colons_is_a_device_of_its_own(tmp_path: Path, serial: str) -> None:
    machine = Machine(tmp_path, '[{name: ch340, usb: [{vendor: "1a86"}], count: 2}]')
    usb(machine.tree, "1-1", ids="1a86:7523", number=7, serial=serial)
    usb(machine.tree, "1-2", ids="1a86:7523", number=8, serial="3")
    [odd, plain] = machine.found
    assert plain == "usb:1a86:7523:3"
    shares = machine.node().offers[f"{DOMAIN}/ch340"]
    assert [ids.split(each) for each in shares] == [(odd, 0), (odd, 1), (plain, 0), (plain, 1)]


def test_a_usb_device_keeps_its_id_when_it_is_plugged_in_again_and_clones_have_their_ports(tmp_path: Path) -> None:
    machine = Machine(tmp_path, '[{name: x, usb: [{vendor: "0403", serial: S}], env: {SERIAL: "{{serial}}"}}]')
    usb(machine.tree, "1-1", ids="0403:6001", number=5, serial="S")
    before = machine.found
    (machine.tree.root / "sys/bus/usb/devices/1-1").unlink()
    assert machine.found == {}
    usb(machine.tree, "1-2", ids="0403:6001", number=6, serial="S")
    assert machine.found.keys() == before.keys() == {"usb:0403:6001:S"}
    assert machine.node().container(f"{DOMAIN}/x", "usb:0403:6001:S").envs == {"SERIAL": "S"}
    usb(machine.tree, "1-3", ids="0403:6001", number=7, serial="S")
    assert machine.found.keys() == {"usb:0403:6001:at-1-2", "usb:0403:6001:at-1-3"}


def test_numa_and_pcie_are_those_of_the_hardware_behind_a_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: a, paths: [{path: /dev/a}]}]")
    machine.tree.pci("0000:3b:00.0", behind="pci0000:3a", numa_node=1)
    char_device(machine.tree, "/dev/a", behind="0000:3b:00.0")
    [device] = machine.poll().devices
    assert (device.numa_node, device.pcie_root) == (1, "pci0000:3a")


def test_ids_are_the_hardwares_and_not_the_entrys(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: a, paths: [{path: /dev/x-1}]}, {name: b, paths: [{path: /dev/x/1}]}]")
    machine.tree.node("/dev/x-1")
    machine.tree.node("/dev/x/1")
    before = machine.found
    assert len(before) == 2, "different paths never have one id"
    machine.says("[{name: c, paths: [{path: /dev/x/1}]}, {name: d, paths: [{path: '/dev/x-*'}]}]")
    assert machine.found == dict(reversed(before.items()))


def test_a_node_that_one_device_has_alone_is_no_others_whatever_it_is_called(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: a, paths: [{path: /dev/null0}]}, {name: b, paths: [{path: '/dev/by-id/*'}]}]")
    char_device(machine.tree, "/dev/null0")
    char_device(machine.tree, "/dev/by-id/usb:null")
    facts = machine.poll()
    assert [each.id for each in facts.devices] == ["dev-null0"]
    [problem] = facts.problems
    assert problem.code == "UsedTwice"
    assert problem.message.startswith("b: /dev/by-id/usb:null is the device dev-null0's already")
    machine.says(
        "[{name: a, count: 2, paths: [{path: /dev/null0}]}, {name: b, count: 2, paths: [{path: '/dev/by-id/*'}]}]"
    )
    assert len(machine.poll().devices) == 2


SQUATS_SOUND = """
domain: squat.ai
devices:
- {name: audio, groups: [{count: 10, paths: [{path: /dev/snd}]}]}
- {name: capture, groups: [{COUNT paths: [{path: /dev/snd/controlC0}, {path: /dev/snd/pcmC0D0c}]}]}
"""


def test_of_squats_audio_and_capture_the_first_is_offered_until_capture_has_a_count(tmp_path: Path) -> None:
    """squat/generic-device-plugin 179b1fe, manifests/generic-device-plugin.yaml: there both have the same nodes."""
    machine = Machine(tmp_path, SQUATS_SOUND.replace("COUNT", ""))
    for name in ("controlC0", "pcmC0D0c"):
        machine.tree.node(f"/dev/snd/{name}")
    facts = machine.poll()
    assert [each.id for each in facts.devices] == ["dev-snd"]
    [problem] = facts.problems
    assert problem.message.startswith("capture: /dev/snd/controlC0 is the device dev-snd's already; give both a count")
    machine.says(SQUATS_SOUND.replace("COUNT", "count: 2,"))
    assert {name: len(ids) for name, ids in machine.node().offers.items()} == {
        "squat.ai/audio": 10,
        "squat.ai/capture": 2,
    }


# --- health ----------------------------------------------------------------------------------------------------------
def test_what_is_required_and_is_not_there_has_a_reason(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: kvm, required: true, count: 1}, {preset: fuse, count: 1}]")
    machine.tree.node("/dev/fuse")
    node = machine.node()
    assert node.world.known.verdicts["dev-kvm"].reason == "DeviceNodeMissing"
    assert node.offers == {f"{DOMAIN}/kvm": [], f"{DOMAIN}/fuse": ["dev-fuse"]}
    machine.tree.node("/dev/kvm")
    assert machine.found["dev-kvm"] == ("/dev/kvm",)
    assert machine.poll().devices[0].readings.conditions == ()


def test_a_node_that_vanishes_is_missing_and_its_neighbours_stay(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: kvm, count: 1}, {preset: fuse, count: 1}]")
    machine.tree.node("/dev/fuse")
    machine.tree.node("/dev/kvm")
    node = machine.node()
    (machine.tree.root / "dev/kvm").unlink()
    machine.seen_by(node)
    assert node.world.known.verdicts["dev-kvm"].reason == "Missing"
    assert node.offers == {f"{DOMAIN}/kvm": [], f"{DOMAIN}/fuse": ["dev-fuse"]}


def test_more_nodes_than_a_device_can_have_are_its_error(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, "[{name: a, together: true, paths: [{path: '/dev/a*'}]}, {name: b, paths: [{path: /dev/b}]}]"
    )
    machine.tree.node("/dev/b")
    for number in range(20):
        machine.tree.node(f"/dev/a{number}")
    one, other = machine.poll().devices
    assert one.readings.error == "20 device nodes; a device can have at most 16"
    assert (len(one.device_nodes), other.readings.error) == (16, None)


# --- what a container gets -------------------------------------------------------------------------------------------
FULL = """
domain: example.com
devices:
- name: radio
  paths:
  - {path: "/dev/sdr*", containerPath: "/dev/radio{{match}}", permissions: rwm}
  - {path: "/sys/class/radio/sdr*", type: Mount, containerPath: "/run/radio{{match}}", readOnly: true}
  env: {RADIOS: "{{match}}", FIRST: "{{path}}", HOW_MANY: "{{count}}", KIND: sdr, ID: "{{id}}"}
  mounts:
  - {hostPath: /opt/radio, readOnly: false}
  - {hostPath: "/var/lib/radio/{{match}}", containerPath: /data}
  cdiDevices: ["example.com/radio=sdr{{match}}"]
"""


def test_a_container_gets_all_that_its_entry_says(tmp_path: Path) -> None:
    machine = Machine(tmp_path, FULL)
    for number in (0, 1):
        char_device(machine.tree, f"/dev/sdr{number}", like=("/dev/null", "/dev/zero")[number])
        machine.tree.file(f"sys/class/radio/sdr{number}/name")
    edits = machine.node().container("example.com/radio", "dev-sdr1")
    assert edits.devices == (DeviceNode(container_path="/dev/radio1", host_path="/dev/sdr1", permissions="rwm"),)
    assert edits.mounts == (
        Mount(container_path="/run/radio1", host_path="/sys/class/radio/sdr1", read_only=True),
        Mount(container_path="/opt/radio", host_path="/opt/radio", read_only=False),
        Mount(container_path="/data", host_path="/var/lib/radio/1", read_only=True),
    )
    assert edits.envs == {"RADIOS": "1", "FIRST": "/dev/radio1", "HOW_MANY": "1", "KIND": "sdr", "ID": "dev-sdr1"}
    assert edits.cdi_devices == ("example.com/radio=sdr1",)


def test_many_parts_and_long_paths_are_one_good_line(tmp_path: Path) -> None:
    long = "/var/lib/" + "x" * 100
    mounts = "".join(f", {{path: {long}{number}, type: Mount}}" for number in range(15))
    machine = Machine(tmp_path, f"[{{name: a, paths: [{{path: /dev/a}}{mounts}]}}]")
    machine.tree.node("/dev/a")
    for number in range(15):
        machine.tree.node(f"{long}{number}")
    assert [each.id for each in line_of(machine.source).devices] == ["dev-a"]
    found = machine.node().container(f"{DOMAIN}/a", "dev-a").mounts
    assert found[14] == Mount(container_path=f"{long}14", host_path=f"{long}14", read_only=False)


def test_values_of_several_devices_stand_in_one_variable_and_two_files_at_one_path_are_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, FULL.replace(", containerPath: /data", ""))
    for number in (0, 1):
        machine.tree.node(f"/dev/sdr{number}")
        machine.tree.file(f"sys/class/radio/sdr{number}/name")
    both = machine.node().container("example.com/radio", "dev-sdr0", "dev-sdr1")
    assert (both.envs["RADIOS"], both.envs["KIND"], both.envs["HOW_MANY"]) == ("0,1", "sdr", "2")
    machine.says(FULL)
    with pytest.raises(AllocationError, match=r"/var/lib/radio/0 and /var/lib/radio/1 would both be /data"):
        machine.node().container("example.com/radio", "dev-sdr0", "dev-sdr1")


def test_what_a_usb_device_says_of_itself_leads_to_no_other_folder(tmp_path: Path) -> None:
    entry = "{name: x, usb: [{vendor: '0403'}], mounts: [{hostPath: '/srv/{{serial}}', containerPath: /srv}]}"
    machine = Machine(tmp_path, f"[{entry}]")
    usb(machine.tree, "1-1", ids="0403:6001", number=5, serial="../etc")
    usb(machine.tree, "1-2", ids="0403:6001", number=6, serial="..")
    node = machine.node()
    paths = [node.container(f"{DOMAIN}/x", id_).mounts[0].host_path for id_ in sorted(machine.found)]
    assert sorted(paths) == ["/srv/.._etc", "/srv/__"]


@pytest.mark.parametrize(
    ("file", "flags", "name"),
    [
        ("[{preset: fuse}]", [], f"{DOMAIN}/fuse"),
        ("[{preset: fuse}]", ["--resource-prefix=mine.com"], "mine.com/fuse"),
        ("{domain: squat.ai, devices: [{preset: fuse}]}", ["--resource-prefix=mine.com"], "squat.ai/fuse"),
        ("[{preset: fuse, name: a.com/b}]", ["--resource-prefix=mine.com"], "a.com/b"),
    ],
)
def test_what_a_resource_is_called(tmp_path: Path, file: str, flags: list[str], name: str) -> None:
    machine = Machine(tmp_path, file)
    machine.tree.node("/dev/fuse")
    node = Node(
        local=at_once(["--node-name=n1", "--probe=generic", "--devices-dir=/x", *flags], {}),
    )
    assert list(machine.seen_by(node).offers) == [name]


def test_shares_of_one_device_are_one_device(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: fuse}]")
    machine.tree.node("/dev/fuse")
    assert machine.node().container(f"{DOMAIN}/fuse", "dev-fuse::0", "dev-fuse::7").devices == nodes("/dev/fuse")


# --- nobody gets a device twice --------------------------------------------------------------------------------------
def test_a_device_that_another_entry_has_now_goes_to_no_second_pod(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: a, paths: [{path: '/dev/x*'}]}]")
    machine.tree.node("/dev/x1")
    node = machine.node()
    holder = pod("one", f"{DOMAIN}/a", "dev-x1")
    machine.says("[{name: b, paths: [{path: /dev/x1}]}]")
    machine.seen_by(node, holder)
    assert node.offers.get(f"{DOMAIN}/b", []) == []
    assert node.world.known.verdicts["dev-x1"].reason != "Missing"
    assert machine.seen_by(node).offers == {f"{DOMAIN}/b": ["dev-x1"]}


def test_what_is_left_of_a_pair_is_not_paired_anew_under_the_pod_that_has_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{name: cam, paths: [{path: '/dev/video*'}, {path: '/dev/mic*'}]}]")
    for path in ("video0", "video1", "mic0", "mic1"):
        machine.tree.node(f"/dev/{path}")
    node = machine.node()
    (machine.tree.root / "dev/video0").unlink()
    machine.seen_by(node, pod("one", f"{DOMAIN}/cam", "dev-video0"))
    assert machine.found == {"dev-video1": ("/dev/video1", "/dev/mic0")}
    assert node.offers == {f"{DOMAIN}/cam": []}


def test_between_two_versions_of_the_file_a_device_is_not_given_by_the_wrong_one(tmp_path: Path) -> None:
    """The probe may read a change before the agent does."""
    machine = Machine(tmp_path, "[{name: a, paths: [{path: /dev/x1}], env: {A: old}}]")
    machine.tree.node("/dev/x1")
    machine.tree.node("/dev/x2")
    node = machine.node()
    old = node.inputs.device_files
    machine.says("[{name: a, paths: [{path: '/dev/x*'}], env: {A: new}}]")
    machine.seen_by(node)
    node.given(device_files=old)
    node.now()
    assert not any(node.offers.values())
    assert machine.seen_by(node).offers == {f"{DOMAIN}/a": ["dev-x1", "dev-x2"]}


def test_an_entry_that_is_taken_out_of_the_file_is_no_fault_once_nobody_holds_its_devices(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: kvm, count: 1}, {preset: fuse, count: 1}]")
    machine.tree.node("/dev/fuse")
    machine.tree.node("/dev/kvm")
    node = machine.node()
    machine.says("[{preset: fuse, count: 1}]")
    machine.seen_by(node, pod("vm", f"{DOMAIN}/kvm", "dev-kvm"))
    assert "dev-kvm" in node.world.known.verdicts
    machine.seen_by(node)
    assert (set(node.world.known.verdicts), node.offers) == ({"dev-fuse"}, {f"{DOMAIN}/fuse": ["dev-fuse"]})


def test_one_that_vanished_before_is_forgotten_with_its_entry(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: kvm, count: 1}, {preset: fuse, count: 1}]")
    machine.tree.node("/dev/fuse")
    machine.tree.node("/dev/kvm")
    node = machine.node()
    (machine.tree.root / "dev/kvm").unlink()
    machine.seen_by(node)
    assert node.world.known.verdicts["dev-kvm"].reason == "Missing"
    machine.says("[{preset: fuse, count: 1}]")
    machine.seen_by(node)
    machine.seen_by(node)
    assert set(node.world.known.verdicts) == {"dev-fuse"}


# --- the file --------------------------------------------------------------------------------------------------------
def test_before_the_first_good_file_the_probe_says_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "devices: [")
    facts = machine.poll()
    assert facts.silent
    assert [each.code for each in facts.problems] == ["FileInvalid"]
    machine.path.unlink()
    assert [each.code for each in machine.poll().problems] == ["FileMissing"]
    assert machine.poll().silent


def test_a_file_that_breaks_or_goes_changes_nothing_and_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: fuse}]")
    machine.tree.node("/dev/fuse")
    for broken in ("", "[{preset: gpu}]"):
        machine.says(broken)
        facts = machine.poll()
        assert ([each.id for each in facts.devices], [each.code for each in facts.problems]) == (
            ["dev-fuse"],
            ["FileInvalid"],
        )
    assert "devices[0].preset: 'gpu' is not allowed" in facts.problems[0].message
    machine.path.unlink()
    facts = machine.poll()
    assert ([each.id for each in facts.devices], [each.code for each in facts.problems]) == (
        ["dev-fuse"],
        ["FileMissing"],
    )
    machine.says("[]")
    assert (machine.poll().devices, machine.poll().problems) == ((), ())


def test_a_fifo_in_its_place_blocks_nobody(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "[{preset: fuse}]")
    machine.path.unlink()
    os.mkfifo(machine.path)
    machine.poll()
    assert [each.code for each in machine.poll().problems] == ["FileInvalid"]


def test_the_agents_flag_is_needed_and_passed_on() -> None:
    with pytest.raises(ConfigError, match="--probe generic: needs --devices-dir, a folder with"):
        parse_flags(["--node-name=n", "--probe=generic"], {})
    local = parse_flags(["--node-name=n", "--probe=generic", "--devices-dir=/etc"], {})
    assert "--file=/etc/generic.yaml" in KINDS["generic"].arguments(local.probe_options)
    parse_flags(["--node-name=n", "--probe=generic=unix:/run/g.sock", "--devices-dir=/etc"], {})


def test_a_line_with_every_attribute_is_one_that_the_agent_accepts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, '[{name: x, usb: [{vendor: "0403", nodes: [usb, tty]}]}, {preset: fuse}]')
    usb(machine.tree, "1-1", ids="0403:6001", number=5, serial="S/ 1\u202e", tty="ttyUSB3")
    machine.tree.node("/dev/fuse")
    one, other = line_of(machine.source).devices
    assert one.id.startswith("usb:0403:6001:S--1")
    assert replace(other, extra={}).id == "dev-fuse"
