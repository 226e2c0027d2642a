"""One step of the agent, from literals: what is kept, what waits, what is forgotten only when it may be."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_plugin.model import (
    Cordon,
    HealthState,
    Holder,
    HoldersState,
    Holdings,
    Offer,
    RecentAllocate,
    Registration,
    RegistrationState,
    Unmatched,
)
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.step import FIRST_LIST_SECONDS
from nodedevices_plugin.settings.file import ConfigError, FileConfig, FileOutcome, parse as parse_file
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.sharing.daemons import MpsFacts
from nodedevices_plugin.sharing.mps import MpsDaemon
from nodedevices_plugin.vendors.cdi import CdiEnvironment, ToolkitDevice
from nodedevices_probe import nvidia
from support.cases import cases
from support.contract import INVALID_SHARING
from support.daemons import facts
from support.facts import CONFIRMED, START, gpu, gpu_id, mig_id, old, partition, snapshot, xid
from support.fuzzing import scaled
from support.local import at_once
from support.stepped_node import NOBODY, Node
from support.there import there

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
TWO_GPUS = tuple(gpu(number, readings=old()) for number in range(2))
THREE = tuple(gpu(number, readings=old()) for number in range(3))
ALONE = parse_flags(["--standalone"], {})
NOT_QUERIED = Holdings(state=HoldersState.UNAVAILABLE, message="not queried yet")
FOUR = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 4}]}}
TWO = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}]}}
CLIENTS = {"sharing": {"strategy": "mps", "resources": [{"name": GPU, "replicas": 4}]}}
MPS_BY_TWO = {"sharing": {"strategy": "mps", "resources": [{"name": GPU, "replicas": 2}]}}
WITH_MPS = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
ANSWERS = facts({(GPU, 25): ""})
BY_CDI = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
WRITABLE = CdiEnvironment(toolkit_libraries=True)
READ_ONLY = replace(WRITABLE, unwritable="/var/run/cdi: Read-only file system")
OWN_SPEC = tuple(ToolkitDevice(name=str(each), nodes=frozenset({f"/dev/nvidia{each}"})) for each in (0, 1))
# Good in itself; with three devices one answer would be larger than the kubelet takes.
TOO_MANY = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 16384}]}}


def sliced(replicas: int) -> FileConfig:
    return parse_file(f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}".encode())


def seen(config: dict[str, Any] | None = None, **more: Any) -> SeenObject:
    return SeenObject(exists=True, generation=1, config=config, **more)


def found(by_nvidia: CdiEnvironment) -> dict[str, CdiEnvironment]:
    return {"nvidia": by_nvidia}


def holder(*ids: str, pod: str = "train-0") -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=GPU, ids=ids, since=START)


def held(*holders: Holder) -> Holdings:
    return replace(NOBODY, holders=holders)


def test_nothing_is_planned_before_the_first_good_line_and_saved_verdicts_hold_from_then_on() -> None:
    assert Node(*TWO_GPUS).wait(1).world.plan is None
    assert Node(*TWO_GPUS).line().counts == {GPU: (2, 2)}
    node = Node(*TWO_GPUS).line().line(xids=(xid(79),))
    assert node.counts == {GPU: (2, 1)}
    assert node.restarted().line(instance="second").counts == {GPU: (2, 1)}


def test_what_matches_nothing_is_named_while_it_is_in_effect() -> None:
    gone = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpuu", "replicas": 4}]}}
    node = Node(*TWO_GPUS).given(seen=seen(gone)).line()
    assert node.config == "Applied"
    assert node.world.config.unmatched == (
        Unmatched(
            section="sharing",
            entry="resources[0].name nvidia.com/gpuu",
            message="no such resource on this node; offered: nvidia.com/gpu",
        ),
    )
    assert node.given(seen=seen(FOUR)).line().world.config.unmatched == ()


def test_a_policys_section_is_named_as_the_policy_has_it_though_a_file_has_one_too() -> None:
    gone = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpuu", "replicas": 4}]}}
    node = Node(*TWO_GPUS).given(file=FileOutcome(config=sliced(2)), seen=seen(gone)).line()
    assert node.world.config.unmatched[0].entry.startswith("resources[0].name ")


def test_gpus_are_taken_for_an_mps_daemon_when_they_go_to_no_new_pod_and_announced_before() -> None:
    """What says that they are is nodedevices-mps: where it does not run, all stay offered whole."""
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen({})).line()
    node.given(seen=seen(CLIENTS), mps=facts({(GPU, 25): "is being started"})).line()

    def waits() -> list[bool]:
        return [each.waits for each in node.world.daemons or () if isinstance(each, MpsDaemon)]

    assert (node.counts, waits()) == ({GPU: (2, 2)}, [True])
    node.given(mps=replace(node.inputs.mps, taken=frozenset({gpu_id(0)}))).line()
    assert (node.counts, waits()) == ({GPU: (2, 1)}, [True])
    node.given(mps=replace(node.inputs.mps, taken=frozenset({gpu_id(0), gpu_id(1)}))).line()
    assert (node.counts, waits()) == ({GPU: (2, 0)}, [False])
    node.given(mps=replace(facts({(GPU, 25): ""}), taken=node.inputs.mps.taken)).line()
    assert (node.config, node.counts, waits()) == ("Applied", {GPU: (8, 8)}, [False])
    node.given(seen=seen({})).line()
    assert (node.config, node.counts, node.world.daemons) == ("Applied", {GPU: (2, 0)}, ()), "it is being ended"
    assert node.given(mps=facts({})).line().counts == {GPU: (2, 2)}


def test_a_configuration_waits_for_its_mps_daemon_and_is_refused_only_when_that_fails() -> None:
    clients = CLIENTS
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen({})).line()
    node.given(seen=seen(clients)).line()
    assert (node.config, node.counts, node.last.refused) == ("WaitingForDaemon", {GPU: (2, 2)}, "")
    node.given(mps=facts({(GPU, 25): "is being started"})).line()
    assert (node.config, node.counts) == ("WaitingForDaemon", {GPU: (2, 2)})
    assert "control daemon of nvidia.com/gpu is being started" in node.world.config.message
    node.given(mps=facts({(GPU, 25): "does not answer: no such file"})).line()
    assert (node.config, node.counts, node.last.refused) == ("ConfigInvalid", {GPU: (2, 2)}, "mps")
    assert (node.refused.section, node.refused.field) == ("sharing", "sharing.strategy")
    node.given(mps=facts({(GPU, 25): ""})).line()
    assert (node.config, node.counts) == ("Applied", {GPU: (8, 8)})
    again = node.restarted().given(seen=seen(clients)).line()
    assert again.config == "WaitingForDaemon", "after a restart the daemon has not been queried yet"


@cases(
    ("config", "section", "field"),
    (
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 1}]}},
        "sharing",
        "sharing.resources[0].replicas",
    ),
    ({"sharing": {"strategy": "memory", "resources": [{"name": GPU, "replicas": 2}]}}, "sharing", "sharing"),
    ({"partitions": {"strategy": "both"}}, "partitions", "partitions.strategy"),
    ({"sharin": {}}, "", "sharin"),
    (
        {"resources": {"devices": [{"match": {}, "name": "nvidia.com/" + "a" * 64}]}},
        "resources",
        "resources.devices[0].name",
    ),
    ({**CLIENTS, "partitions": {"strategy": "mixed"}}, "sharing", "sharing.strategy"),
)
def test_what_is_refused_is_named_by_section_and_field(config: dict[str, Any], section: str, field: str) -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen({})).line().given(seen=seen(config)).line()
    refused = node.world.config.refused
    assert node.config == "ConfigInvalid"
    assert refused is not None
    assert (refused.section, refused.field) == (section, field)
    assert refused.message in node.world.config.message
    assert node.given(seen=seen({})).line().world.config.refused is None


@cases(("strategy", "says"), ("single", "MPS cannot share MIG devices"), ("mixed", "not possible"))
def test_mps_and_mig_that_make_no_sense_together_keep_the_last_good_configuration(strategy: str, says: str) -> None:
    """Each makes sense alone, and may come from a policy of its own."""
    cut = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    node = Node(cut, local=WITH_MPS).given(seen=seen({"partitions": {"strategy": "single"}})).line()
    assert (node.config, node.counts) == ("Applied", {GPU: (2, 2)})
    node.given(seen=seen({**CLIENTS, "partitions": {"strategy": strategy}}, config_hash="new")).line()
    assert (node.config, node.counts) == ("ConfigInvalid", {GPU: (2, 2)})
    assert says in node.world.config.message
    assert node.refused.section == "sharing"
    assert node.world.active.applied_hash != "new"
    again = node.restarted().given(seen=node.inputs.seen).line()
    assert (again.config, again.counts) == ("ConfigInvalid", {GPU: (2, 2)})


@cases(
    ("section", "old", "says"),
    ("faults", {"event": False}, "faults.event: unknown key; Events are always written"),
    ("faults", {"evict": {"mode": "Never"}}, "faults.evict: unknown key; it is now evictMode"),
    ("health", {"probe": {"intervalSeconds": 2}}, "health.probe: unknown key; a probe has its own interval"),
    ("idle", {"afterSeconds": 60, "event": True}, "idle.event: unknown key; with afterSeconds the pod has both"),
)
def test_a_stored_key_of_before_keeps_the_last_good_configuration_and_is_named(
    section: str, old: dict[str, Any], says: str
) -> None:
    node = Node(*TWO_GPUS).given(seen=seen(FOUR)).line()
    node.given(seen=seen({"sharing": {}, section: old}, config_hash="new")).line()
    for after in (node, node.restarted().given(seen=node.inputs.seen).line()):
        assert (after.config, after.counts) == ("ConfigInvalid", {GPU: (8, 8)})
        assert says in after.world.config.message
        assert after.world.config.applied_hash != "new"


def test_what_is_refused_of_a_file_is_named_by_field_and_a_file_that_is_none_by_no_section() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({}), file=FileOutcome(error="not YAML")).wait()
    assert (node.refused.section, node.refused.field) == ("", "")
    assert "not YAML" in node.refused.message
    with pytest.raises(ConfigError) as caught:
        parse_file(b"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}")
    outcome = FileOutcome(error=str(caught.value), field=caught.value.place)
    node = Node(*TWO_GPUS).given(seen=seen({}), file=outcome).line()
    refused = there(node.world.config.refused)
    assert (refused.section, refused.field) == ("sharing", "sharing.timeSlicing.resources[0].replicas")
    assert node.world.config.sources == ("file",)


def test_a_capacity_that_counts_nothing_is_named_and_where_a_configuration_comes_from() -> None:
    entry = {"name": "example.com/a100", "productName": "*A100*", "perDevice": 1}
    node = Node(*TWO_GPUS).given(seen=seen({"capacity": [entry]})).line()
    [note] = node.world.config.unmatched
    assert (note.section, note.entry) == ("capacity", "[0] productName *A100*")
    observing = Node(*TWO_GPUS).given(seen=seen({"serving": {"mode": "Observe"}, "capacity": [entry]})).line()
    assert observing.world.config.unmatched == (note,)
    local = parse_flags(["--standalone", "--mig-strategy=single"], {"PASS_DEVICE_SPECS": "true"})
    node = Node(*TWO_GPUS, local=local).given(seen=seen({}), file=FileOutcome(config=sliced(2))).line()
    assert node.world.config.sources == ("flags", "environment", "file")
    plain = Node(*TWO_GPUS).given(seen=seen(FOUR)).line()
    assert plain.world.config.sources == ("policy",)


@cases("state_kept", True, False)
def test_a_bad_configuration_requests_the_end_of_no_daemon_though_the_state_file_is_lost(state_kept: bool) -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), mps=facts({(GPU, 25): ""})).line()
    again = node.restarted() if state_kept else Node(*TWO_GPUS, local=WITH_MPS)
    again.given(seen=seen(CLIENTS), file=FileOutcome(error="not YAML")).line()
    assert again.config == "ConfigInvalid"
    assert again.world.daemons == (node.world.daemons if state_kept else None)


def test_a_configuration_that_fits_no_longer_after_a_restart_requests_the_end_of_no_daemon() -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), mps=ANSWERS).line()
    old_gpus = [dataclasses.replace(each, extra=nvidia.attributes(compute_capability="6.0")) for each in node.devices]
    many = {"sharing": {"strategy": "mps", "resources": [{"name": GPU, "replicas": 48}]}}
    node.given(seen=seen(many), mps=facts({(GPU, 2): ""})).line()
    again = node.restarted().given(seen=seen(many)).line(*old_gpus)
    assert (again.config, again.world.daemons) == ("ConfigInvalid", None)


@cases(
    "pod",
    pytest.param(holder(gpu_id(0)), id="a whole GPU"),
    pytest.param(holder(f"{gpu_id(0)}::1"), id="a share, whoever's"),
    pytest.param(replace(holder("gpu.nvidia.com/n1/gpu-0"), resource=None, claim="ml/c"), id="a claim of a DRA driver"),
)
def test_at_a_first_start_no_daemon_is_requested_under_pods_that_hold_its_gpus(pod: Holder) -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), holdings=NOT_QUERIED).line()
    assert (node.config, node.world.daemons, node.world.plan) == ("WaitingForHolders", None, None)
    node.given(holdings=held(pod)).line()
    assert (node.config, node.world.daemons, node.world.plan) == ("WaitingForHolders", None, None)
    assert node.world.config.message == f"sharing {GPU} by MPS waits until these pods have ended: ml/train-0"
    assert node.world.config.waiting_for == ("ml/train-0",)
    node.given(holdings=NOBODY).line()
    assert [each.resource for each in node.world.daemons or ()] == [GPU]
    assert node.given(mps=ANSWERS).line().counts == {GPU: (8, 8)}


def test_pods_keep_a_daemon_back_by_an_index_where_that_is_wanted_and_by_other_devices_never() -> None:
    by_index = {**CLIENTS, "injection": {"deviceIDStrategy": "index"}}
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(by_index), holdings=held(holder("1"))).line()
    assert (node.config, node.world.daemons) == ("WaitingForHolders", None)
    by_uuid = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), holdings=held(holder("1"))).line()
    assert [each.resource for each in by_uuid.world.daemons or ()] == [GPU], "nobody knows what that would be"
    nic = replace(holder("nic-1"), resource="vendor.example/nic")
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), holdings=held(nic)).line()
    assert [each.resource for each in node.world.daemons or ()] == [GPU]


def test_at_a_first_start_no_daemon_is_requested_while_another_plugin_offers_its_gpus() -> None:
    theirs = replace(NOBODY, offered=(Offer(resource=GPU, ids=(gpu_id(0), gpu_id(1))),))
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), holdings=theirs).line()
    assert (node.config, node.world.daemons, node.world.plan) == ("WaitingForHolders", None, None)
    assert f"sharing {GPU} by MPS waits: another device plugin serves {GPU}" in node.world.config.message
    assert Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(FOUR), holdings=theirs).line().config == "Applied", (
        "the guard's matter"
    )
    node.given(holdings=replace(NOBODY, offered=())).line()
    assert [each.resource for each in node.world.daemons or ()] == [GPU]


@cases("before", {}, MPS_BY_TWO, ids=["whole GPUs", "other shares by MPS"])
def test_a_daemon_stays_wanted_while_its_change_waits_for_the_state_file(before: dict[str, Any]) -> None:
    """Or it would be ended, and started again for the same change a moment later."""
    taken = frozenset({gpu_id(0), gpu_id(1)})  # as nodedevices-mps announces them
    daemons = replace(facts({(GPU, 50): ""}), taken=taken)
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(before), mps=daemons).line()
    node.disk_full = True
    wanted = there(node.given(seen=seen(CLIENTS)).line().world.daemons)
    assert (node.config, [each.resource for each in wanted]) == ("WaitingForDaemon", [GPU])
    for _ in range(2):
        node.given(mps=replace(ANSWERS, taken=taken)).line()
        assert (node.config, node.world.daemons) == ("StateNotSaved", wanted)
    node.disk_full = False
    node.line()
    assert (node.config, node.world.daemons, node.counts) == ("Applied", wanted, {GPU: (8, 8)})


def out(device: str, until: datetime | None = None, reason: str = "RMA 4711") -> Cordon:
    return Cordon(id=device, reason=reason, until=until)


def cordoned(*cordons: Cordon) -> SeenObject:
    return replace(seen({}), unschedulable=cordons)


def test_a_device_out_of_service_keeps_its_id_and_health_and_comes_back_when_its_time_is_over() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({}), holdings=held(holder(gpu_id(0)))).line()
    node.given(seen=cordoned(out(gpu_id(0)))).wait()
    assert node.counts == {GPU: (2, 1)}
    assert node.world.known.verdicts[gpu_id(0)].state is HealthState.HEALTHY
    assert node.config == "Applied"
    assert node.given(seen=seen({})).wait().counts == {GPU: (2, 2)}
    node = Node(*TWO_GPUS).given(seen=seen({})).line()
    soon = START + timedelta(seconds=node.clock + 60)
    node.given(seen=cordoned(out(gpu_id(0), until=soon))).wait()
    assert node.counts == {GPU: (2, 1)}
    assert node.last.deadline is not None
    assert node.last.deadline <= node.clock + 60
    assert node.line().counts == {GPU: (2, 1)}
    assert node.wait(60).counts == {GPU: (2, 2)}


def test_neither_a_restart_nor_a_deleted_object_brings_a_device_back_into_service() -> None:
    node = Node(*TWO_GPUS).given(seen=cordoned(out(gpu_id(1)))).line()
    again = node.restarted().given(seen=None).line(instance="second")
    assert again.counts == {GPU: (2, 1)}
    assert again.given(seen=seen({})).wait().counts == {GPU: (2, 2)}
    node = Node(*TWO_GPUS).given(seen=cordoned(out(gpu_id(1)))).line()
    node.given(seen=SeenObject()).wait()
    assert node.counts == {GPU: (2, 1)}
    again = node.restarted().given(seen=SeenObject()).line(instance="second")
    assert again.counts == {GPU: (2, 1)}
    assert again.given(seen=cordoned(out(gpu_id(1)))).wait().counts == {GPU: (2, 1)}
    assert again.given(seen=seen({})).wait().counts == {GPU: (2, 2)}


def test_an_entry_is_out_of_service_since_it_was_first_seen_although_the_policys_sections_are_refused() -> None:
    node = Node(*TWO_GPUS).given(seen=cordoned(out(gpu_id(1)))).line()
    [first] = node.world.state.unschedulable
    assert first.since is not None
    assert node.wait(60).given(seen=cordoned(out(gpu_id(1)))).wait().world.state.unschedulable == (first,)
    said = dataclasses.replace(out(gpu_id(1)), since=START)
    assert node.given(seen=cordoned(said)).wait().world.state.unschedulable == (said,)
    node = Node(*THREE).given(seen=seen({})).line()
    node.given(seen=replace(seen(TOO_MANY), unschedulable=(out(gpu_id(0)),))).line()
    assert node.config == "ConfigInvalid"
    assert node.counts == {GPU: (3, 2)}


def test_one_mig_device_can_be_taken_out_of_service_and_an_id_that_nobody_has_is_named() -> None:
    cut = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    mixed = {"partitions": {"strategy": "mixed"}}
    node = Node(cut).given(seen=replace(seen(mixed), unschedulable=(out(mig_id(0, 1)), out("gpu-0")))).line()
    assert node.counts == {"nvidia.com/mig-1g.10gb": (2, 1)}
    assert [each.text for each in node.world.config.unmatched] == [
        f"unschedulable[gpu-0]: no device on this node has such an id; did you mean {gpu_id(0)}?"
    ]


def test_clients_keep_their_daemon_over_a_restart_and_a_lost_state_file() -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), mps=ANSWERS).line()
    for holdings in (NOT_QUERIED, held(holder(f"{gpu_id(0)}::1"))):
        again = node.restarted().given(seen=seen(CLIENTS), holdings=holdings).line()
        assert again.world.daemons == node.world.daemons
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), mps=ANSWERS).line()
    assert node.world.daemons
    busy = held(holder(f"{gpu_id(0)}::1"))
    again = (
        Node(*TWO_GPUS, local=WITH_MPS)
        .given(seen=seen(CLIENTS), holdings=busy, mps=MpsFacts(before=node.world.daemons))
        .line()
    )
    assert again.world.daemons == node.world.daemons


def test_a_daemon_does_not_come_back_under_a_pod_that_is_no_client_or_where_another_plugin_serves() -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), mps=ANSWERS).line()
    again = node.restarted().given(seen=seen(CLIENTS), holdings=held(holder(gpu_id(0)))).line()
    assert (again.config, again.world.daemons) == ("WaitingForHolders", None)
    assert again.world.config.message.startswith(f"sharing {GPU} by MPS waits until these pods have ended: ml/train-0")
    assert again.given(holdings=NOBODY).line().world.daemons == node.world.daemons
    theirs = Registration(resource=GPU, state=RegistrationState.SERVED_BY_ANOTHER, message="another plugin")
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(FOUR)).line()
    node.given(seen=seen(CLIENTS), registrations=(theirs,)).line()
    assert (node.config, node.world.daemons) == ("Applied", ())


def test_no_daemon_is_wanted_for_what_another_plugin_serves_unless_clients_may_still_be_there() -> None:
    theirs = Registration(resource=GPU, state=RegistrationState.SERVED_BY_ANOTHER, message="another plugin")
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(CLIENTS), mps=ANSWERS).line()
    wanted = node.world.daemons
    node.given(registrations=(theirs,), holdings=held(holder(f"{gpu_id(0)}::1"))).line()
    assert node.world.daemons == wanted
    assert node.given(holdings=NOBODY).line().world.daemons == ()
    node.given(mps=facts({})).line()
    assert (node.config, node.world.daemons, node.counts) == ("Applied", (), {GPU: (8, 0)})
    assert node.given(registrations=()).line().world.daemons == wanted


def test_silence_is_reported_after_fifteen_seconds_and_the_deadline_says_when_to_look() -> None:
    node = Node(*TWO_GPUS).line()
    assert node.last.deadline == node.clock + 15
    assert not node.wait(14).last.silent
    assert node.wait(1).last.silent
    assert node.counts == {GPU: (2, 2)}


# --- configuration ----------------------------------------------------------------------------------------------------
def test_the_first_configuration_holds_at_once_even_if_nobody_knows_the_holders() -> None:
    node = Node(*TWO_GPUS).given(file=FileOutcome(config=sliced(4)), holdings=NOT_QUERIED).line()
    assert node.counts == {GPU: (8, 8)}


def test_a_change_waits_only_for_the_gpu_that_a_pod_holds_and_names_both() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({}, config_hash="a")).line()
    node.given(seen=seen(FOUR, config_hash="b"), holdings=held(holder(gpu_id(0)))).wait()
    assert node.config == "WaitingForHolders"
    reported = (
        "gpu-0: held under another resource or id, and not offered to new pods until these pods have ended: ml/train-0"
    )
    assert node.world.config.message == f"{reported}; everything else is applied"
    assert node.world.config.waiting_for == ("ml/train-0",)
    assert node.counts == {GPU: (8, 4)}
    assert node.world.config.applied_hash == "b"
    assert node.given(holdings=NOBODY).wait().counts == {GPU: (8, 8)}
    assert node.config == "Applied"


def test_what_changes_no_held_id_waits_for_nobody() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({})).line()
    excluded = {"resources": {"exclude": [gpu_id(0)]}}
    node.given(seen=seen(excluded), holdings=held(holder(gpu_id(0)))).wait()
    assert (node.config, node.counts) == ("Applied", {GPU: (1, 1)})
    node = Node(*TWO_GPUS).given(seen=seen({}), holdings=held(holder(gpu_id(0)))).line()
    node.given(seen=seen({"health": {"holdDownSeconds": 7}}, config_hash="h")).wait()
    assert (node.config, node.world.config.applied_hash) == ("Applied", "h")
    assert node.world.active.effective.sections.health.hold_down_seconds == 7
    node = Node(*TWO_GPUS).given(holdings=held(holder(gpu_id(0)))).line()
    assert node.line(gpu(0), gpu(1), gpu(2)).counts == {GPU: (3, 3)}


def test_a_change_to_or_from_mps_waits_as_a_whole_and_the_old_hash_stays() -> None:
    node = Node(*TWO_GPUS, local=WITH_MPS).given(seen=seen(FOUR, config_hash="a")).line()
    mps = {"sharing": {"strategy": "mps", "resources": [{"name": GPU, "replicas": 2}]}}
    node.given(
        seen=seen(mps, config_hash="b"), holdings=held(holder(f"{gpu_id(0)}::1")), mps=facts({(GPU, 50): ""})
    ).wait()
    assert (node.config, node.world.config.applied_hash) == ("WaitingForHolders", "a")
    assert node.world.config.waiting_for == ("ml/train-0",)
    assert node.counts == {GPU: (8, 1)}, "shares that nobody holds go to no new pod, or it would wait for ever"
    node.given(holdings=NOBODY).wait()
    assert (node.config, node.world.config.applied_hash, node.counts) == ("Applied", "b", {GPU: (4, 4)})


def test_a_gpu_that_is_made_whole_under_a_mig_device_just_allocated_is_offered_to_nobody() -> None:
    """The kubelet lists the pod only seconds later, when the MIG device is gone from the driver already."""
    parts = tuple(partition(0, part, profile="3g.40gb", start=4 * part, size=4) for part in (0, 1))
    cut = gpu(0, readings=old(), mig_enabled=True, partitions=parts)
    node = Node(cut).given(seen=seen({"partitions": {"strategy": "mixed"}})).line()
    assert node.counts == {MIG: (2, 2)}
    fresh = RecentAllocate(resource=MIG, ids=(mig_id(0, 1),), time=START, monotonic=node.clock)
    node.given(recent=(fresh,)).line(gpu(0, readings=old()))
    assert (node.config, node.counts.get(GPU)) == ("WaitingForHolders", (1, 0))
    listed = replace(held(replace(holder(mig_id(0, 1)), resource=MIG)), taken=node.clock + 1)
    node.given(holdings=listed).line(gpu(0, readings=old()))
    assert (node.config, node.counts.get(GPU)) == ("WaitingForHolders", (1, 0))
    node.given(holdings=replace(NOBODY, taken=node.clock + 1)).line(gpu(0, readings=old()))
    assert (node.config, node.counts) == ("Applied", {GPU: (1, 1)})


@cases("known", "List", "checkpoint")
def test_a_restarted_agent_offers_nothing_before_it_can_know_who_holds_what(known: str) -> None:
    """Another plugin's pod may hold a GPU under its own id; the state file does not say so."""
    theirs = Offer(resource="vendor.example/gpu", ids=(f"{gpu_id(0)}::0",))
    again = Node(*TWO_GPUS).given(seen=seen({})).line().restarted()
    started = again.clock
    again.given(seen=seen({}), holdings=NOT_QUERIED).line()
    assert (again.world.plan, again.last.deadline) == (None, started + FIRST_LIST_SECONDS)
    if known == "List":
        again.given(holdings=held(replace(holder(*theirs.ids), resource=theirs.resource)))
    else:
        again.given(holdings=replace(NOT_QUERIED, possible=(theirs,)))
    assert again.wait().counts == {GPU: (2, 1)}


