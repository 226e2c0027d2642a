"""`resources` and `sharing` of NVIDIA's v1 file, in our sections; and every value that is refused, with its message."""

from __future__ import annotations

from typing import Any

import yaml
from nodedevices_api.sections import OfferMatch, Resources, SharedResource, Sharing
from nodedevices_plugin.settings import v1_file
from support.cases import cases
from support.facts import gpu_id, mig_id
from support.there import there


def resources(text: str) -> Resources | None:
    problems: list[str] = []
    found = v1_file.resources(yaml.safe_load(text), problems)
    assert problems == []
    return found


def sharing(text: str) -> Sharing | None:
    problems: list[str] = []
    found = v1_file.sharing(yaml.safe_load(text), problems)
    assert problems == []
    return found


def complaints(read: Any, text: str) -> list[str]:
    problems: list[str] = []
    assert read(yaml.safe_load(text), problems) is None
    assert problems
    return problems


# --- resources --------------------------------------------------------------------------------------------------------
def test_patterns_are_rules_for_models_and_profiles_in_their_order() -> None:
    found = there(resources("{gpus: [{pattern: '*H100*', name: h100}, {pattern: '*', name: nvidia.com/other}]}"))
    assert [(rule.match, rule.name) for rule in found.devices] == [
        (OfferMatch(vendor="nvidia", product_name="*H100*"), "nvidia.com/h100"),
        (OfferMatch(vendor="nvidia", product_name="*"), "nvidia.com/other"),
    ]
    found = there(resources("{mig: [{pattern: 1g.10gb+me, name: example.com/media}]}"))
    assert [(rule.match, rule.name) for rule in found.devices] == [
        (OfferMatch(profile="1g.10gb.me"), "example.com/media")
    ]
    found = there(resources("{gpus: [{pattern: 'A?[x*', name: a}]}"))
    assert found.devices[0].match.product_name == "A[?][[]x*"
    assert resources("null") is None
    assert sharing("null") is None
    assert sharing("{}") is None
    assert sharing("{timeSlicing: null, mps: null}") is None


@cases(
    ("text", "message"),
    ("{gpus: [{name: gpu}]}", "resources.gpus[0].pattern: missing; every entry has a pattern and a name"),
    ("{gpus: [{pattern: '*'}]}", "resources.gpus[0].name: missing; every entry has a pattern and a name"),
    ("{mig: [{pattern: '', name: x}]}", "resources.mig[0].pattern: missing; every entry has a pattern and a name"),
    ("{gpus: [{pattern: 'a{b', name: x}]}", "resources.gpus[0].pattern: a{b: letters, digits, spaces, . _ : - and"),
    ("{gpus: [{pattern: '*', name: GPU_}]}", "resources.gpus[0].name: nvidia.com/GPU_: after the slash only letters"),
    ("{gpus: {pattern: '*'}}", "resources.gpus: dict is not a list"),
    ("{gpu: []}", "resources.gpu: unknown key; did you mean gpus?"),
    ("[]", "resources: list is not a mapping"),
    ("{gpus: [7]}", "resources.gpus[0]: 7 is not a mapping"),
)
def test_resources_that_make_no_sense_are_refused(text: str, message: str) -> None:
    assert any(each.startswith(message) for each in complaints(v1_file.resources, text))


# --- sharing ----------------------------------------------------------------------------------------------------------
def test_time_slicing_is_read_whole() -> None:
    found = sharing(
        f"""
        timeSlicing:
          renameByDefault: true
          failRequestsGreaterThanOne: true
          resources:
          - {{name: gpu, replicas: 4, devices: [0, "1", "0:1", {gpu_id(2)}, {mig_id(0, 0)}, MIG-{gpu_id(3)}/7/0]}}
          - {{name: nvidia.com/mig-1g.5gb, replicas: 2, rename: slice, devices: all}}
          - {{name: nvidia.com/h100, replicas: 3, devices: 2}}
        """
    )
    assert found == Sharing(
        strategy="timeSlicing",
        rename_by_default=True,
        fail_requests_greater_than_one=True,
        resources=(
            SharedResource(
                name="nvidia.com/gpu",
                replicas=4,
                devices=("0", "1", "0:1", gpu_id(2), mig_id(0, 0), f"MIG-{gpu_id(3)}/7/0"),
            ),
            SharedResource(name="nvidia.com/mig-1g.5gb", replicas=2, rename="nvidia.com/slice"),
            SharedResource(name="nvidia.com/h100", replicas=3, devices=("first:2",)),
        ),
    )


