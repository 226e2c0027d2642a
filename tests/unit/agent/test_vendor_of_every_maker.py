"""What several makers build, what a file of its own describes and what is shared by its nature is a vendor, too."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.model import Holder, Unit
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import begin
from nodedevices_plugin.settings.effective import to_saved, understood
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.base import DeviceFileOutcome, Naming, Vendor
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_probe.protocol import DeviceFact, Readings
from support.facts import START, gpu, gpu_id, old
from support.hubs import COMMON, FLAG, HubFile, Hubs
from support.local import at_once, restored
from support.stepped_node import Node, nodes

HUB, OTHER = "example.com/hub", "example.com/other"
RULES = {"resources": {"devices": [{"match": {"ids": ["HUB-1"]}, "name": OTHER}]}}


WITH_HUBS = Vendors((*VENDORS.every, Hubs()))


def local(vendors: Vendors = WITH_HUBS) -> Local:
    return at_once(["--node-name=n1", "--devices-dir=/etc"], {}, vendors)


class Texas(Vendor):
    """A maker that knows its own hubs."""

    name = "texas"
    types = frozenset({"hub"})

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        return "texas.com/hub"


def hub(index: int, *, maker: str = "sitara", **facts: Any) -> DeviceFact:
    node = (f"/dev/hub{index}",)
    return DeviceFact(id=f"HUB-{index}", index=index, type="hub", vendor=maker, device_nodes=node, **facts)


def lost(index: int) -> DeviceFact:
    return hub(index, readings=Readings(lost=True))


def pod(name: str, *ids: str, resource: str = HUB) -> Holder:
    return Holder(namespace="ml", pod=name, container="c", resource=resource, ids=ids, since=START)


class Hubbed(Node):
    """A node with a hub file. `gives` and `breaks` say what it was read as last."""

    def __init__(
        self, *devices: DeviceFact, file: HubFile | None = None, vendors: Vendors = WITH_HUBS, **node: Any
    ) -> None:
        super().__init__(*devices, local=local(vendors), **node)
        if file is not None:
            self.gives(file)

    def gives(self, file: HubFile) -> Hubbed:
        return self.given(device_files={FLAG: DeviceFileOutcome(content=file)})

    def breaks(self, error: str, field: str = "") -> Hubbed:
        return self.given(device_files={FLAG: DeviceFileOutcome(error=error, field=field)})

    @property
    def held_at(self) -> dict[str, set[str]]:
        """Device -> the pods that have it."""
        found: dict[str, set[str]] = {}
        for holder in self.world.holdings.holders:
            for each in (*holder.ids, *holder.also):
                found.setdefault(each.partition("::")[0], set()).add(holder.pod)
        return found


# --- every maker's ---------------------------------------------------------------------------------------------------
def test_devices_of_any_maker_are_its_and_what_a_file_names_takes_effect_by_itself() -> None:
    node = Hubbed(hub(0), hub(1, maker="texas"), file=HubFile(HUB)).now()
    assert node.offers == {HUB: ["HUB-0", "HUB-1"]}
    both = Vendors((*WITH_HUBS.every, Texas()))
    node = Hubbed(hub(0), hub(1, maker="texas"), file=HubFile(HUB), vendors=both).now()
    assert node.offers == {HUB: ["HUB-0"], "texas.com/hub": ["HUB-1"]}
    node = Hubbed(hub(0), file=HubFile(HUB)).now()
    assert node.gives(HubFile(OTHER)).now().offers == {OTHER: ["HUB-0"]}


# --- a device file ---------------------------------------------------------------------------------------------------


def test_a_file_that_breaks_is_refused_by_name_and_what_was_good_stays_across_a_restart() -> None:
    node = Hubbed(hub(0), file=HubFile(HUB)).now()
    node.breaks("name: missing; give a resource such as example.com/hub", "name").now()
    assert node.offers == {HUB: ["HUB-0"]}
    assert node.world.config.reason == "ConfigInvalid"
    assert "/etc/hubs.json: name: missing; give a resource" in node.world.config.message
    assert node.restarts().now().offers == {HUB: ["HUB-0"]}
    assert node.world.active.effective.node.files == {FLAG: HubFile(HUB)}


def test_before_there_ever_was_a_good_one_its_devices_are_not_offered_and_all_others_are() -> None:
    node = Hubbed(hub(0), gpu(0, readings=old())).breaks("No such file or directory").now(RULES)
    assert node.offers == {"nvidia.com/gpu": [gpu_id(0)]}
    assert node.world.config.reason == "ConfigInvalid"
    assert node.world.config.message == (
        "/etc/hubs.json: No such file or directory; devices of hubs are not offered until there is a valid file"
    )
    assert node.restarts().now(RULES).offers == {"nvidia.com/gpu": [gpu_id(0)]}
    assert node.gives(HubFile(HUB)).now().offers == {HUB: ["HUB-0"], "nvidia.com/gpu": [gpu_id(0)]}
    assert node.world.config.reason == "Applied"


def test_no_rule_names_a_device_whose_file_may_mean_another_and_a_policy_applies_with_its_last_content() -> None:
    node = Hubbed(hub(0), hub(1)).breaks("No such file or directory").now(RULES)
    assert node.offers == {}
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB)).now().breaks("not valid JSON")
    assert node.now(RULES).offers == {HUB: ["HUB-0"], OTHER: ["HUB-1"]}
    assert node.world.config.reason == "ConfigInvalid"
    assert "not valid JSON; its last content stays in effect" in node.world.config.message


UNREADABLE = "applied.node.files.hubs.json.shares: "


def damaged(node: Hubbed) -> dict[str, Any]:
    """The saved configuration, with a file's content that nobody can read."""
    saved = copy.deepcopy(dict(node.world.state.applied or {}))
    saved["node"]["files"][FLAG]["shares"] = "many"
    return saved