def test_a_restarted_agent_offers_once_it_knows_or_nobody_can_say_who_holds_what() -> None:
    again = Node(*TWO_GPUS).given(seen=seen({})).line().restarted().given(seen=seen({}), holdings=NOT_QUERIED).line()
    assert again.wait(FIRST_LIST_SECONDS).counts == {GPU: (2, 2)}
    node = (
        Node(*TWO_GPUS).given(seen=seen({})).line().given(seen=seen(FOUR, config_hash="b"), holdings=NOT_QUERIED).wait()
    )
    assert (node.config, node.counts) == ("WaitingForHolders", {GPU: (2, 2)})
    node.given(holdings=NOBODY).wait()
    assert (node.config, node.world.config.applied_hash, node.counts) == ("Applied", "b", {GPU: (8, 8)})


def test_an_allocate_not_listed_yet_holds_a_change_back_for_half_a_minute() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({})).line()
    fresh = RecentAllocate(resource=GPU, ids=(gpu_id(0),), time=START, monotonic=node.clock)
    node.given(recent=(fresh,), seen=seen(FOUR)).wait()
    assert node.config == "WaitingForHolders"
    assert node.line().config == "WaitingForHolders"
    node.clock = fresh.monotonic + 30
    assert node.line().config == "WaitingForHolders", "no List is that young"
    assert node.given(holdings=replace(NOBODY, taken=node.clock)).line().config == "Applied"