@cases(("given", "fails"), ("", True), ("failRequestsGreaterThanOne: false,", False))
def test_clients_of_mps_are_requested_one_by_one_unless_the_file_says_otherwise(given: str, fails: bool) -> None:
    found = there(sharing(f"{{mps: {{{given} resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}}}"))
    assert (found.strategy, found.fail_requests_greater_than_one) == ("mps", fails)
    sliced = there(sharing("{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"))
    assert not sliced.fail_requests_greater_than_one


def test_sharing_by_memory_is_read_with_every_field_of_a_policy() -> None:
    found = sharing(
        """
        memory:
          resources:
          - name: gpu
            rename: gpu-memory
            memoryUnit: 512Mi
            memoryReserve: 1Gi
            packing: spread
            numa: true
            devices: [0, "0:1", GPU-0*]
          - {name: nvidia.com/h100, rename: aliyun.com/gpu-mem, devices: 2}
        """
    )
    assert found == Sharing(
        strategy="memory",
        resources=(
            SharedResource(
                name="nvidia.com/gpu",
                rename="nvidia.com/gpu-memory",
                memory_unit="512Mi",
                memory_reserve="1Gi",
                packing="spread",
                numa=True,
                devices=("0", "0:1", "GPU-0*"),
            ),
            SharedResource(name="nvidia.com/h100", rename="aliyun.com/gpu-mem", devices=("first:2",)),
        ),
    )


def test_a_file_can_share_by_memory_in_one_way_and_all_that_is_wrong_is_reported_at_once() -> None:
    fields = {field.alias or name for name, field in SharedResource.model_fields.items()}
    assert {*v1_file.MEMORY_KEYS, "replicas", "strategy"} == fields, "the key above them says how they are shared"
    text = "{timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}]}}"
    assert "nvidia.com/gpu is listed twice; list it once" in complaints(v1_file.sharing, text)[0]
    text = "{timeSlicing: {resources: [{name: GPU_}, {replicas: 2, devices: [x, y]}]}}"
    assert len(complaints(v1_file.sharing, text)) == 5


LONG = "g" * 64