def test_a_saved_content_that_cannot_be_read_costs_its_devices_alone_until_the_file_was_read_again() -> None:
    shared = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
    node = Hubbed(hub(0), gpu(0, readings=old()), file=HubFile(HUB)).now(shared)
    before = node.offers
    node.world = replace(node.world, state=dataclasses.replace(node.world.state, applied=damaged(node)))
    node.breaks("No such file or directory").restarts()
    assert node.world.active.effective.sections.sharing.strategy == "timeSlicing"
    assert node.now(shared).offers == {"nvidia.com/gpu": before["nvidia.com/gpu"]}
    assert node.gives(HubFile(HUB)).now(shared).offers == before


def test_a_saved_content_survives_the_state_file_and_what_of_it_cannot_be_read_is_named() -> None:
    node = Hubbed(hub(0), file=HubFile(HUB)).now()
    text = understood(damaged(node), vendors=WITH_HUBS)[1]
    assert text.startswith(UNREADABLE)
    assert text.endswith(", and devices of hubs are not offered until the file was read again")
    assert understood(node.world.state.applied, vendors=WITH_HUBS)[1] == ""
    assert understood({"sections": {}}, vendors=WITH_HUBS)[1] == "applied: saved configuration: 'resourcePrefix'"
    assert "applied.node.files.hubs.json: " in understood({**damaged(node), "node": {"files": 7}}, vendors=WITH_HUBS)[1]
    node = Hubbed(hub(0), file=HubFile(HUB, shares=3, together=True)).now()
    effective = node.world.active.effective
    assert restored(to_saved(effective), vendors=WITH_HUBS) == effective
    assert restored({**to_saved(effective), "node": {}}, vendors=WITH_HUBS).node.files == {}


def test_what_a_file_needs_of_the_host_is_looked_for() -> None:
    node = Hubbed(hub(0), file=HubFile(HUB), existing=frozenset({COMMON})).now()
    assert node.container(HUB, "HUB-0").devices == nodes(COMMON, "/dev/hub0")


def test_an_entry_that_no_device_has_is_named_where_there_are_such_devices() -> None:
    excluded = {"resources": {"exclude": ["HUB-0"]}}
    node = Hubbed(hub(0), file=HubFile(HUB)).now(excluded)
    assert node.unmatched == [
        "hubs.json.name example.com/hub: no such device on this node, or an earlier entry has it; there are: HUB-0"
    ]
    assert Hubbed(hub(0), file=HubFile(HUB)).now().unmatched == []
    assert Hubbed(gpu(0, readings=old()), file=HubFile(HUB)).now().unmatched == []