def test_an_allocate_that_was_listed_and_is_gone_has_ended_and_a_list_from_before_it_says_nothing() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({})).line()
    fresh = RecentAllocate(resource=GPU, ids=(gpu_id(0),), time=START, monotonic=node.clock)
    listed = replace(held(holder(gpu_id(0))), taken=fresh.monotonic + 1)
    node.given(recent=(fresh,), holdings=listed).wait()
    assert node.given(seen=seen(FOUR), holdings=NOBODY).wait().config == "Applied"
    node = Node(*TWO_GPUS).given(seen=seen({})).line()
    fresh = RecentAllocate(resource=GPU, ids=(gpu_id(0),), time=START, monotonic=node.clock)
    before = replace(held(holder(gpu_id(0), pod="ended")), taken=fresh.monotonic - 0.1)
    node.given(recent=(fresh,), holdings=before).wait()
    node.given(seen=seen(FOUR), holdings=replace(NOBODY, taken=fresh.monotonic + 1)).wait()
    assert node.counts == {GPU: (8, 4)}, "the pod that has it now is not listed yet"


@cases(
    ("inputs", "says"),
    ({"file": FileOutcome(error="line 1: not YAML")}, "not YAML"),
    ({"seen": seen({"sharing": INVALID_SHARING})}, "strategy memory needs memoryUnit"),
    ({"seen": seen(TOO_MANY)}, "give fewer replicas"),
)
def test_a_bad_configuration_keeps_the_last_good_one_and_says_why(inputs: dict[str, Any], says: str) -> None:
    node = Node(*THREE).given(file=FileOutcome(config=sliced(2)), seen=seen({})).line()
    node.given(**inputs).wait()
    assert (node.config, node.counts) == ("ConfigInvalid", {GPU: (6, 6)})
    assert says in node.world.config.message
    node.given(file=FileOutcome(config=sliced(2)), seen=seen(TWO)).wait()
    assert (node.config, node.counts) == ("Applied", {GPU: (6, 6)})