@cases(
    ("text", "message"),
    ("{timeSlicing: {}}", "sharing.timeSlicing.resources: missing; list at least one resource with its replicas"),
    ("{mps: {resources: []}}", "sharing.mps.resources: missing; list at least one resource with its replicas"),
    ("{timeSlicing: {resources: [{replicas: 2}]}}", "sharing.timeSlicing.resources[0].name: missing;"),
    ("{timeSlicing: {resources: [{name: gpu}]}}", "sharing.timeSlicing.resources[0].replicas: missing;"),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 0}]}}",
        "sharing.timeSlicing.resources[0].replicas: 0 is not allowed; give 2 or more",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: -1}]}}",
        "sharing.timeSlicing.resources[0].replicas: -1 is not allowed; give 2 or more",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 1}]}}",
        "sharing.timeSlicing.resources[0].replicas: 1 is not allowed; give 2 or more",
    ),
    (
        f"{{timeSlicing: {{resources: [{{name: {LONG}, replicas: 2}}]}}}}",
        f"sharing.timeSlicing.resources[0].name: nvidia.com/{LONG}: 64 characters after the slash; 63 are the most",
    ),
    (
        "{timeSlicing: {resources: [{name: nvidia.com/-gpu, replicas: 2}]}}",
        "sharing.timeSlicing.resources[0].name: nvidia.com/-gpu: after the slash only letters",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, rename: a/b/c, replicas: 2}]}}",
        "sharing.timeSlicing.resources[0].rename: a/b/c: after the slash only letters",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 2, devices: some}]}}",
        "sharing.timeSlicing.resources[0].devices: some: give all, a count, or a list of indices and UUIDs",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 0}]}}",
        "sharing.timeSlicing.resources[0].devices: 0: a count of devices must be more than 0",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 2, devices: true}]}}",
        "sharing.timeSlicing.resources[0].devices: True: give all, a count, or a list",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0, -1, x, 1.5, {a: b}]}]}}",
        'sharing.timeSlicing.resources[0].devices: x: give an index (0), a MIG index ("0:1"), GPU-<uuid> or',
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 2}]}, mps: {resources: [{name: gpu, replicas: 2}]}}",
        "sharing: timeSlicing and mps are both given, and a device can have one; leave one out",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replica: 2}]}}",
        "sharing.timeSlicing.resources[0].replica: unknown key; did you mean replicas?",
    ),
    (
        "{memory: {resources: [{name: gpu, memoryUnit: 1Gi}]}, mps: {}, timeSlicing: {}}",
        "sharing: memory, mps and timeSlicing are all given, and a device can have one; leave one out",
    ),
    ("{memory: {}}", "sharing.memory.resources: missing; list at least one resource with its memoryUnit"),
    (
        "{memory: {resources: [{name: gpu}]}}",
        "sharing.memory.resources[0].memoryUnit: missing; give the amount of memory that one share is, such as 1Gi",
    ),
    ("{memory: {resources: [{memoryUnit: 1Gi}]}}", "sharing.memory.resources[0].name: missing;"),
    (
        "{memory: {resources: [{name: gpu, memoryUnit: lots}]}}",
        'sharing.memory.resources[0].memoryUnit: "lots" is not allowed; write an amount of memory',
    ),
    (
        "{memory: {resources: [{name: gpu, memoryUnit: 1Gi, match: {productName: NVIDIA L4}}]}}",
        "sharing.memory.resources[0].match: unknown key; give these devices a name of their own in the section res",
    ),
    (
        "{memory: {resources: [{name: gpu, memoryUnit: 1Gi, devices: [-1]}]}}",
        "sharing.memory.resources[0].devices[0]: -1 is not allowed; give text, in quotes",
    ),
    (
        "{memory: {resources: [{name: gpu, memoryUnit: 1Gi, replicas: 4}]}}",
        "sharing.memory.resources[0].replicas: unknown key; known: ",
    ),
    (
        "{timeSlicing: {resources: [{name: gpu, replicas: 4, packing: spread}]}}",
        "sharing.timeSlicing.resources[0].packing: unknown key; it belongs at sharing.memory.resources[].packing",
    ),
    (
        "{memory: {failRequestsGreaterThanOne: true, resources: [{name: gpu, memoryUnit: 1Gi}]}}",
        "sharing.memory.failRequestsGreaterThanOne: true: a container requests as many shares as it needs memory",
    ),
    ("{timeslicing: {}}", "sharing.timeslicing: unknown key; did you mean timeSlicing?"),
    ("{timeSlicing: [1]}", "sharing.timeSlicing: list is not a mapping"),
)
def test_sharing_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    found = complaints(v1_file.sharing, text)
    assert any(each.startswith(message) for each in found), found


# --- what always holds ------------------------------------------------------------------------------------------------


@cases("name", "nvidia.com/GPU_L4", f"nvidia.com/{'g' * 63}", "example.com/gpu.large")
def test_a_name_that_a_policy_may_give_may_stand_in_a_file(name: str) -> None:
    text = f"{{timeSlicing: {{resources: [{{name: {name}, replicas: 2}}]}}}}"
    problems: list[str] = []
    of_file = v1_file.sharing(yaml.safe_load(text), problems)
    assert problems == []
    of_policy = Sharing.model_validate({"strategy": "timeSlicing", "resources": [{"name": name, "replicas": 2}]})
    assert of_file == of_policy