# --- shared by nature ------------------------------------------------------------------------------------------------
def test_a_device_has_as_many_shares_as_its_vendor_says_and_each_gives_the_one_device() -> None:
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB, shares=5)).now()
    assert node.offers == {HUB: ["HUB-0::0", "HUB-0::1", "HUB-0::2", "HUB-1::0", "HUB-1::1"]}
    assert node.container(HUB, "HUB-1::0").devices == nodes("/dev/hub1")
    assert [each.sharing.name for each in node.plan.resources] == ["shared"]


def test_a_policys_sharing_of_that_resource_comes_first_and_none_can_ask_for_its_own() -> None:
    rule = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": HUB, "replicas": 2}]}}
    node = Hubbed(hub(0), file=HubFile(HUB, shares=5)).now(rule)
    assert node.offers == {HUB: ["HUB-0::0", "HUB-0::1"]}
    node = Hubbed(hub(0), file=HubFile(HUB)).now()
    node.now({"sharing": {"strategy": "shared", "resources": [{"name": HUB, "replicas": 2}]}})
    assert node.world.config.reason == "ConfigInvalid"
    assert "shared" in node.world.config.message


def test_where_each_share_is_of_all_devices_a_container_gets_those_fit_for_use_and_is_shown_at_all() -> None:
    node = Hubbed(hub(0), hub(1), hub(2), file=HubFile(HUB, shares=6, together=True)).now()
    assert node.container(HUB, "HUB-1::0", "HUB-2::1").devices == nodes("/dev/hub0", "/dev/hub1", "/dev/hub2")
    node.devices = (hub(0), lost(1), hub(2))
    node.now()
    assert node.offers == {HUB: ["HUB-0::0", "HUB-0::1", "HUB-2::0", "HUB-2::1"]}
    assert node.container(HUB, "HUB-2::1").devices == nodes("/dev/hub0", "/dev/hub2")
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB, shares=4, together=True)).now({}, pod("a", "HUB-1::0"))
    assert node.held_at == {"HUB-0": {"a"}, "HUB-1": {"a"}}
    assert Hubbed(hub(0), hub(1), file=HubFile(HUB, shares=4)).now({}, pod("a", "HUB-1::0")).held_at == {"HUB-1": {"a"}}


def test_a_device_is_not_taken_out_of_it_under_a_pod_by_policy_or_file() -> None:
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB, shares=4, together=True)).now()
    holder = pod("a", "HUB-0::0")
    node.now(RULES, holder)
    assert OTHER not in node.offers, "the pod has HUB-1, too"
    assert node.world.config.reason == "WaitingForHolders"
    assert "ml/a" in node.world.config.message
    assert node.now(RULES).offers == {HUB: [f"HUB-0::{n}" for n in range(4)], OTHER: ["HUB-1"]}
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB, shares=4, together=True)).now()
    holder = pod("a", "HUB-0::0")
    assert node.gives(HubFile(OTHER)).now({}, holder).offers.keys() == {HUB}
    assert node.now().offers == {OTHER: ["HUB-0", "HUB-1"]}


def test_one_share_more_keeps_nobody_from_the_others_and_a_held_device_is_not_shared() -> None:
    node = Hubbed(hub(0), file=HubFile(HUB, shares=4, together=True)).now()
    holder = pod("a", "HUB-0::3")
    node.devices = (hub(0), hub(1))
    node.now({}, holder)
    assert node.offers == {HUB: ["HUB-0::0", "HUB-0::1", "HUB-1::0", "HUB-1::1"]}
    assert node.held_at == {"HUB-0": {"a"}, "HUB-1": {"a"}}
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB)).now()
    node.gives(HubFile(HUB, shares=4)).now({}, pod("a", "HUB-0"))
    assert node.offers == {HUB: ["HUB-1::0", "HUB-1::1"]}


def test_after_a_restart_with_another_file_pods_are_waited_for_and_without_a_state_there_are_no_files() -> None:
    node = Hubbed(hub(0), hub(1), file=HubFile(HUB, shares=4, together=True)).now()
    node.gives(HubFile(OTHER)).restarts().now({}, pod("a", "HUB-0::0"))
    assert node.offers.keys() == {HUB}
    assert node.world.config.reason == "WaitingForHolders"
    world = begin(State(), dataclasses.replace(local(), devices_dir=None), now=START, monotonic=1.0)
    assert world.active.effective.node.files == {}