def test_a_bad_configuration_at_the_start_keeps_what_was_in_effect_before_it() -> None:
    node = Node(*TWO_GPUS).given(file=FileOutcome(config=sliced(4))).line()
    again = node.restarted().given(file=FileOutcome(error="not YAML")).line()
    assert (again.config, again.counts) == ("ConfigInvalid", {GPU: (8, 8)})


@cases("bad", {"seen": seen(TOO_MANY)}, {"seen": seen({"nothing": {}})}, {"file": FileOutcome(error="not YAML")})
def test_before_the_first_good_configuration_nothing_is_offered_also_after_a_restart(bad: dict[str, Any]) -> None:
    node = Node(*THREE).given(**bad).line()
    assert (node.config, node.world.plan) == ("ConfigInvalid", None)
    assert "nothing is offered until there is a valid configuration" in node.world.config.message
    again = node.restarted().given(**bad).line()
    assert again.world.plan is None
    again.given(seen=seen({}), file=FileOutcome()).wait()
    assert (again.config, again.counts) == ("Applied", {GPU: (3, 3)})


def test_a_node_that_nobody_resolved_keeps_the_last_resolution_and_one_on_its_own_knows_no_operator() -> None:
    node = Node(*TWO_GPUS).given(seen=seen()).line()
    assert (node.config, node.counts) == ("NoConfig", {GPU: (2, 2)})
    node.given(seen=seen(FOUR, config_hash="b")).wait()
    node.given(seen=seen()).wait()
    assert (node.config, node.counts) == ("NoConfig", {GPU: (8, 8)})
    assert node.restarted().line().counts == {GPU: (8, 8)}
    node = Node(*TWO_GPUS).given(seen=seen(FOUR)).line()
    alone = node.restarted(ALONE).line()
    assert (alone.config, alone.counts) == ("Applied", {GPU: (2, 2)})


def test_names_that_are_no_longer_offered_are_remembered_until_they_come_back() -> None:
    shared = {"sharing": {**FOUR["sharing"], "renameByDefault": True}}
    node = Node(*TWO_GPUS).given(seen=seen({})).line().given(seen=seen(shared)).wait()
    assert node.world.state.offered == ("nvidia.com/gpu.shared",)
    assert list(node.world.state.retired) == [GPU]
    assert list(node.restarted().given(seen=seen(shared)).line().world.state.retired) == [GPU]
    node.given(seen=seen({})).wait()
    assert (node.world.state.offered, list(node.world.state.retired)) == ((GPU,), ["nvidia.com/gpu.shared"])


def test_cdi_names_that_no_file_can_have_are_refused_until_it_can_be_written() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({}, config_hash="a"), cdi=found(READ_ONLY)).line()
    assert node.config == "Applied"
    node.given(seen=seen(BY_CDI, config_hash="b")).wait()
    assert (node.config, node.world.config.applied_hash, node.counts) == ("ConfigInvalid", "a", {GPU: (2, 2)})
    assert node.world.config.message == (
        "injection.deviceListStrategies: cdi-cri: cannot write /var/run/cdi: Read-only file system; "
        "install the component cdi (manifests/components/cdi), or use envvar; "
        "the previous configuration stays in effect"
    )
    assert node.world.active.effective.sections.injection.device_list_strategies == ("envvar",)
    node.given(seen=seen({**BY_CDI, "serving": {"api": "DRA"}}, config_hash="c")).wait()
    assert "install the component cdi (manifests/components/cdi); the" in node.world.config.message, "not envvar"
    node.given(seen=seen(BY_CDI, config_hash="b")).wait()
    node.given(cdi=found(WRITABLE)).wait()
    assert (node.config, node.world.config.applied_hash, node.counts) == ("Applied", "b", {GPU: (2, 2)})
    assert node.world.active.effective.sections.injection.device_list_strategies == ("cdi-cri",)


@cases(
    "requested",
    {"seen": seen({"injection": {"deviceListStrategies": ["envvar", "cdi-annotations"]}})},
    {"file": FileOutcome(config=parse_file(b"flags: {plugin: {deviceListStrategy: [cdi-cri]}}"))},
)
def test_at_a_first_start_nothing_is_offered_by_cdi_until_its_files_can_be_written(requested: dict[str, Any]) -> None:
    node = Node(*TWO_GPUS).given(**requested, cdi=found(READ_ONLY)).line()
    assert (node.config, node.world.plan) == ("ConfigInvalid" if "seen" in requested else node.config, None)
    assert "nothing is offered until there is a valid configuration" in node.world.config.message
    assert node.restarted().given(**requested, cdi=found(READ_ONLY)).line().world.plan is None
    assert node.given(cdi=found(WRITABLE)).wait().counts == {GPU: (2, 2)}


def test_the_toolkits_own_specification_is_enough_where_it_has_all_devices_that_are_here() -> None:
    node = Node(*TWO_GPUS).given(seen=seen(BY_CDI), cdi=found(replace(READ_ONLY, toolkit=OWN_SPEC[:1]))).line()
    assert (node.config, node.world.plan) == ("ConfigInvalid", None)
    node.given(cdi=found(replace(READ_ONLY, toolkit=OWN_SPEC))).wait()
    assert (node.config, node.counts) == ("Applied", {GPU: (2, 2)})
    node = Node(*TWO_GPUS).given(seen=seen(BY_CDI), cdi=found(replace(READ_ONLY, toolkit=OWN_SPEC)))
    node.step(snapshot())
    assert node.config == "ConfigInvalid"
    assert node.line().config == "Applied"


def test_a_folder_that_fails_while_cdi_is_in_use_takes_nothing_away() -> None:
    node = Node(*TWO_GPUS).given(seen=seen(BY_CDI), cdi=found(WRITABLE)).line()
    assert node.given(cdi=found(READ_ONLY)).line().config == "Applied"
    assert node.counts == {GPU: (2, 2)}
    assert node.given(seen=seen(BY_CDI | FOUR)).line().counts == {GPU: (8, 8)}
    again = node.restarted().given(seen=seen(BY_CDI | FOUR), cdi=found(READ_ONLY)).line()
    assert (again.config, again.counts) == ("Applied", {GPU: (8, 8)})


LACKING = CdiEnvironment(made_problem="nvidia-ctk is not in the agent's image")


def test_where_the_drivers_libraries_are_gone_no_container_gets_a_device_and_the_node_says_why() -> None:
    """As after a reboot, before the toolkit has written its specification again."""
    node = Node(*TWO_GPUS).given(seen=seen(BY_CDI), cdi=found(WRITABLE)).line()
    node.given(cdi=found(LACKING)).line()
    assert (node.config, node.counts) == ("ConfigInvalid", {GPU: (2, 0)})
    assert node.world.config.cdi_problem.startswith("CDI: ")
    assert node.world.config.cdi_problem.endswith("; devices that need it are not offered until then")
    node.given(cdi=found(WRITABLE)).line()
    assert (node.config, node.world.config.cdi_problem, node.counts) == ("Applied", "", {GPU: (2, 2)})


def test_last_good_libraries_are_used_and_where_another_plugin_serves_no_file_is_needed() -> None:
    node = Node(*TWO_GPUS).given(seen=seen(BY_CDI), cdi=found(WRITABLE)).line()
    broken = CdiEnvironment(kept=True, toolkit_problem="/etc/cdi/nvidia.yaml: not YAML")
    node.given(cdi=found(broken)).line()
    assert (node.config, node.counts) == ("Applied", {GPU: (2, 2)})
    assert node.world.config.cdi_problem == "CDI: /etc/cdi/nvidia.yaml: not YAML; the last good one is used"
    watching = {**BY_CDI, "serving": {"mode": "Observe"}}
    node = Node(*TWO_GPUS).given(seen=seen(watching), cdi=found(READ_ONLY)).line()
    assert node.config == "Applied"
    node.given(seen=seen(BY_CDI), holdings=replace(NOBODY, offered=())).line()
    assert node.config == "ConfigInvalid"
    assert node.world.active.effective.observing


# --- a confirmation ---------------------------------------------------------------------------------------------------
GIVE = (
    "give <device id>=recovered@<RFC 3339 time with a zone> or <device id>=removed@<RFC 3339 time with a zone> or "
    "*=removed@<RFC 3339 time with a zone> or config=accepted@<spec.configHash>"
)


def test_a_removal_that_a_person_confirms_takes_a_missing_device_away_once() -> None:
    node = Node(*TWO_GPUS).line().line(gpu(0))
    assert node.counts == {GPU: (2, 1)}
    node.given(seen=seen({}, confirm=f"{gpu_id(1)}=removed@{CONFIRMED}")).wait()
    assert node.counts == {GPU: (1, 1)}
    node.line(gpu(0), gpu(1)).line(gpu(0))
    assert node.counts == {GPU: (2, 1)}, "the same confirmation counts once"
    node.given(seen=seen({}, confirm=f"{gpu_id(1)}=removed@2026-11-24T12:00:00Z")).wait()
    assert (node.counts, node.world.confirm_problems) == ({GPU: (1, 1)}, ())


def test_a_recovery_that_was_confirmed_before_a_new_fault_counts_no_more_also_after_a_restart() -> None:
    node = Node(*TWO_GPUS).line().line(xids=(xid(79),))
    again = seen({}, confirm=f"{gpu_id(0)}=recovered@{CONFIRMED}")
    node.given(seen=again).line()
    assert node.counts == {GPU: (2, 2)}
    node.line(xids=(xid(79),))
    assert node.restarted().given(seen=again).line().counts == {GPU: (2, 1)}


@cases("beside", "", f",{gpu_id(1)}=recovered@{CONFIRMED}")
def test_what_an_agent_of_before_acted_on_is_not_acted_on_again_and_is_not_reported(beside: str) -> None:
    """It took entries without a time."""
    node = Node(*TWO_GPUS).line().line(xids=(xid(79),))
    before = f"{gpu_id(0)}=recovered"
    node.world = replace(node.world, state=dataclasses.replace(node.world.state, confirmed=before))
    node.given(seen=seen({}, confirm=before + beside)).line()
    assert (node.counts, node.world.confirm_problems) == ({GPU: (2, 1)}, ())
    node.given(seen=seen({}, confirm=f"{gpu_id(1)}=removed,{before}")).wait()
    (problem,) = node.world.confirm_problems
    assert problem == f"{gpu_id(1)}=removed: give {gpu_id(1)}=removed@<RFC 3339 time with a zone>"


def test_what_is_for_the_operator_says_nothing_to_the_agent_and_what_is_for_another_object_is_named() -> None:
    node = Node(*TWO_GPUS).line()
    node.given(seen=seen({}, confirm="config=accepted@ab")).wait()
    assert (node.world.confirm_problems, node.last.confirmed) == ((), ())
    node.given(seen=seen({}, confirm="config=accepted,rollout=resumed@3,actions=resumed@x")).wait()
    assert node.world.confirm_problems == (
        "config=accepted: give config=accepted@<spec.configHash>",
        f"rollout=resumed@3: {GIVE}",
        f"actions=resumed@x: {GIVE}",
    )


def test_an_entry_that_was_acted_on_stays_beside_a_new_one_and_says_nothing_more() -> None:
    node = Node(*TWO_GPUS).line().line(xids=(xid(79),))
    old, new = f"{gpu_id(0)}=recovered@2026-11-23T12:00:00Z", f"{gpu_id(0)}=recovered@2026-11-24T12:00:00Z"
    node.given(seen=seen({}, confirm=old)).line()
    node.line(xids=(xid(79),))
    node.given(seen=seen({}, confirm=f"{gpu_id(1)}=recovered@{CONFIRMED},{old}")).line()
    assert node.counts == {GPU: (2, 1)}
    node.given(seen=seen({}, confirm=f"{new},{gpu_id(1)}=recovered@{CONFIRMED}")).line()
    assert node.counts == {GPU: (2, 2)}


def test_words_and_names_that_are_not_understood_are_reported_with_what_would_be() -> None:
    node = Node(*TWO_GPUS).given(seen=seen({}, config_name="notebooks")).line()
    assert node.config == "Applied"
    assert "nvidia.com/device-plugin.config names the configuration 'notebooks'" in node.world.config.message
    assert "install the component named-configs" in node.world.config.message
    node = Node(*TWO_GPUS).line().given(seen=seen({}, confirm=f"{gpu_id(0)}=fine,GPU-9=recovered@{CONFIRMED}")).wait()
    reported = (
        f"{gpu_id(0)}=fine: {GIVE}",
        "GPU-9: this node has no such device",
    )
    assert (node.world.confirm_problems, node.last.confirmed) == (reported, ())
    assert node.wait().world.confirm_problems == reported, "until the annotation is another"
    assert node.given(seen=seen({})).wait().world.confirm_problems == ()
    node = Node(*TWO_GPUS).line().line(gpu(0))
    node.given(seen=seen({}, confirm=f"GPU-9=removed@{CONFIRMED},{gpu_id(0)}=recovered@{CONFIRMED}")).wait()
    assert node.last.confirmed == (f"{gpu_id(0)}=recovered@{CONFIRMED}",), "beside a wrong one"
    node.given(seen=seen({}, confirm=f"gpu-1=removed@{CONFIRMED}")).wait()
    assert list(node.world.confirm_problems) == [f"gpu-1: give its id, {gpu_id(1)}"]
    assert node.counts == {GPU: (2, 1)}
    node.given(seen=seen({}, confirm=f"{gpu_id(1)}=removed@{CONFIRMED}")).wait()
    assert node.last.confirmed == (f"{gpu_id(1)}=removed@{CONFIRMED}",)
    assert list(node.world.confirm_problems) == []
    assert node.counts == {GPU: (1, 1)}
    assert node.wait().world.confirm_problems == (), "which is not here any more"


# --- whatever comes ---------------------------------------------------------------------------------------------------
moves = st.lists(
    st.tuples(
        st.sampled_from(["line", "fewer", "xid", "wait", "restart"]),
        st.sampled_from([None, {}, FOUR, TWO]),
        st.sampled_from([NOBODY, NOT_QUERIED, held(holder(gpu_id(0)))]),
    ),
    max_size=12,
)


@settings(max_examples=scaled(100, share=6))
@given(moves)
def test_whatever_comes_ids_are_unique_and_a_device_that_is_not_offered_is_never_healthy(
    story: list[tuple[str, dict[str, Any] | None, Holdings]],
) -> None:
    node = Node(*TWO_GPUS).line()
    for move, config, holdings in story:
        node.given(seen=seen(config), holdings=holdings)
        if move == "restart":
            node = node.restarted().given(seen=seen(config), holdings=holdings).line(instance=str(node.clock))
        elif move == "wait":
            node.wait(20)
        elif move == "xid":
            node.line(xids=(xid(79, 1),))
        else:
            node.line(*(node.devices[:1] if move == "fewer" else node.devices))
        if node.world.plan is None:
            assert holdings == NOT_QUERIED
            node.wait(FIRST_LIST_SECONDS)
        ids = [each.id for resource in node.plan.resources for each in resource.ids]
        assert len(ids) == len(set(ids))
        for resource in node.plan.resources:
            for each in resource.ids:
                assert not each.healthy or node.world.known.verdicts[each.device_id].offered
        assert node.wait().world == node.wait().world
